"""The version of this package, in one place: its build, its cache keys and its reports read it here."""

from pathlib import Path

__version__ = "0.1.0"

HOME = Path(__file__).parent
"""The folder of the package's sources."""

"""The expressions of the pattern language."""

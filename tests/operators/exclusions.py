"""Operators that do not do compiled what they do in eager, and why: none for a fault of ours."""

from __future__ import annotations

EXCLUDED: dict[str, str] = {}
"""What the construct is, by operator. One that gives eager's results again fails the tests, until it is taken off."""

"""Replaces matches: where the replacement goes, what must agree, and the check against its search function."""

"""Diffs: of a graph before and after a pass, and of two records."""

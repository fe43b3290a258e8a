"""Patterns from search functions: traced, stored, loaded."""

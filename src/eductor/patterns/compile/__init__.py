"""Compiles patterns: from an expression to plain forms, to programs of steps, to one tree of steps for all rules of a pass."""

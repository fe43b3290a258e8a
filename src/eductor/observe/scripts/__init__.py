"""Runs a user's script, and intercepts each function that it compiles."""

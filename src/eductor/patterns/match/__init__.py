"""Matching: reads nodes as calls, skips transparent nodes, and binds names."""

"""Passes of both functional stages, joint and post-grad."""

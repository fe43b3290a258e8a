"""Passes that both functional stages run, joint and post-grad."""

"""Repeated layers of a final graph: equal calls, runs with a period, where to cut them, and regions that share a body."""

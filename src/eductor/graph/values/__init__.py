"""Fake values of nodes: computing, caching and comparing them."""

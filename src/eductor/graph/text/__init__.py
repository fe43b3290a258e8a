"""Graphs as text and as hashes: printing, parsing, comparing."""

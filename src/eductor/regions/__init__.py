"""Regions of a graph, with their backward, replaced by a function that computes the same: recognized by retracing."""

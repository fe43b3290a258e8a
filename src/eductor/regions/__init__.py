"""Replaces a region of a joint graph, with its gradients, by a function that computes the same."""

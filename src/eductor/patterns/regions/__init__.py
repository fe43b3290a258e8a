"""Replacing a region of a joint graph, with its gradients, by retracing it."""

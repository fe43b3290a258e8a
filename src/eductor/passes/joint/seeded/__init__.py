"""Random tensors as functions of a seed: what may become one, and what it is made of."""

"""Random tensors computed from a seed: which calls can be, and how."""

"""Shared by the passes on matrix products: swapped dimensions, linear compressions, and whether strides are observable."""

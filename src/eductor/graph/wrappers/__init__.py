"""Unwraps calls that functionalization wrapped: mutable operators and Triton kernels, on writable operands."""

"""Calls that functionalization wrapped, taken apart: mutable operators and Triton kernels on what they may write."""

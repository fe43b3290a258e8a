"""Whether Eductor's Triton kernels can run, and with which precision. This module does not import Triton."""

from __future__ import annotations

import functools
import importlib.util

import torch

KERNEL_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""The dtypes that the kernels take; they accumulate in float32."""


@functools.cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def can_launch(*operands: torch.Tensor) -> bool:
    """Whether a kernel can be launched: Triton is installed, all operands have one device and one supported dtype."""
    kinds = {(t.device, t.dtype) for t in operands}
    return has_triton() and len(kinds) == 1 and operands[0].dtype in KERNEL_DTYPES


def float32_precision() -> str:
    """How `tl.dot` multiplies float32: in TF32 only where torch's own matmuls on CUDA do."""
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"

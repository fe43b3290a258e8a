"""What an operator costs on a device: bytes, flops, launches, and from these a time.

The figures are for choosing between two forms of the same computation, not for predicting a run: what both forms share
cancels, so that a launch, the bandwidth and the rate of the matrix units need only be of the right size.
"""

from eductor.cost.device import VECTOR, Device, cuda_device, device_of
from eductor.cost.operators import (
    Gemm,
    bytes_of,
    copy_time,
    flops_of,
    fused_time_of,
    fuses,
    gemm_of,
    gemm_time,
    is_bound_by_memory,
    is_pointwise,
    launches_of,
    microseconds,
    pays,
    reduces,
    time_of,
)

__all__ = [
    "VECTOR",
    "Device",
    "Gemm",
    "bytes_of",
    "copy_time",
    "cuda_device",
    "device_of",
    "flops_of",
    "fused_time_of",
    "fuses",
    "gemm_of",
    "gemm_time",
    "is_bound_by_memory",
    "is_pointwise",
    "launches_of",
    "microseconds",
    "pays",
    "reduces",
    "time_of",
]

"""Cost model of operators on a device: bytes, flops and launches, and an estimated time.

The estimates compare two forms of the same computation; they do not predict a run. What both forms share cancels, so
launch time, bandwidth and matrix-unit throughput need only be of the right magnitude.
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

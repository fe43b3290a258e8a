"""Cost model of operators on a device: bytes, flops and launches, and an estimated time.

The estimates compare two forms of the same computation; they do not predict a run. What both forms share cancels, so
launch time, bandwidth and matrix-unit throughput need only be of the right magnitude.
"""

from eductor.cost.device import VECTOR as VECTOR
from eductor.cost.device import Device as Device
from eductor.cost.device import cuda_device as cuda_device
from eductor.cost.device import device_of as device_of
from eductor.cost.operators import Gemm as Gemm
from eductor.cost.operators import bytes_of as bytes_of
from eductor.cost.operators import copy_time as copy_time
from eductor.cost.operators import flops_of as flops_of
from eductor.cost.operators import fused_time_of as fused_time_of
from eductor.cost.operators import fuses as fuses
from eductor.cost.operators import gemm_of as gemm_of
from eductor.cost.operators import gemm_time as gemm_time
from eductor.cost.operators import is_bound_by_memory as is_bound_by_memory
from eductor.cost.operators import is_pointwise as is_pointwise
from eductor.cost.operators import launches_of as launches_of
from eductor.cost.operators import microseconds as microseconds
from eductor.cost.operators import pays as pays
from eductor.cost.operators import reduces as reduces
from eductor.cost.operators import time_of as time_of

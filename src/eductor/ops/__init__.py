"""Eductor's operators, which passes emit and engines lower. Importing this registers them."""

from eductor.ops import b2b_gemm as b2b_gemm
from eductor.ops import contiguous_convolution as contiguous_convolution
from eductor.ops import copies as copies
from eductor.ops import cut_mm as cut_mm
from eductor.ops import dot_compress as dot_compress
from eductor.ops import fused as fused
from eductor.ops import lce as lce
from eductor.ops import random as random

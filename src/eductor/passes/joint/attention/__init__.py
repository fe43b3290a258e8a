"""Attention as it is written by hand: found at its softmax, read up to the scores and down to the second product.

`numbers` reads constants, `softmax` finds the anchor, `scores` walks up, `weights` walks down, `axes` keeps track of
what is batch, query and key, `masks` makes one bias of all masks, `causal` proves triangles, `operands` reads query, key
and value, `attention` puts it together, `kernels` knows what torch has one kernel for. `regions` is the part of the graph
to replace, `call` what computes it.
"""

from eductor.passes.joint.attention.attention import Attention as Attention
from eductor.passes.joint.attention.attention import recognize as recognize
from eductor.passes.joint.attention.regions import regions as regions
from eductor.passes.joint.attention.softmax import ANCHORS as ANCHORS
from eductor.passes.joint.attention.softmax import softmax_at as softmax_at

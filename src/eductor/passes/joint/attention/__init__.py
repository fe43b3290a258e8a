"""Recognizes hand-written attention: starts at its softmax, goes up to the first product and down to the second.

`numbers` reads constants, `softmax` finds the anchor, `scores` walks up, `weights` walks down, `axes` tracks batch, query
and key axes, `masks` combines all masks into one bias, `causal` proves triangles, `operands` reads query, key and value,
`attention` combines these, `kernels` knows which attentions torch has one kernel for. `regions` is the part of the graph
to replace, `call` the call that replaces it, `unseen_rows` the gradients of rows that masks hide entirely.
"""

from eductor.passes.joint.attention.attention import Attention as Attention
from eductor.passes.joint.attention.attention import recognize as recognize
from eductor.passes.joint.attention.regions import regions as regions
from eductor.passes.joint.attention.softmax import ANCHORS as ANCHORS
from eductor.passes.joint.attention.softmax import softmax_at as softmax_at

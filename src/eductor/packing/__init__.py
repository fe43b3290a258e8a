"""Weight packing: values computed from parameters alone are computed once, if no gradient is needed.

A pass that derives new weights from a model's own (concatenated linears, a folded batch norm) marks them with `pack`.
Their nodes move out of the captured graph into a *prologue*, whose results are additional inputs of the graph:

    before    f(x, a, b) = x @ cat(a, b)
    after     prologue(a, b) = cat(a, b)                 recomputed when a or b was written, else cached
              f(x, a, b, packed) = x @ packed

Each call checks that the parameters are still the same tensors, in the same memory, at the same version of autograd,
and that nothing else holds this memory. Not all writes bump the version, so content in CPU memory is compared as well:
whole if it is small, else in samples; and optimizer steps are noted for what is not compared whole. Weights in shared
memory are not packed. The option `pack_weights=False` computes everything in each call.
"""

from eductor.packing.hoist import Hoisted as Hoisted
from eductor.packing.hoist import can_pack as can_pack
from eductor.packing.hoist import hoist as hoist
from eductor.packing.hoist import with_prologue as with_prologue

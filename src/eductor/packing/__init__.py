"""Weight packing: values computed from parameters alone are computed once, if no gradient is needed.

A pass that derives new weights from a model's own (concatenated linears, a folded batch norm) marks them with `pack`.
Their nodes move out of the captured graph into a *prologue*, whose results are additional inputs of the graph:

    before    f(x, a, b) = x @ cat(a, b)
    after     prologue(a, b) = cat(a, b)                 recomputed when a or b was written, else cached
              f(x, a, b, packed) = x @ packed

Each call checks that the parameters are still the same tensors, in the same memory, at the same version. Versions are
those of autograd: a write through `.data`, or by a kernel that does not bump them, is not seen. An optimizer step is,
even where its kernels do not bump them. Packed parameters have weak references, so `torch.utils.swap_tensors` refuses
them. The option `pack_weights=False` computes everything in each call.
"""

from eductor.packing.hoist import Hoisted as Hoisted
from eductor.packing.hoist import can_pack as can_pack
from eductor.packing.hoist import hoist as hoist
from eductor.packing.hoist import with_prologue as with_prologue

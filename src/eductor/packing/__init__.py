"""What is computed from parameters alone is computed once, where no gradient is needed.

A pass that makes new weights of a model's own (concatenated linears, a folded batch norm) marks them with `pack`. Their
nodes move out of the captured graph into a *prologue*, whose results are further inputs of the graph:

    before    f(x, a, b) = x @ cat(a, b)
    after     prologue(a, b) = cat(a, b)                 computed anew when a or b was written, else kept
              f(x, a, b, packed) = x @ packed

Each call looks whether the parameters are still the same tensors, in the same memory, with the same count of writes.
Torch counts writes as its autograd needs it, and so does this: a write through `.data`, or by a kernel that goes round
torch's counting, is not seen. A step of an optimizer is, though some of their kernels do not count. Parameters that are
looked at have weak references, so `torch.utils.swap_tensors` refuses them. The option `pack_weights=False` has everything
computed in each call.
"""

from eductor.packing.hoist import Hoisted as Hoisted
from eductor.packing.hoist import can_pack as can_pack
from eductor.packing.hoist import hoist as hoist
from eductor.packing.hoist import with_prologue as with_prologue

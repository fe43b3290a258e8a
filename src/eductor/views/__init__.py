"""The view algebra: what a nest of splits, slices, reshapes, permutations and cats reads, and its cheapest equal form.

`box` is the algebra, `reading` takes nodes to boxes, `plan` takes boxes back to operators, `nest` merges the operands
of a cat or stack, `checking` compares both sides on tensors of indices.
"""

from eductor.views.checking import check_equal as check_equal
from eductor.views.concat_fusion import Nest as Nest
from eductor.views.concat_fusion import concatenated as concatenated
from eductor.views.concat_fusion import fuse as fuse
from eductor.views.concat_fusion import fuse_nests as fuse_nests
from eductor.views.concat_fusion import nest_of as nest_of
from eductor.views.concat_fusion import stacked as stacked
from eductor.views.reading import RESHAPES as RESHAPES
from eductor.views.reading import SPLITS as SPLITS
from eductor.views.reading import Division as Division
from eductor.views.reading import Trace as Trace
from eductor.views.reading import division as division
from eductor.views.reading import order_of as order_of
from eductor.views.reading import trace as trace
from eductor.views.reading import trace_through as trace_through
from eductor.views.view_plan import Plan as Plan
from eductor.views.view_plan import plan as plan

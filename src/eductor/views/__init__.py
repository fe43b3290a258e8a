"""The view algebra: what a nest of splits, slices, reshapes, permutations and cats reads, and its cheapest equal form.

`index_map` is the algebra, `source_views` turns nodes into index maps, `view_plan` turns index maps into operators,
`concat_fusion` merges the operands of a cat or stack, `checking` compares both sides on tensors of indices.
"""

from eductor.views.checking import check_equal as check_equal
from eductor.views.concat_fusion import ConcatNest as ConcatNest
from eductor.views.concat_fusion import concat_nest as concat_nest
from eductor.views.concat_fusion import concatenated as concatenated
from eductor.views.concat_fusion import fuse_concat as fuse_concat
from eductor.views.concat_fusion import stacked as stacked
from eductor.views.source_views import RESHAPES as RESHAPES
from eductor.views.source_views import SPLITS as SPLITS
from eductor.views.source_views import Division as Division
from eductor.views.source_views import SourceView as SourceView
from eductor.views.source_views import division as division
from eductor.views.source_views import order_of as order_of
from eductor.views.source_views import source_view as source_view
from eductor.views.source_views import source_view_through as source_view_through
from eductor.views.view_plan import ViewPlan as ViewPlan
from eductor.views.view_plan import plan_views as plan_views

"""The pattern language and the matcher: how most graph rewriting is said.

@pattern_pass(stage="joint", numerics="reassociates")
def fuse_norms():
    "Makes one operator of a norm that is spelled out."

fuse_norms.replace(search, replacement, inputs=[f32(4, 8), f32(8), 1e-6], tolerate=("casts", "scale"))
"""

from eductor.patterns.language import ANY as ANY
from eductor.patterns.language import Pattern as Pattern
from eductor.patterns.language import any_of as any_of
from eductor.patterns.language import computed as computed
from eductor.patterns.language import const as const
from eductor.patterns.language import list_of as list_of
from eductor.patterns.language import op as op
from eductor.patterns.language import optional as optional
from eductor.patterns.language import outputs as outputs
from eductor.patterns.language import repeated as repeated
from eductor.patterns.language import var as var
from eductor.patterns.match import Match as Match
from eductor.patterns.pattern_pass import PatternPass as PatternPass
from eductor.patterns.pattern_pass import pattern_pass as pattern_pass

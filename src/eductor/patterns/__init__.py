"""The pattern language and the matcher.

@pattern_pass(stage="joint", numerics="reassociates")
def fuse_norms():
    "Makes one operator of a norm that is spelled out."

fuse_norms.replace(search, replacement, inputs=[f32(4, 8), f32(8), 1e-6], tolerate=("casts", "scale"))
"""

from eductor.patterns.explain.why_not import WhyNot as WhyNot
from eductor.patterns.explain.why_not import why_not as why_not
from eductor.patterns.language.pattern import ANY as ANY
from eductor.patterns.language.pattern import Pattern as Pattern
from eductor.patterns.language.pattern import any_of as any_of
from eductor.patterns.language.pattern import computed as computed
from eductor.patterns.language.pattern import const as const
from eductor.patterns.language.pattern import list_of as list_of
from eductor.patterns.language.pattern import op as op
from eductor.patterns.language.pattern import optional as optional
from eductor.patterns.language.pattern import outputs as outputs
from eductor.patterns.language.pattern import repeated as repeated
from eductor.patterns.language.pattern import var as var
from eductor.patterns.match.match import Match as Match
from eductor.patterns.pattern_pass import PatternPass as PatternPass
from eductor.patterns.pattern_pass import pattern_pass as pattern_pass
from eductor.patterns.torch_names.patterns import MULTIPLE as MULTIPLE
from eductor.patterns.torch_names.patterns import Arg as Arg
from eductor.patterns.torch_names.patterns import CallFunction as CallFunction
from eductor.patterns.torch_names.patterns import CallFunctionVarArgs as CallFunctionVarArgs
from eductor.patterns.torch_names.patterns import CallMethod as CallMethod
from eductor.patterns.torch_names.patterns import CallMethodVarArgs as CallMethodVarArgs
from eductor.patterns.torch_names.patterns import CallModule as CallModule
from eductor.patterns.torch_names.patterns import CallModuleVarArgs as CallModuleVarArgs
from eductor.patterns.torch_names.patterns import ExclusiveKeywordArg as ExclusiveKeywordArg
from eductor.patterns.torch_names.patterns import Ignored as Ignored
from eductor.patterns.torch_names.patterns import KeywordArg as KeywordArg
from eductor.patterns.torch_names.patterns import ListOf as ListOf
from eductor.patterns.torch_names.patterns import MultiOutputPattern as MultiOutputPattern
from eductor.patterns.torch_names.patterns import PatternExpr as PatternExpr
from eductor.patterns.torch_names.patterns import RepeatedExpr as RepeatedExpr
from eductor.patterns.torch_names.registration import PatternMatcherPass as PatternMatcherPass
from eductor.patterns.torch_names.registration import _serialize_pattern as _serialize_pattern
from eductor.patterns.torch_names.registration import gen_pattern as gen_pattern
from eductor.patterns.torch_names.registration import gen_register_replacement as gen_register_replacement
from eductor.patterns.torch_names.registration import register_graph_pattern as register_graph_pattern
from eductor.patterns.torch_names.registration import register_replacement as register_replacement
from eductor.patterns.torch_names.rules import fwd_only as fwd_only
from eductor.patterns.torch_names.rules import joint_fwd_bwd as joint_fwd_bwd

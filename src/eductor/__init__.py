"""Eductor: a graph compiler for PyTorch that shows its work."""

from eductor import ops as ops
from eductor.compiler import compile as compile
from eductor.errors import BadGraph as BadGraph
from eductor.errors import BadOption as BadOption
from eductor.errors import BadPass as BadPass
from eductor.errors import BadScript as BadScript
from eductor.errors import EductorError as EductorError
from eductor.errors import EductorWarning as EductorWarning
from eductor.errors import NothingWrong as NothingWrong
from eductor.errors import NotVerified as NotVerified
from eductor.errors import OrderConflict as OrderConflict
from eductor.errors import PassFailed as PassFailed
from eductor.errors import UnknownName as UnknownName
from eductor.observe.bisect.bisect import bisect as bisect
from eductor.observe.explain.explain import explain as explain
from eductor.observe.verify.verify import verify as verify
from eductor.options import Options as Options
from eductor.pipeline import Context as Context
from eductor.pipeline import Instrument as Instrument
from eductor.pipeline import Pass as Pass
from eductor.pipeline import Pipeline as Pipeline
from eductor.pipeline import Recorder as Recorder
from eductor.pipeline import Registry as Registry
from eductor.pipeline import Timer as Timer
from eductor.pipeline import graph_pass as graph_pass
from eductor.pipeline import rule_pass as rule_pass
from eductor.stages import joint_graph_passes as joint_graph_passes
from eductor.stages import post_grad_passes as post_grad_passes
from eductor.stages import pre_grad_passes as pre_grad_passes

__version__ = "0.1.0"

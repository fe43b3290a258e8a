"""How passes are declared, ordered and run; this room knows no pass."""

from eductor.pipeline.base import STAGES as STAGES
from eductor.pipeline.base import Context as Context
from eductor.pipeline.base import Contract as Contract
from eductor.pipeline.base import Example as Example
from eductor.pipeline.base import Pass as Pass
from eductor.pipeline.base import RulePass as RulePass
from eductor.pipeline.base import Stage as Stage
from eductor.pipeline.base import TensorSpec as TensorSpec
from eductor.pipeline.base import b8 as b8
from eductor.pipeline.base import bf16 as bf16
from eductor.pipeline.base import f16 as f16
from eductor.pipeline.base import f32 as f32
from eductor.pipeline.base import f64 as f64
from eductor.pipeline.base import graph_pass as graph_pass
from eductor.pipeline.base import i64 as i64
from eductor.pipeline.base import rule_pass as rule_pass
from eductor.pipeline.instruments import Instrument as Instrument
from eductor.pipeline.instruments import PassRecord as PassRecord
from eductor.pipeline.instruments import PassRun as PassRun
from eductor.pipeline.instruments import Recorder as Recorder
from eductor.pipeline.instruments import Timer as Timer
from eductor.pipeline.pipeline import Pipeline as Pipeline
from eductor.pipeline.registry import Registry as Registry
from eductor.pipeline.registry import Row as Row
from eductor.pipeline.registry import Step as Step
from eductor.pipeline.replay import replay as replay

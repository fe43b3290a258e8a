"""Ahead-of-time autograd: traces a captured graph into a joint graph, and links compiled graphs into a function."""

from eductor.autograd.link import link as link
from eductor.autograd.traced import Traced as Traced
from eductor.autograd.traced import TraceOptions as TraceOptions
from eductor.autograd.traced import aot_dispatch_autograd as aot_dispatch_autograd
from eductor.autograd.traced import trace_joint as trace_joint
from eductor.autograd.tracing import aot_dispatch_autograd_graph as aot_dispatch_autograd_graph
from eductor.program.joint import Joint as Joint
from eductor.program.parts import Parts as Parts
from eductor.program.parts import Program as Program
from eductor.program.parts import Saved as Saved

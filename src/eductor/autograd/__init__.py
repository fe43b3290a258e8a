"""Ahead-of-time autograd: from a captured graph to a joint graph, and from compiled graphs back to a function."""

from eductor.autograd.dispatch import aot_dispatch_autograd as aot_dispatch_autograd
from eductor.autograd.dispatch import aot_resume_autograd as aot_resume_autograd
from eductor.autograd.joint import Joint as Joint
from eductor.autograd.joint import aot_dispatch_autograd_graph as aot_dispatch_autograd_graph
from eductor.autograd.program import Program as Program
from eductor.program.handoff import Parts as Parts
from eductor.program.handoff import Saved as Saved

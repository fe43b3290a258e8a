"""Replayed launches: on a GPU, the launches of a compiled graph are captured once and replayed as one.

The caller sees eager's semantics: what he gets is never overwritten, what he may change is never captured. Words:

- A *take* is one captured graph: the forward or the backward of a program, for one set of sizes.
- All takes of a device share one *pool* of memory, whose book of free blocks is the allocator's.
- A *lease* is memory of a take that holds an output of the caller. A *ticket* is the right of one pending backward to the
  values that its forward saved, which no tensor has to carry.
- A take may be replayed if every lease and ticket that is held now was in the book when the take was captured, so that its
  memory is elsewhere. Otherwise the call runs ordinarily.

`replayed_program` is one program with its takes; `decide` says what is captured and what is kept, from measured calls.
"""

from eductor.launches.candidates import candidate as candidate
from eductor.launches.replayed_program import ReplayedProgram as ReplayedProgram
from eductor.launches.replayed_program import live_programs as live_programs

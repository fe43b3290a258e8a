"""The passes that fuse a cat or stack of views of one tensor into fewer operands, or into one view.

`claims` is the table of them: a row for each documented name, with the calls that it reads and the concat nests that it
claims. Examples and refusals are in one module for each kind of view: `pieces`, `reshaped`, `unbound`.
"""

from eductor.passes.concats import pieces as pieces
from eductor.passes.concats import reshaped as reshaped
from eductor.passes.concats import unbound as unbound

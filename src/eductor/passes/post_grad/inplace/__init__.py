"""The analysis and the edits of `reinplace_inplaceable_ops`.

places        which values share memory, and which memory escapes the graph
views         the views that scatters overwrite; containment and overlap of elements
safety        whether a call may write an operand: later reads, aliases, outputs
work          one run of the pass: the edits that keep the analysis up to date
operators     functional operators with an in-place form, of one operand or a list; scatters, whose view alone is written
wrapped       mutable operators and Triton kernels that functionalization wrapped
"""

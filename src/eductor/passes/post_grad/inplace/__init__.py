"""What `reinplace_inplaceable_ops` stands on.

places        which values share memory, and what the outside holds
views         the parts of tensors that scatters put something else in the place of
geometry      where the elements of a tensor lie
safety        whether a call may write an operand: who reads the memory later, through what, and what leaves the graph
work          one run of the pass: the edits that keep all of this true
operators     functional operators that have a form that writes, one operand or a list of them
scatters      a tensor with other contents in a part of it: the part is written instead
wrapped       mutable operators and Triton kernels that functionalization wrapped
"""

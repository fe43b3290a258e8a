"""Parts a joint graph into a forward and a backward graph."""

from eductor.partition.split import partition_fn as partition_fn

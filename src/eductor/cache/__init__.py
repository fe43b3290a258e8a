"""What compiles leave on disk, so that a later process that compiles the same runs no pass.

    key      what the result of a compile depends on: the captured graph, the inputs' types, the state of torch, options,
             passes, versions, device
    entry    the final graphs as Python text with the types of their values, and what the function around them must know
    store    files under the hashes of keys: written at once or not at all, checked when read, bounded in size

Nothing is unpickled and no text is executed: graphs are parsed, and call operators of torch and of ours alone. What cannot
be told this way (operators of other packages, bodies of higher-order operators, sizes that depend on data) is not kept.
The kernels that an engine made are the engine's to keep: it gets the same graphs, and finds them by these.
"""

from eductor.cache.compile_cache import CompileCache as CompileCache
from eductor.cache.entry import Entry as Entry
from eductor.cache.key import Question as Question
from eductor.cache.store import Store as Store
from eductor.cache.values import NotKept as NotKept

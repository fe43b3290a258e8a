"""Cache of compiled graphs on disk: a later process that compiles the same runs no pass.

    key      what the result of a compile depends on: the captured graph, the inputs' types, the state of torch, options,
             passes, versions, device
    entry    the final graphs as Python text with the types of their values, and what the runtime around them needs
    store    files named by hashes of keys: written atomically, checked when read, bounded in size

Nothing is unpickled and no text is executed: graphs are parsed, with the bodies of their operators, and call only operators of
torch, of Eductor, and those that state a version. What cannot be written this way (other operators, data-dependent sizes)
is not cached. An engine caches its own kernels: it receives the same graphs, and looks them up by these.
"""

from eductor.cache.compile_cache import CompileCache as CompileCache
from eductor.cache.entry import Entry as Entry
from eductor.cache.key import Question as Question
from eductor.cache.store import Store as Store
from eductor.cache.values import NotKept as NotKept

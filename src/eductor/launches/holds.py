"""Who holds memory of a take: the callers, by outputs, and pending backwards, by tickets."""

from __future__ import annotations

import sys
import weakref
from itertools import count
from typing import Any

import torch

from eductor import compat
from eductor.launches.device import Device

SMALL = 256 * 1024
"""Bytes up to which an output is copied out: a copy costs less than a call that cannot be replayed."""

_numbers = count()


class Lease:
    """The storage of outputs: the caller's tensors lie in it, or in a copy of it."""

    __slots__ = ("__weakref__", "_address", "_owners", "_references", "number", "size", "source", "storage", "streams")

    in_book = True
    """Whether the allocator knows that the memory is taken."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.number = next(_numbers)
        self.storage = storage
        self.size = storage.nbytes()
        self._address = storage.data_ptr()
        self.source: torch.Tensor | None = None
        """Its bytes, where callers get copies of them."""
        self.streams: set[Any] = set()
        """Streams on which the caller said that he uses it."""
        self._owners = self._references = 0

    def settle(self) -> None:
        """Records the reference counts of a lease that no caller holds."""
        self._owners, self._references = compat.storage_owners(self.storage), sys.getrefcount(self.storage)

    def copy_out(self, device: Device) -> None:
        """From now on, callers get copies."""
        if self.source is None:
            form = {"nbytes": self.size, "data_ptr": self.storage.data_ptr(), "size": (self.size,), "stride": (1,)}
            plain = {"storage_offset": 0, "dtype": torch.uint8, "device": self.storage.device}
            self.source, self._owners = device.tensor_over(self.storage, form | plain), 1
            # A storage that a tensor owns has one more reference in some versions of torch.
            self._references = max(self._references, min(sys.getrefcount(self.storage), self._references + 1))

    def is_held(self) -> bool:
        """Whether a caller has a tensor over the storage, or the storage itself."""
        owners = compat.storage_owners(self.storage)
        return owners > self._owners or sys.getrefcount(self.storage) > self._references

    def is_whole(self) -> bool:
        """Whether no caller has resized the storage or sent it to another process."""
        return self.storage.data_ptr() == self._address and compat.owns_alone(self.storage)


class Ticket:
    """The right of one pending backward to the values that its replayed forward saved, as long as it lives."""

    __slots__ = ("__weakref__", "saved")

    def __init__(self, saved: Saved) -> None:
        self.saved = saved


class Saved:
    """The values that a captured forward saves and that no caller sees."""

    def __init__(self, tensors: dict[int, torch.Tensor], graph: Any) -> None:
        self.number = next(_numbers)
        self.graph = graph
        """While it exists, so does the memory."""
        self.tensors: dict[int, torch.Tensor] | None = tensors
        """By output; None when the backward is captured, whose book has their memory as free."""
        self.forms = {k: compat.form_of(t) for k, t in tensors.items()}
        self._ticket: weakref.ref[Ticket] | None = None

    @property
    def in_book(self) -> bool:
        """Whether the allocator knows that the memory is taken."""
        return self.tensors is not None

    def is_held(self) -> bool:
        """Whether a backward is pending."""
        return self._ticket is not None and self._ticket() is not None

    def ticket(self) -> Ticket:
        """The ticket of a new replay."""
        made = Ticket(self)
        self._ticket = weakref.ref(made)
        return made


Hold = Lease | Saved

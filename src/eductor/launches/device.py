"""What the room needs of a device; `compat.CudaGraphs` has it for CUDA, tests have it for the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from eductor.program.job import Run

Seconds = Callable[[], float | None]
"""Asks for a measured time; None while it is not known."""


class Device(Protocol):
    """A device that captures launches and replays them; all captures share one pool of memory."""

    def capture(self, run: Run, arguments: list[Any]) -> tuple[Any, Sequence[Any]]: ...

    def is_capturing(self) -> bool: ...

    def stream(self) -> Any: ...

    def timer(self) -> Callable[[], Seconds]: ...

    def empty(self, sizes: Sequence[int]) -> list[torch.Tensor]: ...

    def memory(self) -> tuple[int, int, int]: ...

    def release_cache(self) -> None: ...

    def tensor_over(self, storage: torch.UntypedStorage, form: dict[str, Any]) -> torch.Tensor: ...

    def unowned(self, address: int, size: int) -> torch.UntypedStorage: ...

    def forget(self) -> None: ...

    def same_addresses(self, tensors: list[Any], addresses: list[int | None], positions: list[int]) -> bool: ...

    def obstacle(self) -> str | None: ...

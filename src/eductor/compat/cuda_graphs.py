"""CUDA graphs: capturing, replaying, recovering from a failed capture, and tensors over memory of a pool."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

import torch
from torch._ops import OpOverload


class CaptureFailed(Exception):
    """A capture that failed, after which the process is as it was."""


class CudaGraphs:
    """The CUDA graphs of one device, which share one pool of memory and one stream for captures."""

    def __init__(self, index: int) -> None:
        self.index = index
        self._device = torch.device("cuda", index)
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(self._device)
        self._graphs: weakref.WeakSet[Any] = weakref.WeakSet()
        self._immortal: list[Any] = []

    def capture(self, run: Callable[[list[Any]], Sequence[Any]], arguments: list[Any]) -> tuple[Any, Sequence[Any]]:
        """Captures what a function of a list launches. Its memory comes from the pool; the kernels run at a replay."""
        if not self._graphs:  # with its last graph a pool is given up, and its handle must not be used again
            self._pool = torch.cuda.graph_pool_handle()
        _clear_workspaces()
        try:
            return self._captured(run, arguments)
        finally:
            _clear_workspaces()

    def _captured(self, run: Callable[[list[Any]], Sequence[Any]], arguments: list[Any]) -> tuple[Any, Sequence[Any]]:
        graph = torch.cuda.CUDAGraph()
        self._graphs.add(graph)
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream), _without_collections():
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                result = run(arguments)
            except BaseException:
                with suppress(RuntimeError):
                    graph.capture_end()
                self._recover()
                raise
            try:
                graph.capture_end()
            except RuntimeError as error:
                self._recover()
                raise CaptureFailed(str(error).split("\n")[0]) from error
        current.wait_stream(self._stream)
        return graph, result

    def _recover(self) -> None:
        """Ends what an aborted capture leaves open in some versions: the allocator's redirection, the generator's state."""
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(self.index, self._pool)
        self._graphs.clear()  # the pool stays as it is, and is not used again
        empty = torch.cuda.CUDAGraph()
        with suppress(RuntimeError):
            empty.capture_begin(capture_error_mode="thread_local")  # in a pool of its own
            empty.capture_end()

    def is_capturing(self) -> bool:
        """Whether the current stream is being captured, by anyone."""
        return torch.cuda.is_current_stream_capturing()

    def stream(self) -> Any:
        """The current stream."""
        return torch.cuda.current_stream(self._device)

    def timer(self) -> Callable[[], Callable[[], float | None]]:
        """Starts to measure the time on the device; the result ends it, and that result asks for the seconds, if known yet."""
        start = torch.cuda.Event(enable_timing=True)
        start.record(self.stream())

        def end() -> Callable[[], float | None]:
            stop = torch.cuda.Event(enable_timing=True)
            stop.record(self.stream())
            return lambda: start.elapsed_time(stop) * 1e-3 if stop.query() else None

        return end

    def empty(self, sizes: Sequence[int]) -> list[torch.Tensor]:
        """New memory of these many bytes each."""
        return [torch.empty(size, dtype=torch.uint8, device=self._device) for size in sizes]

    def memory(self) -> tuple[int, int, int]:
        """Bytes that tensors occupy, the most that they ever did, and those that the allocator has reserved."""
        stats = torch.cuda.memory_stats_as_nested_dict(self._device)
        allocated = stats["allocated_bytes"]["all"]
        return allocated["current"], allocated["peak"], stats["reserved_bytes"]["all"]["current"]

    def release_cache(self) -> None:
        """Gives unused memory back."""
        torch.cuda.empty_cache()

    def tensor_over(self, storage: torch.UntypedStorage, form: dict[str, Any]) -> torch.Tensor:
        """A new tensor over a storage, which it shares; it counts its own writes."""
        return torch._C._construct_CUDA_Tensor_From_Storage_And_Metadata(form, cast(Any, storage))

    def unowned(self, address: int, size: int) -> torch.UntypedStorage:
        """A storage over memory that it does not own."""
        made = torch._C._construct_storage_from_data_pointer(address, self._device, size)
        return cast(torch.UntypedStorage, made)

    def forget(self) -> None:
        """Keeps all graphs for ever: a forked process must not destroy them."""
        self._immortal.extend(self._graphs)

    def same_addresses(self, tensors: list[Any], addresses: list[int | None], positions: list[int]) -> bool:
        """Whether the tensors at these positions of a list have the addresses at these positions of another."""
        return bool(torch._C._tensors_data_ptrs_at_indices_equal(tensors, addresses, positions))

    def obstacle(self) -> str | None:
        """Why nothing can be captured in this process."""
        if torch.version.hip is not None:
            return "ROCm"
        if torch.cuda.get_allocator_backend() != "native":
            return f"the allocator {torch.cuda.get_allocator_backend()}"
        if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING"):
            return "an allocator that does not cache"
        return None


def form_of(tensor: torch.Tensor) -> dict[str, Any]:
    """What a tensor is besides its memory, as `tensor_over` takes it."""
    storage = tensor.untyped_storage()
    return {
        "nbytes": storage.nbytes(),
        "data_ptr": storage.data_ptr(),
        "size": tuple(tensor.shape),
        "stride": tuple(tensor.stride()),
        "storage_offset": tensor.storage_offset(),
        "dtype": tensor.dtype,
        "device": tensor.device,
    }


def copy_all(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Copies each source into its target, in few launches."""
    if targets:
        torch._foreach_copy_(targets, sources)


def has_inner_overlap(tensor: torch.Tensor) -> bool:
    """Whether two elements of a tensor share memory, or may."""
    return torch._debug_has_internal_overlap(tensor) != 0


def is_observed() -> bool:
    """Whether a mode sees each operator, or autograd looks for anomalies."""
    return torch._C._len_torch_dispatch_stack() > 0 or torch.is_anomaly_enabled()


def is_unsafe_in_cuda_graphs(operator: OpOverload) -> bool:
    """Whether an operator is marked as one that CUDA graphs cannot contain."""
    tag = getattr(torch.Tag, "cudagraph_unsafe", None)
    return tag is not None and tag in operator.tags


def _clear_workspaces() -> None:
    """Frees the workspaces of cuBLAS: one from the pool must not be used outside of it."""
    torch._C._cuda_clearCublasWorkspaces()


@contextmanager
def _without_collections() -> Iterator[None]:
    """Python's collector would free memory of others in the middle of a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

"""Global state that operators depend on: grad mode, autocast, random generators, settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_GRAD_MODE = torch._C._set_grad_enabled
_AUTOCAST = (torch.amp.autocast_mode._enter_autocast, torch.amp.autocast_mode._exit_autocast)
_INFERENCE = (torch.autograd.grad_mode._enter_inference_mode, torch.autograd.grad_mode._exit_inference_mode)
_SWITCHES = frozenset({_GRAD_MODE, *_AUTOCAST, *_INFERENCE})


def is_context_switch(target: Any) -> bool:
    """Whether a target switches grad mode, inference mode or autocast for what follows it."""
    try:
        return target in _SWITCHES
    except TypeError:
        return False


def has_context_switch(graph: torch.fx.Graph) -> bool:
    """Whether a graph switches grad mode, inference mode or autocast."""
    return any(graph.find_nodes(op="call_function", target=switch, sort=False) for switch in _SWITCHES)


def autocast_step(target: Any) -> int:
    """1 for a target that enters autocast, -1 for one that leaves it, else 0."""
    if not is_context_switch(target) or target not in _AUTOCAST:
        return 0
    return 1 if target is _AUTOCAST[0] else -1


def switch_context(target: Any, *args: Any) -> Any:
    """Runs a context switch; inference mode as no-grad mode, which can be undone even if its exit is never reached."""
    if target is _INFERENCE[0]:
        before = torch.is_grad_enabled()
        torch._C._set_grad_enabled(before and not args[0])
        return before
    return torch._C._set_grad_enabled(args[0]) if target is _INFERENCE[1] else target(*args)


@contextmanager
def autocast_cache(*, enabled: bool) -> Iterator[None]:
    """Enables or disables autocast's cache of casts, and clears it before and after."""
    before = torch.is_autocast_cache_enabled()
    torch.clear_autocast_cache()
    torch.set_autocast_cache_enabled(enabled)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)
        torch.clear_autocast_cache()


def without_autocast() -> Any:
    """A context that disables autocast on all devices."""
    return torch._C._DisableAutocast()


def any_autocast() -> bool:
    """Whether autocast is on for some device."""
    return bool(torch._C._is_any_autocast_enabled())


@contextmanager
def keeping_dispatch_state() -> Iterator[None]:
    """Restores grad mode and autocast on exit."""
    before, cache = DispatchState(), torch.is_autocast_cache_enabled()
    try:
        yield
    finally:
        before.restore()
        torch.set_autocast_cache_enabled(cache)


class DispatchState:
    """A snapshot of grad mode and autocast, to be re-entered."""

    def __init__(self) -> None:
        self._grad = torch.is_grad_enabled()
        self._autocast = {d: (torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _autocast_devices()}

    def restore(self) -> None:
        torch._C._set_grad_enabled(self._grad)
        for device, (enabled, dtype) in self._autocast.items():
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)

    @contextmanager
    def entered(self) -> Iterator[None]:
        with keeping_dispatch_state():
            self.restore()
            yield


def _autocast_devices() -> list[str]:
    return [d for d in ("cpu", "cuda") if torch.amp.is_autocast_available(d)]


RandomState = tuple[torch.Tensor, list[torch.Tensor]]


def random_state() -> RandomState:
    """The state of the random generators of all devices in use."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return torch.get_rng_state(), cuda


@contextmanager
def replayed_randomness(state: RandomState) -> Iterator[None]:
    """Replays random draws from an earlier state, then restores the generators."""
    now = random_state()
    _set_random_state(state)
    try:
        yield
    finally:
        _set_random_state(now)


def _set_random_state(state: RandomState) -> None:
    torch.set_rng_state(state[0])
    if state[1]:
        torch.cuda.set_rng_state_all(state[1])


def global_state() -> list[Any]:
    """All global state that torch's operators, their autograd and their CUDA kernels depend on."""
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    return [
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        [(d, torch.is_autocast_enabled(d), str(torch.get_autocast_dtype(d))) for d in _autocast_devices()],
        torch.is_autocast_cache_enabled(),
        str(torch.get_default_dtype()),
        str(torch.get_default_device()),
        torch.get_deterministic_debug_mode(),
        float32_precisions(),
        [cudnn.enabled, cudnn.deterministic, cudnn.benchmark],
        [cuda.matmul.allow_bf16_reduced_precision_reduction, cuda.matmul.allow_fp16_reduced_precision_reduction],
        [cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled(), cuda.cudnn_sdp_enabled()],
        torch.backends.mkldnn.enabled,
        [
            torch.backends.opt_einsum.is_available(),
            torch.backends.opt_einsum.enabled,
            torch.backends.opt_einsum.strategy,
        ],
        torch.get_num_threads(),
    ]


def float32_precisions() -> list[str]:
    """All of torch's settings for the precision of float32 products and convolutions.

    `torch.get_float32_matmul_precision` raises if the user set the precision of a single backend.
    """
    backends: Any = torch.backends
    cudnn, mkldnn = backends.cudnn, backends.mkldnn
    places = (
        backends,
        backends.cuda.matmul,
        cudnn,
        cudnn.conv,
        cudnn.rnn,
        mkldnn,
        mkldnn.conv,
        mkldnn.matmul,
        mkldnn.rnn,
    )
    return [_precision(place) for place in places]


def uses_tf32() -> bool:
    """Whether float32 products may use TF32 on CUDA."""
    own = _precision(torch.backends.cuda.matmul)
    return (own if own != "none" else _precision(torch.backends)) not in ("none", "ieee")


def _precision(place: Any) -> str:
    return str(getattr(place, "fp32_precision", "none"))

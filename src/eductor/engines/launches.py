"""Launches of Triton kernels without what torch does around each of them, which takes longer than many a kernel.

From version 2.13 on torch does the same. The kernels are its own objects; nothing of it is imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any


def launch_directly(kernels: Iterable[Any], somebody_looks_on: Callable[[], bool]) -> None:
    """From its second launch on a kernel is launched at once, unless somebody looks on, as a profiler does."""
    for kernel in kernels:
        if "run" not in vars(kernel):  # graphs of one text share their kernels
            kernel.run = _settling(kernel, kernel.run, somebody_looks_on)


def _settling(kernel: Any, whole: Callable[..., Any], somebody_looks_on: Callable[[], bool]) -> Callable[..., Any]:
    """The first launch chooses among the forms of a kernel; then there is one."""

    def first(*args: Any, stream: int, **settings: Any) -> Any:
        result = whole(*args, stream=stream, **settings)
        launch = _direct(kernel)
        if launch is not None:
            kernel.run = later(launch)
        return result

    def later(launch: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, stream: int, **settings: Any) -> Any:
            if settings or somebody_looks_on():
                return whole(*args, stream=stream, **settings)
            return launch(*args, stream=stream)

        return run

    return first


def _direct(kernel: Any) -> Callable[..., Any] | None:
    """What launches a kernel, down to the call of the driver; None where something is to be done around it each time."""
    dumps = kernel.dump_launch_params or kernel.dump_launch_tensors
    if len(kernel.launchers) != 1 or kernel.triton_interpret or dumps:
        return None
    (launcher,) = kernel.launchers
    static: Any = getattr(launcher.__globals__.get("runner"), "__self__", None)
    if launcher.store_cubin or not hasattr(static, "C_impl"):
        return None
    # Triton's kernels end with pointers to memory for their own use, where they were compiled to take them.
    unused = (None,) * (int(static.has_global_scratch) + int(static.has_profile_scratch))
    call, function, types = static.C_impl._launch_kernel, static.function, static.arg_tys + "O" * len(unused)
    warps, shared = static.num_warps, static.shared

    def runner(x: int, y: int, z: int, stream: int, *args: Any) -> None:
        call(function, x, y, z, warps, shared, types, args + unused, stream)

    # The launcher is generated: it computes the grid from the arguments, and hands it to its `runner`.
    return FunctionType(launcher.__code__, {**launcher.__globals__, "runner": runner})

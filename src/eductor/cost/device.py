"""Device descriptions for the cost model: launch time, bandwidth, flops per second, parallelism."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from eductor.compat import uses_tf32
from eductor.options import Options

TERA, GIB = 1e12, 1 << 30

VECTOR = 16
"""Bytes per vector load of matrix units, which lose much of their speed if rows are not aligned to it."""


@dataclass(frozen=True, slots=True)
class Device:
    """The properties of a device that the cost of an operator depends on."""

    name: str
    launch: float
    """Seconds of overhead per kernel launch."""
    bandwidth: float
    """Bytes per second between memory and the processor."""
    flops: Mapping[torch.dtype, float]
    """Flops per second of a matrix product that fills the device; matrix units included, where a dtype may use them."""
    units: int
    """How many tiles of a matrix product run in parallel."""
    tile: int
    """The side length of a tile."""
    fuses: bool
    """Whether the engine fuses pointwise operators with their neighbours."""
    packs_bits: bool = False
    """Whether fused kernels read and write eight flags packed in a byte faster than eight bytes."""
    memory: float = math.inf
    """Memory in bytes, if known."""
    aligned: frozenset[torch.dtype] = frozenset()
    """Dtypes whose products run on matrix units, which want rows that begin at multiples of `VECTOR` bytes."""

    def rate(self, dtype: torch.dtype) -> float:
        """Flops per second in a dtype; a dtype without a figure is assumed to run in float32."""
        return self.flops.get(dtype, self.flops[torch.float32])

    def alignment(self, dtype: torch.dtype) -> int:
        """The row alignment, in elements, that matrix units want; 1 if alignment does not matter."""
        return VECTOR // dtype.itemsize if dtype in self.aligned else 1


@dataclass(frozen=True, slots=True)
class _Chip:
    """Data-sheet figures: bytes and dense flops per second."""

    bandwidth: float
    half: float
    tf32: float
    single: float
    double: float


_CHIPS: dict[str, _Chip] = {
    "B200": _Chip(8.0 * TERA, 2250 * TERA, 1100 * TERA, 75 * TERA, 37 * TERA),
    "H200": _Chip(4.8 * TERA, 989 * TERA, 494 * TERA, 67 * TERA, 67 * TERA),
    "H100": _Chip(3.35 * TERA, 989 * TERA, 494 * TERA, 67 * TERA, 67 * TERA),
    "A100": _Chip(1.9 * TERA, 312 * TERA, 156 * TERA, 19.5 * TERA, 19.5 * TERA),
    "L40": _Chip(0.86 * TERA, 362 * TERA, 181 * TERA, 90 * TERA, 1.4 * TERA),
    "L4": _Chip(0.3 * TERA, 121 * TERA, 60 * TERA, 30 * TERA, 0.5 * TERA),
    "V100": _Chip(0.9 * TERA, 125 * TERA, 15.7 * TERA, 15.7 * TERA, 7.8 * TERA),
    "T4": _Chip(0.3 * TERA, 65 * TERA, 8.1 * TERA, 8.1 * TERA, 0.25 * TERA),
}
_OTHER_CHIP = _Chip(1.0 * TERA, 150 * TERA, 40 * TERA, 20 * TERA, 1 * TERA)
_OTHER_UNITS, _OTHER_MEMORY = 108, 16 * GIB

_ACHIEVED = 0.7
"""The fraction of data-sheet figures that good kernels reach."""

_CUDA_LAUNCH, _GRAPH_LAUNCH, _CPU_LAUNCH = 5e-6, 1.5e-6, 3e-6
_CORE_BANDWIDTH, _CPU_BANDWIDTH, _CORE_FLOPS = 8e9, 2e11, 5e10


def device_of(device: torch.device, options: Options | None = None) -> Device:
    """The description of a device under the options of a compile: CUDA graphs make launches cheap, engines fuse or not."""
    options = options or Options()
    engine = options.engine
    fuses = engine != "aten" if engine is None or isinstance(engine, str) else bool(getattr(engine, "fuses", False))
    if device.type == "cuda":
        return _cuda(device.index, options.always_replays, fuses, uses_tf32())
    return _cpu(torch.get_num_threads(), fuses)


def cuda_device(
    name: str, units: int, memory: int, *, graphs: bool = False, fuses: bool = True, tf32: bool = False
) -> Device:
    """A CUDA device by name, with `units` multiprocessors; `tf32`: float32 may use the matrix units."""
    chip = next((chip for key, chip in _CHIPS.items() if key in name), _OTHER_CHIP)
    single = chip.tf32 if tf32 else chip.single
    rates = {
        torch.float16: chip.half,
        torch.bfloat16: chip.half,
        torch.float32: single,
        torch.float64: chip.double,
    }
    on_units = {torch.float16, torch.bfloat16} | ({torch.float32} if single > chip.single else set())
    return Device(
        name=name,
        launch=_GRAPH_LAUNCH if graphs else _CUDA_LAUNCH,
        bandwidth=chip.bandwidth * _ACHIEVED,
        flops={dtype: rate * _ACHIEVED for dtype, rate in rates.items()},
        units=units,
        tile=128,
        fuses=fuses,
        memory=memory,
        aligned=frozenset(on_units),
    )


@functools.cache
def _cpu(threads: int, fuses: bool) -> Device:
    single = _CORE_FLOPS * threads
    return Device(
        name=f"a CPU with {threads} {'thread' if threads == 1 else 'threads'}",
        launch=_CPU_LAUNCH,
        bandwidth=min(_CORE_BANDWIDTH * threads, _CPU_BANDWIDTH),
        flops={torch.float32: single, torch.float64: single / 2},
        units=threads,
        tile=16,
        fuses=fuses,
        packs_bits=fuses,
    )


@functools.cache
def _cuda(index: int | None, graphs: bool, fuses: bool, tf32: bool) -> Device:
    return cuda_device(*_read(index), graphs=graphs, fuses=fuses, tf32=tf32)


def _read(index: int | None) -> tuple[str, int, int]:
    """Name, multiprocessors and memory of a device, which this machine may not have."""
    if not torch.cuda.is_available() or (index or 0) >= torch.cuda.device_count():
        return "an unknown CUDA device", _OTHER_UNITS, _OTHER_MEMORY
    found: Any = torch.cuda.get_device_properties(torch.cuda.current_device() if index is None else index)
    return found.name, found.multi_processor_count, found.total_memory

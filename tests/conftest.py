"""What all tests share: quiet torch, seeds, and no state that leaks from one test to the next."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")
os.environ["EDUCTOR_CACHE_MIB"] = "0"  # what is tested runs; tests/cache keeps graphs in folders of its own
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # workers that all use all cores wait for each other

import pytest
import torch


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()


@pytest.fixture(autouse=True, scope="module")
def _left_behind() -> Iterator[None]:
    """What a file of tests leaves in the caches of torch no later collection looks at: in the end each took seconds."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums that several threads share round in an order of their own."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))

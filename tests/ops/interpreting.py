"""Kernels on the CPU: in a process of its own, since Triton decides at its import whether it interprets."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


def run_interpreted(kernel: str) -> None:
    """Runs the checks of a kernel in Triton's interpreter."""
    script = Path(__file__).with_name("interpreted_kernels.py")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, str(script), kernel], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr

"""Launches kernels in a world of their own."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from pullback.interpreter.launch import run
from pullback.interpreter.worlds import World, inside


def launch(kernel: Any, *args: Any, grid: Any = (1,), world: World | None = None, **constants: Any) -> World:
    """Run a kernel on CPU tensors; return the world, lifted if none is given."""
    with inside(world or World()) as here:
        run(kernel, args, grid, constants)
    return here

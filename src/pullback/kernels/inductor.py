"""Graphs compiled by PyTorch's Inductor: it fuses reductions too, and what is around matrix products.

Neither Dynamo nor its guards take part: the graph is there, and it is called with what it was recorded for alone.
Inductor computes some functions in its own way (on the CPU expm1 as exp − 1, atanh by logarithms), so that stable
forms lose there what they gained; it is never chosen for a user who did not ask for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from pullback import _torch
from pullback.errors import RunnerError
from pullback.kernels.notice import noticed


def lowered(module: fx.GraphModule) -> Callable[..., list[Any]]:
    """Return a function of the graph's placeholders that returns the list of its results.

    Raises:
        RunnerError: if Inductor cannot compile it here.
    """
    examples = [_torch.traced_value(node) for node in module.graph.find_nodes(op="placeholder")]
    try:
        with noticed("compiling by Inductor"):
            return _torch.compiled_by_inductor(module, examples)
    except Exception as error:  # a missing compiler, an op that it has no lowering for
        first, *_ = f"{type(error).__name__}: {error}".splitlines()
        raise RunnerError(f"Inductor cannot compile a graph ({first})") from error


def settings() -> tuple[Any, ...]:
    """Return what Inductor reads of PyTorch's settings when it compiles."""
    return torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision(), torch.get_num_threads()

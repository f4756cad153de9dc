"""The tenth part of the labels: packages that were chosen and read after the ninth part had been worked on.

They were chosen by field, before anything was known of them but that they hold custom functions and install without a
compiler; pysiglib, philtorch, deepwave and flagquantum hold compiled code, but for their functions. Here is what their
proofs share beside those of the parts before.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from functools import partial

import torch

from labels import Bug
from labels.fresh import Make, second_is_wrong
from labels.last import derivative_of_backward_is_wrong

NARROW = "half precision is not taken: the forward says so"
VIEW = "the output is a view, or the input itself: changing it in place raises, with PyTorch's message on views"
NO_FUNC = "torch.func does not take it: it has no setup_context, or calls NumPy or C, and PyTorch says so"


def cut(make: Make, how: str, linear: bool = False) -> Bug:
    """The second derivative is silently wrong; with a linear function, only through the cotangent."""
    proof = second_is_wrong if linear else derivative_of_backward_is_wrong
    return Bug(f"{how}: the second derivative is silently wrong", SECOND, partial(proof, make))


SECOND = ("PB401", "PB402", "PB404", "PB604")


def column_major(x: torch.Tensor) -> torch.Tensor:
    """The same numbers, with the last dimension varying slowest in memory."""
    return x.transpose(0, -1).contiguous().transpose(0, -1)


def bare(name: str) -> None:
    """Enter a package without running its `__init__`, which imports much that takes no part in the functions."""
    if name not in sys.modules:
        spec = importlib.util.find_spec(name)
        module = types.ModuleType(name)
        module.__spec__ = spec
        module.__path__ = list(spec.submodule_search_locations)
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)

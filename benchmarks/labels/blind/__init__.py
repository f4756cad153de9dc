"""The fourth part of the labels: packages that nobody had looked at when the audit was worked on by the other three.

They were chosen by field, before anything was known of them but that they hold custom functions and install as pure
Python. Here is what they share beside `labels.fresh`.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from labels.fresh import Make, called, gradients, linear, prepared, raises


def bare(*names: str) -> None:
    """Enter packages without running their `__init__`, which imports what takes no part in the functions."""
    for name in names:
        if name not in sys.modules:
            spec = importlib.util.find_spec(name)
            module = types.ModuleType(name)
            module.__path__ = list(spec.submodule_search_locations or ())  # type: ignore[union-attr]
            _enter(module)


def stub(name: str, **attributes: Any) -> None:
    """Put an empty module, with some attributes, in the place of one that takes no part in the functions."""
    if name not in sys.modules:
        module = types.ModuleType(name)
        vars(module).update(attributes)
        _enter(module)


def _enter(module: types.ModuleType) -> None:
    sys.modules[module.__name__] = module
    parent, _, child = module.__name__.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)


def raises_in(make: Make, dtype: torch.dtype, *texts: str) -> bool:
    """Whether the backward fails in a dtype that the forward takes."""
    function, arguments, _ = prepared(make, dtype)
    called(function, arguments)
    return raises(lambda: gradients(make, dtype), *texts)


def raises_with(make: Make, change: Callable[[int, Any], Any], *texts: str) -> bool:
    """Whether forward or backward fails where `change(i, argument)` replaces the arguments."""

    def run() -> None:
        function, arguments, which = prepared(make)
        leaves = [change(i, arguments[i]).detach().requires_grad_() for i in which]
        arguments = [change(i, a) for i, a in enumerate(arguments)]
        for i, leaf in zip(which, leaves, strict=True):
            arguments[i] = leaf
        torch.autograd.grad(linear(called(function, arguments)), leaves, allow_unused=True)

    return raises(run, *texts)

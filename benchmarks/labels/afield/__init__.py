"""The ninth part of the labels: packages that were chosen and read after the eighth part had been worked on.

They were chosen by field, before anything was known of them but that they hold custom functions and install as pure
Python (torchrl is compiled; its functions are Python). Here is what their proofs share beside `labels.fresh`,
`labels.last`, `labels.unseen`, `labels.outside` and `labels.beyond`.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from typing import Any

import torch
from torch import Tensor

from labels.blind import stub
from labels.fresh import Make, raises
from labels.last import gradients_of

MATRIX = "the argument is symmetric, and one triangle of it is read: differences of single numbers are not meant"


def stand_in(name: str, **attributes: Any) -> None:
    """Put an empty module in the place of one that takes no part in the functions, with what `find_spec` looks for."""
    if name not in sys.modules:
        stub(name, **attributes)
        sys.modules[name].__spec__ = ModuleSpec(name, None)
        sys.modules[name].__path__ = []


def expanded_cotangent_raises(make: Make, *texts: str) -> bool:
    """Whether ones that are expanded from a single number, as `sum()` hands them in, make the backward fail."""
    gradients_of(make, lambda y: y.new_ones(y.shape))
    return raises(lambda: gradients_of(make, lambda y: y.new_ones(()).expand(y.shape)), *texts)


def with_parts(make: Make) -> Make:
    """The call with real and imaginary parts, in a last dimension, in the place of its complex arguments."""

    def made() -> tuple[Any, tuple[Any, ...]]:
        function, arguments = make()
        which = [isinstance(a, Tensor) and a.is_complex() for a in arguments]

        def of_parts(*given: Any) -> Any:
            return function(*(torch.view_as_complex(a) if c else a for a, c in zip(given, which, strict=True)))

        return of_parts, tuple(torch.view_as_real(a) if c else a for a, c in zip(arguments, which, strict=True))

    return made

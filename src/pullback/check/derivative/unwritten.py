"""Memory that was allocated and never written: its content, and so every verdict, differs from run to run.

One forward and backward run with new memory filled with NaN, which PyTorch does in its deterministic mode, and a second
time with zeros in it. A NaN in the first run only was never written.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from pullback import _torch
from pullback.check.case import Case
from pullback.check.subject import Subject
from pullback.check.trial import Raised, forward, standard_cotangents, vjp

_ALLOCATE = (
    torch.ops.aten.empty,
    torch.ops.aten.empty_like,
    torch.ops.aten.empty_strided,
    torch.ops.aten.new_empty,
    torch.ops.aten.new_empty_strided,
)


@dataclass(frozen=True, slots=True)
class Unwritten:
    """Where memory that was never written comes out.

    Attributes:
        kind: of an output of the forward, or of a gradient.
        order: which output, or which input's gradient.
        index: its first element that was never written.
    """

    kind: Literal["output", "gradient"]
    order: int
    index: tuple[int, ...]


def unwritten(subject: Subject, case: Case) -> Unwritten | None:
    """Return where the forward, or else the backward, returns memory that it never wrote; `None` if nowhere."""
    try:
        with _fresh_memory_is_nan():
            outputs, gradients = _values(subject, case)
        with _FreshMemoryIsZero():  # type: ignore[no-untyped-call]
            usual_outputs, usual_gradients = _values(subject, case)
    except Raised:
        return None
    return _first("output", outputs, usual_outputs) or _first("gradient", gradients, usual_gradients)


def _values(subject: Subject, case: Case) -> tuple[list[Tensor | None], list[Tensor | None]]:
    run = forward(subject, case)
    outputs: list[Tensor | None] = [out.detach() for out in run.outputs]
    return outputs, vjp(run, standard_cotangents(run.roots))


@contextmanager
def _fresh_memory_is_nan() -> Iterator[None]:
    settings: Any = torch.utils.deterministic
    mode, fills = torch.get_deterministic_debug_mode(), settings.fill_uninitialized_memory
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about operations that have no deterministic form, which is no matter here
        try:
            torch.set_deterministic_debug_mode("warn")
            settings.fill_uninitialized_memory = True
            yield
        finally:
            torch.set_deterministic_debug_mode(mode)
            settings.fill_uninitialized_memory = fills


class _FreshMemoryIsZero(_torch.DispatchMode):
    """Fills new memory with zeros: the NaN of the other run might be reused, and count as a value."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        return made.zero_() if func.overloadpacket in _ALLOCATE else made


def _first(
    kind: Literal["output", "gradient"], filled: Sequence[Tensor | None], usual: Sequence[Tensor | None]
) -> Unwritten | None:
    """Return the first element that is NaN where fresh memory is, and only there."""
    for order, (there, here) in enumerate(zip(filled, usual, strict=False)):
        if there is None or here is None or there.shape != here.shape:
            continue
        where = (there.isnan() & ~here.isnan()).nonzero()
        if len(where):
            return Unwritten(kind, order, tuple(where[0].tolist()))
    return None

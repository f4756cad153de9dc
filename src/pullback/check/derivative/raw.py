"""The gradients that a backward itself returned, against the inputs they belong to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.check.case import Case
from pullback.check.derivative.recorder import record_base
from pullback.check.subject import Subject
from pullback.check.trial import Raised, forward


@dataclass(frozen=True, slots=True)
class Misshapen:
    """A returned gradient whose shape is not the input's.

    Attributes:
        name, expected, returned: the input and the two shapes.
        summed: the engine can sum it down to the input's shape, and does.
        is_broadcast: the input was broadcast in the forward and its gradient was not summed back.
    """

    name: str
    expected: tuple[int, ...]
    returned: tuple[int, ...]
    summed: bool
    is_broadcast: bool


def returned_gradients(subject: Subject, case: Case) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield (name, input, gradient as returned) for each differentiated argument that got one."""
    for name, x, gradient, _ in placed_gradients(subject, case):
        yield name, x, gradient


def placed_gradients(subject: Subject, case: Case) -> Iterator[tuple[str, Tensor, Tensor, str]]:
    """Yield (name, input, gradient as returned, where it is if not on the input's device), as `returned_gradients`."""
    arguments = case.arguments()[0]
    for call in record_base(subject, case):
        placed = zip(case.top_level(len(arguments)), call.returned, call.places, strict=False)
        for position, gradient, place in placed:
            if position is not None and position in case.wrt and isinstance(gradient, Tensor) and place is not None:
                x = case.values[position]
                here = place.type == (subject.device or x.device).type
                yield case.names[position], x, gradient, "" if here else str(place)


def misshapen(subject: Subject, case: Case) -> Iterator[Misshapen]:
    """Yield every returned gradient of the wrong shape; nothing if the forward refuses the case."""
    try:
        outputs = forward(subject, case).outputs
    except Raised:
        return
    for name, x, gradient in returned_gradients(subject, case):
        if gradient.shape == x.shape:
            continue
        summed = _expandable(x.shape, gradient.shape)
        shapes = [out.shape for out in outputs]
        grew = (
            summed and gradient.shape in shapes and x.numel() < gradient.numel() and _others_explain(case, x, gradient)
        )
        yield Misshapen(name, tuple(x.shape), tuple(gradient.shape), summed, grew)


def _others_explain(case: Case, x: Tensor, gradient: Tensor) -> bool:
    """Whether the other tensors' shapes explain that the output is wider than `x`."""
    others = [v.shape for v in case.values if isinstance(v, Tensor) and v is not x]
    try:
        return bool(others) and torch.broadcast_shapes(x.shape, *others) == gradient.shape
    except RuntimeError:
        return False


def _expandable(shape: torch.Size, wanted: torch.Size) -> bool:
    try:
        return bool(torch.broadcast_shapes(shape, wanted) == wanted)
    except RuntimeError:
        return False

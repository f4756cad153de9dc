"""Comparison of two gradients that should be equal, and of one backward with the laws of linearity in the cotangent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback.check.case import Case
from pullback.check.subject import Subject
from pullback.check.trial import forward, standard_cotangents, vjp

# Other orders of a sum of n terms differ by up to about n eps of the terms (N. J. Higham, Accuracy and Stability of
# Numerical Algorithms, 2nd edition, 2002, section 4.2). In 16 bits that is 20 or 13 eps; float32 has 8400. A float64
# call may compute in float32 inside, whence 1e-6 and not 1e-12: that is 8 eps of float32.
_ROUNDING = {
    torch.float64: 1e-6,
    torch.complex128: 1e-6,
    torch.float32: 1e-3,
    torch.complex64: 1e-3,
    torch.float16: 2e-2,
    torch.bfloat16: 1e-1,
}
"""Relative difference that another order of the same operations may make (float32 internals included)."""


@dataclass(frozen=True, slots=True)
class TensorDifference:
    """Where two lists of tensors differ most.

    Attributes:
        tensor_index: which tensor.
        index: which element; `None` if a tensor is missing or has another shape.
        expected, got: the values there, or a description.
    """

    tensor_index: int
    index: tuple[int, ...] | None
    expected: float | str
    got: float | str

    def __str__(self) -> str:
        at = f" at {list(self.index)}" if self.index else ""
        numbers = show(self.expected), show(self.got)
        if numbers[0] == numbers[1]:  # they part in a later digit
            numbers = str(self.expected), str(self.got)
        return f"expected {numbers[0]}, got {numbers[1]}{at}"


def equal_or_nan(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same numbers, NaN where the other has NaN."""
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


def first_of(names: Sequence[str]) -> str:
    """Write the first of some names, and how many more there are."""
    return names[0] if len(names) == 1 else f"{names[0]} (and {len(names) - 1} more)"


def subscript(index: Sequence[int] | None) -> str:
    """Write the index of an element: "[1, 2]"; nothing for a tensor without dimensions."""
    return f"[{', '.join(map(str, index))}]" if index else ""


def show(value: float | str) -> str:
    """Write a number with six digits."""
    return value if isinstance(value, str) else f"{value:.6g}"


def gradients(
    subject: Subject,
    case: Case,
    cotangents: Sequence[Tensor | None] | None = None,
    mask: Sequence[bool] | None = None,
    call: Callable[..., Any] | None = None,
) -> list[Tensor | None]:
    """Run forward and backward on fresh copies; return the gradient of each input that requires grad.

    Args:
        subject: the function.
        case: the arguments.
        cotangents: one per differentiable output; by default `standard_cotangents`.
        mask: which inputs require grad; all by default.
        call: called in place of the subject (a transform of it).

    Raises:
        Raised: if forward or backward raises.
    """
    run = forward(subject, case, mask, call=call)
    return vjp(run, standard_cotangents(run.roots, run.differentiable) if cotangents is None else cotangents)


def difference(
    expected: Sequence[Tensor | None],
    got: Sequence[Tensor | None],
    rounding: float | None = None,
    floor: float = 0.0,
) -> TensorDifference | None:
    """Return where `got` differs most from `expected` beyond rounding; `None` if it does not.

    A missing gradient equals zero, as it does for the engine. NaN equals NaN. `rounding` is relative to the largest
    element of each tensor; the default depends on the dtype. Differences below `floor` do not count: if all elements
    cancel, their size is not a measure of the rounding error before that.
    """
    worst: TensorDifference | None = None
    worst_excess = 1.0
    for tensor_index, (e, g) in enumerate(zip(expected, got, strict=True)):
        if e is None and g is None:
            continue
        e = torch.zeros_like(g) if e is None else e  # type: ignore[arg-type]
        g = torch.zeros_like(e) if g is None else g
        if e.shape != g.shape:
            return TensorDifference(tensor_index, None, f"shape {tuple(e.shape)}", f"shape {tuple(g.shape)}")
        if not e.numel():
            continue
        excess = _excess(e.detach(), g.detach(), rounding, floor)
        if float(excess.max()) > worst_excess:
            worst_excess = float(excess.max())
            index = torch.unravel_index(excess.argmax(), e.shape)
            worst = TensorDifference(tensor_index, tuple(map(int, index)), _number(e[index]), _number(g[index]))
    return worst


def _excess(e: Tensor, g: Tensor, rounding: float | None, floor: float) -> Tensor:
    """Return |e − g| over the allowed error, rounding · (max |e| + |e|) + floor, for each element."""
    if rounding is None:
        rounding = max(_ROUNDING.get(t.dtype, 0.0) for t in (e, g))
    wide = torch.complex128 if e.is_complex() or g.is_complex() else torch.float64
    e, g = e.to(wide), g.to(wide)
    gap = (e - g).abs()
    equal_or_nan = (e == g) | (e.isnan() & g.isnan())
    # An element may be a sum of terms as large as the largest element, with a rounding error of that size. The last
    # term keeps 0 / 0 out.
    finite = torch.where(torch.isfinite(e), e, 0).abs()
    allowed = rounding * (finite.max() + finite) + floor + 1e-300
    return torch.where(equal_or_nan, 0.0, (gap / allowed).nan_to_num(nan=torch.inf, posinf=torch.inf))


def _number(value: Tensor) -> float | str:
    number = value.detach().item()
    return number if isinstance(number, int | float) else str(number)


Gradients = Sequence[Tensor | None]
_CANCELLED = 64.0
"""Units in the last place of the cotangent below which a gradient is rounding error of cancelling terms."""


def nonlinearity(
    subject: Subject, case: Case, roots: Sequence[Tensor], beat: Callable[[], None]
) -> tuple[str, TensorDifference] | None:
    """The law of linearity that the backward violates, and where; `None` if all hold.

    Raises:
        Raised: if forward or backward raises.
    """
    # A backward b is linear in its cotangent. Multiplying by 4, −1 or 0 commutes with rounding, up to underflow: the
    # first two laws and the last hold to the bit for whatever linear ops b is made of, and fail for a clipped, absolute
    # or normalised cotangent, or an added constant. Additivity excludes what is homogeneous and odd, but not linear, as
    # g max|g| / ‖g‖. Its h has sum 0, which a backward may take for no cotangent.
    g, h = standard_cotangents(roots), [_zero_sum(root) for root in roots]

    floor = _CANCELLED * max((torch.finfo(a.dtype).eps * float(a.abs().max()) for a in g if a.numel()), default=0.0)

    def backward(cotangents: Sequence[Tensor]) -> list[Tensor | None]:
        beat()
        return gradients(subject, case, cotangents)

    of_g, of_h = backward(g), backward(h)
    laws = (
        ("backward(4 g) = 4 backward(g)", _combine(4, of_g, 0, of_g), backward([4 * a for a in g])),
        ("backward(-g) = -backward(g)", _combine(-1, of_g, 0, of_g), backward([-a for a in g])),
        (
            "backward(g + h) = backward(g) + backward(h)",
            _combine(1, of_g, 1, of_h),
            backward([a + b for a, b in zip(g, h, strict=True)]),
        ),
        ("backward(0) = 0", _combine(0, of_g, 0, of_g), backward([0 * a for a in g])),
    )
    for law, expected, got in laws:
        where = difference(expected, got, floor=floor)
        if where is not None:
            return law, where
    return None


def ignores_cotangent(subject: Subject, case: Case, roots: Sequence[Tensor], tensor_index: int) -> bool:
    """Whether a gradient that is not zero is the same, to the bit, for a cotangent, four times it and its negative.

    A sign or a clipped gradient follows the cotangent's sign, at least.
    """
    g = standard_cotangents(roots)
    first, *others = (gradients(subject, case, [by * a for a in g])[tensor_index] for by in (1, 4, -1))
    if first is None or not bool((first != 0).any()):
        return False
    return all(other is not None and torch.equal(first, other) for other in others)


def _zero_sum(root: Tensor) -> Tensor:
    """Return a cotangent of alternating signs whose sum is exactly 0, but which is not 0 itself."""
    signs = 1 - 2 * (torch.arange(root.numel()) % 2)
    if root.numel() % 2:
        signs[-1] = 0
    return signs.reshape(root.shape).to(root.dtype)


def _combine(a: float, first: Gradients, b: float, second: Gradients) -> list[Tensor | None]:
    return [
        None if x is None or y is None else (a * x + b * y if b else a * x) for x, y in zip(first, second, strict=True)
    ]

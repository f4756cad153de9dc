"""A numeric derivative with confirmation, before it makes anything wrong.

A ripple shorter than the steps can look like a smooth curve of another slope, with a small error bar. Steps 4096 times
smaller resolve it, and resolve a slow curve as well, only with more of its rounding noise. So an estimate that
disagrees with the returned gradient is repeated with those, and the one with the smaller error bar counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pullback.check.derivative.oracle import SIGNIFICANT, Curve, Estimate, differentiate, differentiate_briefly

_FINER = {torch.float64: 2.0**-12, torch.complex128: 2.0**-12, torch.float32: 2.0**-6, torch.complex64: 2.0**-6}
"""By the dtype of the moved tensors; half precision resolves no smaller steps."""
_BRIEF = 2.0**-6
"""That of the second of two short ladders."""
_SHARP = 1e-4
"""Part of the derivative that ten bars of a short ladder may be."""
_GROSS = 10.0
"""Multiple of the bar of two short ladders by which they have to disagree where they are not sharp."""


def confirmed(
    curve: Curve,
    disagrees: Callable[[Estimate], bool],
    moved: Sequence[Tensor],
    agrees: Callable[[Estimate], bool] | None = None,
) -> Estimate:
    """Return the derivative of `curve` at 0, from two ladders of steps if the first one disagrees.

    Args:
        curve: the function to differentiate.
        disagrees: whether an estimate contradicts the gradient in question.
        moved: the tensors that the curve moves; the narrowest dtype limits the step.
        agrees: whether an estimate supports that gradient, to make do with few samples of a slow curve where it is
            smooth. By default there are many.
    """
    resolved = all(t.dtype in (torch.float64, torch.complex128) for t in moved)
    if agrees is not None and resolved and (found := _briefly(curve, agrees, disagrees)) is not None:
        return found
    found = differentiate(curve)
    if not disagrees(found):
        return found
    factors = [_FINER.get(t.dtype) for t in moved]
    if any(factor is None for factor in factors):
        return found
    return _sharper(found, _along(curve, max(factor for factor in factors if factor is not None)))


def _briefly(
    curve: Curve, agrees: Callable[[Estimate], bool], disagrees: Callable[[Estimate], bool]
) -> Estimate | None:
    """Return the derivative from one short ladder, or two that disagree with the gradient; `None` where they are blunt.

    The difference of the two, of steps whose rounding errors differ by much, stands for the noise. Where it is small
    beside the disagreement, they need not be sharp.
    """
    found = differentiate_briefly(curve)
    if is_sharp(found) and agrees(found):
        return found
    if not _is_smooth(found):
        return None
    fine = _along(curve, _BRIEF, differentiate_briefly)
    if fine.low.shape != found.low.shape:
        return None
    bar = torch.maximum(torch.maximum(found.bar, fine.bar), (fine.low - found.low).abs())
    both = replace(found, bar=bar, kink=found.kink | fine.kink, valid=found.valid & fine.valid)
    is_gross = _is_smooth(both) and disagrees(replace(both, bar=_GROSS * bar))
    return both if is_gross or is_sharp(both) else None


def _is_smooth(found: Estimate) -> bool:
    return bool(found.valid.all()) and not bool(found.kink.any())


def is_sharp(found: Estimate) -> bool:
    """Whether a derivative exists everywhere, and is known to 1e-4 of it."""
    return _is_smooth(found) and bool(SIGNIFICANT * found.bar.sum() <= _SHARP * found.low.abs().sum())


def _along(curve: Curve, factor: float, derivative: Callable[[Curve], Estimate] = differentiate) -> Estimate:
    """Return the estimate from steps `factor` times as long."""
    found = derivative(lambda t: curve(factor * t))
    return replace(found, low=found.low / factor, high=found.high / factor, bar=found.bar / factor)


def _sharper(coarse: Estimate, fine: Estimate) -> Estimate:
    """Return, for each element, the estimate with the smaller bar; none where the other contradicts it."""
    if coarse.low.shape != fine.low.shape:
        return coarse
    better = fine.valid & (~coarse.valid | (fine.bar <= coarse.bar))
    gap = torch.maximum(fine.low - coarse.high, coarse.low - fine.high)
    contradicted = fine.valid & ~better & (gap > SIGNIFICANT * (fine.bar + coarse.bar))

    def pick(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(better, a, b)

    return Estimate(
        pick(fine.low, coarse.low),
        pick(fine.high, coarse.high),
        pick(fine.bar, coarse.bar),
        pick(fine.kink, coarse.kink),
        better | (coarse.valid & ~contradicted),
        coarse.magnitude,
        pick(fine.flat, coarse.flat),
    )

"""Reverse over forward: is the graph of a tangent that tangent's derivative?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.autograd.forward_ad as fwad
from torch import Tensor

from pullback.check.contexts.eager import EagerReference
from pullback.check.derivative.forward_mode import NEGLIGIBLE
from pullback.check.derivative.oracle import SIGNIFICANT, Estimate, confirmed
from pullback.check.derivative.sampler import direction_like
from pullback.check.trial import as_real, guarded, reseed

_SEED = 7
_AGREEMENT = 1e-6
_SHARP = 1e-4
"""Relative error bar above which a derivative is estimated with finer steps."""
_TELLING = 0.1
"""Relative error bar above which a derivative is undecided."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The derivative of <g, tangent> along a direction: numeric, with its error bar, and by its graph.

    `decided` is false if the error bar is too large.
    """

    expected: float
    got: float
    bar: float
    directions: Sequence[Tensor]
    decided: bool = True


def tangent_graph_mismatch(setting: EagerReference, tangents: Sequence[Tensor]) -> Mismatch | None:
    """Compare the gradient of a tangent with the numeric derivative of that tangent.

    The numeric derivative is of forward mode alone, so the result does not depend on the backward.

    Raises:
        Raised: if forward mode, or the backward through it, raises.
    """
    generator = torch.Generator().manual_seed(_SEED)
    directions = [direction_like(x, generator) for x in setting.inputs]
    leaves = setting.leaves()
    product = _product(setting, leaves, tangents)
    gradients: Sequence[Tensor | None] = [None] * len(leaves)
    if product.requires_grad:
        with guarded("the backward through a tangent"):
            gradients = torch.autograd.grad(product, leaves, allow_unused=True)
    terms = [as_real(g) * as_real(v) for g, v in zip(gradients, directions, strict=True) if g is not None]
    got = float(sum(t.sum() for t in terms))
    size = float(sum(t.abs().sum() for t in terms))

    def curve(t: float) -> Tensor:
        moved = [(x + t * v).to(x.dtype) for x, v in zip(setting.inputs, directions, strict=True)]
        return as_real(_product(setting, moved, tangents)).reshape(1)

    def blurred(estimate: Estimate, part: float) -> bool:
        telling = part * (size + abs(float(estimate.low))) + NEGLIGIBLE * float(estimate.magnitude)
        zero = size == 0 and bool(estimate.flat)
        return SIGNIFICANT * float(estimate.bar) > telling and not zero

    def disagrees(estimate: Estimate) -> bool:
        return mismatch(estimate) is not None or blurred(estimate, _SHARP)

    def mismatch(estimate: Estimate) -> Mismatch | None:
        expected, bar = float(estimate.low), float(estimate.bar)
        if bool(estimate.kink):
            return None
        if bool(estimate.valid) and abs(got - expected) > SIGNIFICANT * bar + _AGREEMENT * (size + abs(expected)):
            return Mismatch(expected, got, bar, directions)
        undecided = blurred(estimate, _TELLING) or not bool(estimate.valid)
        return Mismatch(expected, got, bar, directions, decided=False) if undecided else None

    return mismatch(confirmed(curve, disagrees, moved=setting.inputs))


def _product(setting: EagerReference, inputs: Sequence[Tensor], tangents: Sequence[Tensor]) -> Tensor:
    """Return <g, tangent of the outputs> at `inputs`."""
    reseed()
    with guarded("forward mode"), fwad.dual_level():
        duals = [fwad.make_dual(x, t) for x, t in zip(inputs, tangents, strict=True)]
        total = torch.zeros((), dtype=torch.float64)
        for g, out in zip(setting.cotangents, setting.function()(*duals), strict=True):
            tangent = fwad.unpack_dual(out).tangent
            if tangent is not None:
                total = total + (g.conj() * tangent).real.sum()
        return total

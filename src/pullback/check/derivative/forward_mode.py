"""Forward mode: tangents by dual numbers, and how they compare with the other derivatives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.autograd.forward_ad as fwad
from torch import Tensor

from pullback.check.case import Case, is_differentiable
from pullback.check.derivative.oracle import SIGNIFICANT, Estimate, confirmed
from pullback.check.derivative.sampler import direction_like
from pullback.check.subject import Subject
from pullback.check.trial import Raised, as_real, forward, guarded

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_AGREEMENT = 1e-7
_SHARP = 1e-4
"""Relative error bar above which a derivative is estimated with finer steps."""
_UNDECIDED = 0.1
"""Relative error bar above which a derivative is undecided."""
NEGLIGIBLE = 1e-6
"""Part of the values themselves below which a derivative counts as zero, being rounding error."""


@dataclass(frozen=True, slots=True)
class JvpDisagreement:
    """The element of a tangent, along `direction` of an input, farthest from the numeric derivative.

    `decided` is false if no element of any output has a numeric derivative with a small enough error bar.
    """

    output: int
    index: tuple[int, ...]
    expected: float
    got: float
    bar: float
    input_index: int
    direction: Tensor
    decided: bool = True


def has_jvp(subject: Subject) -> bool:
    """Whether forward mode is the subject's own doing: a `jvp` method, or any callable."""
    if subject.kind == "function":
        return bool(subject.target.jvp is not torch.autograd.Function.jvp)
    return subject.kind == "callable"


def tangents(subject: Subject, case: Case, directions: dict[int, Tensor]) -> list[tuple[Tensor, Tensor | None]]:
    """Return each floating output with its tangent, for the given tangents of some inputs.

    Raises:
        Raised: if the subject does not support forward mode, or fails in it.
    """
    with fwad.dual_level():
        duals = [
            fwad.make_dual(t.clone(), directions[input_index].clone()) if input_index in directions else t.clone()
            for input_index, t in enumerate(case.tensors)
        ]
        with torch.enable_grad():
            run = forward(subject, case, moved=duals)
        found = []
        with guarded("forward mode"):
            for out in run.outputs:
                if is_differentiable(out):
                    primal, tangent = fwad.unpack_dual(out)
                    found.append((primal, tangent))
        return found


def jvp_disagreement(audit: Audit, input_index: int) -> JvpDisagreement | None:
    """Compare the tangent along a random direction of one input with the numeric derivative.

    `None` where they agree, or where there is no tangent.
    """
    if not has_jvp(audit.subject):
        return None
    x = audit.base.tensors[input_index]
    direction = direction_like(x, audit.generator)
    try:
        found = tangents(audit.subject, audit.base, {input_index: direction})
    except Raised:
        return None
    marked = {p for p, out in enumerate(audit.base_run.outputs) if is_differentiable(out)}
    in_graph = [rank for rank, p in enumerate(sorted(marked)) if p in audit.base_run.differentiable]
    undecided = []
    for rank in in_graph:
        primal, tangent = found[rank]
        got = as_real(torch.zeros_like(primal) if tangent is None else tangent)
        estimate = _estimate(audit, input_index, direction, rank, got)
        worst = _worst_element(estimate, got, direction.dtype)
        if worst is not None:
            position, expected, bar = worst
            shape = torch.view_as_real(primal).shape if primal.is_complex() else primal.shape
            index = tuple(int(i) for i in torch.unravel_index(torch.tensor(position), shape)) if shape else ()
            return JvpDisagreement(rank, index, expected, float(got[position]), bar, input_index, direction)
        undecided.append(bool(got.numel()) and bool(_blurred(estimate, got, _UNDECIDED).all()))
    if undecided and all(undecided):
        return JvpDisagreement(in_graph[0], (), torch.nan, torch.nan, torch.nan, input_index, direction, decided=False)
    return None


def _estimate(audit: Audit, input_index: int, direction: Tensor, rank: int, got: Tensor) -> Estimate:
    relaxation = audit.subject.relaxation

    def curve(t: float) -> Tensor:
        moved = [x + t * direction if o == input_index else x for o, x in enumerate(audit.base.tensors)]
        outs = [
            o for o in forward(audit.subject, audit.base, moved=moved, call=relaxation).outputs if is_differentiable(o)
        ]
        return as_real(outs[rank])

    def disagrees(estimate: Estimate) -> bool:
        wrong = _worst_element(estimate, got, direction.dtype) is not None
        return wrong or bool(_blurred(estimate, got, _SHARP).any())

    return confirmed(curve, disagrees, moved=[direction])


def _blurred(estimate: Estimate, got: Tensor, part: float) -> Tensor:
    """Mask of the elements whose error bar exceeds this part of the largest tangent."""
    if got.shape != estimate.low.shape:
        return torch.zeros_like(estimate.valid)
    # Ten bars may be as wide as a part of the derivative, or as the rounding of the values themselves, which is all
    # that there is where the derivative is 0.
    largest = (estimate.low.abs() + got.abs()).nan_to_num(nan=0.0).max() if got.numel() else 0.0
    wide = SIGNIFICANT * estimate.bar > part * largest + NEGLIGIBLE * estimate.magnitude
    return ~estimate.valid | (wide & ~(estimate.flat & (got == 0)))


def _worst_element(estimate: Estimate, got: Tensor, dtype: torch.dtype) -> tuple[int, float, float] | None:
    """Position, derivative and bar of the element with the largest error; `None` if all agree."""
    if got.numel() != estimate.low.numel():
        return 0, float(estimate.low[0]), float(estimate.bar[0])
    gap = torch.maximum(estimate.low - got, got - estimate.high).clamp(min=0).nan_to_num(nan=torch.inf)
    # An element of a tangent may be a sum of terms as large as the largest element, whence scale.max(). In a narrow
    # dtype 1000 eps are allowed: 1.2e-4 in float32.
    scale = estimate.low.abs() + got.abs().nan_to_num(nan=0.0)
    precision = max(_AGREEMENT, 1e3 * torch.finfo(dtype).eps)
    excess = gap - SIGNIFICANT * estimate.bar - precision * (scale + scale.max())
    excess = torch.where(estimate.valid, excess, -1.0)
    position = int(excess.argmax()) if excess.numel() else 0
    if not excess.numel() or float(excess[position]) <= 0:
        return None
    return position, float(estimate.low[position]), float(estimate.bar[position])

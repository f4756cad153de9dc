"""The likely cause of a wrong gradient."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pullback._torch import DispatchMode
from pullback.check.case import Case
from pullback.check.cases.values import ALL_EQUAL
from pullback.check.derivative.agreement import difference
from pullback.check.derivative.compare_input import Comparison
from pullback.check.derivative.first_order import FirstOrder, agrees
from pullback.check.trial import Raised, forward, vjp

if TYPE_CHECKING:
    from pullback.check.state import Audit


def cause(audit: Audit, result: FirstOrder, comparison: Comparison) -> str:
    """The mistake that explains a wrong gradient, as in `Rule.explains`; empty if none does."""
    gradient = result.gradients[comparison.order]
    if gradient is None:
        return "no gradient"
    if swapped_with(audit, result, comparison) is not None:
        return "swapped gradients"
    if gradient.is_complex() and _right_once_conjugated(audit, result, comparison):
        return "missing conjugate"
    if ignored_cotangents(audit, result):
        return "ignored cotangent"
    return ""


class _Overwriting(DispatchMode):
    """Notices an indexed write with repeated indices, whose result depends on the order."""

    seen = False

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        accumulates = (kwargs or {}).get("accumulate", len(args) > 3 and args[3] is True)
        self.seen |= op.overloadpacket in _OVERWRITE and not accumulates
        return op(*args, **(kwargs or {}))


aten = torch.ops.aten
_OVERWRITE = (
    aten.index_put, aten.index_put_, aten._index_put_impl_, aten.put, aten.put_, aten.index_copy, aten.index_copy_,
    aten.scatter, aten.scatter_,
)  # fmt: skip


def overwrites(audit: Audit, case: Case) -> bool:
    """Whether a forward writes by its indices, which are all the same in a case: PyTorch defines no result then.

    The gradients of PyTorch's own ops count every write, and not the one that won.
    """
    if case.label != ALL_EQUAL:
        return False
    with _Overwriting() as mode:  # type: ignore[no-untyped-call]
        forward(audit.subject, case)
    return bool(mode.seen)


def swapped_with(audit: Audit, result: FirstOrder, comparison: Comparison) -> int | None:
    """Return the input whose returned gradient is the right one for this input, if there is one."""
    own = result.gradients[comparison.order]
    for other, gradient in enumerate(result.gradients):
        if other == comparison.order or gradient is None or own is None or gradient.shape != own.shape:
            continue
        if torch.equal(gradient, own):
            continue
        if agrees(audit.subject, result, comparison.order, gradient, audit.generator):
            return other
    return None


def _right_once_conjugated(audit: Audit, result: FirstOrder, comparison: Comparison) -> bool:
    """Whether g f'(x) should have been g conj(f'(x)): for real g, the one is the conjugate of the other."""
    real = [torch.complex(g.real, torch.zeros_like(g.real)) if g.is_complex() else g for g in result.cotangents]
    try:
        gradient = _vjp_afresh(audit, result, real)[comparison.order]
    except Raised:
        return False
    if gradient is None:
        return False
    conjugated = gradient.conj().resolve_conj()
    return agrees(audit.subject, replace(result, cotangents=real), comparison.order, conjugated, audit.generator)


def ignored_cotangents(audit: Audit, result: FirstOrder) -> list[int]:
    """Return the differentiable outputs whose cotangent does not affect any gradient.

    Decided on fresh runs: the gradient is recomputed with that cotangent multiplied by -3, and by 0, since a backward
    may read only its presence, or be even in it.
    """
    if not any(g is not None and bool((g.isfinite() & (g != 0)).any()) for g in result.gradients):
        return []
    positions = range(len(result.cotangents))
    return [position for position in positions if all(_is_the_same(audit, result, position, by) for by in (-3, 0))]


def _is_the_same(audit: Audit, result: FirstOrder, position: int, factor: float) -> bool:
    """Whether no gradient changes with one of the cotangents multiplied."""
    changed = list(result.cotangents)
    changed[position] = changed[position] * factor
    try:
        gradients = _vjp_afresh(audit, result, changed)
    except Raised:
        return False
    return difference(result.gradients, gradients, rounding=1e-12) is None


def _vjp_afresh(audit: Audit, result: FirstOrder, cotangents: list[Tensor]) -> list[Tensor | None]:
    return vjp(forward(audit.subject, result.case), cotangents)

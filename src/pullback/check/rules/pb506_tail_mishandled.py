"""tail-mishandled (PB506): elements after the last full vector or block are computed differently.

## What it finds
If a function treats the elements along a dimension alike, in any order, it runs on its example repeated to a length
that is not a multiple of the usual block sizes: 1023, or 1020 for a period of four. Value and gradient must repeat too.
If the function sums over a dimension, its gradient at 37 elements is compared with the numeric derivative.

## Why it hurts
Kernels process elements by fours, or in blocks of 1024, and handle the remainder in a separate branch that tests with
round sizes never run. If forward and backward make the same mistake there, no gradient test finds it.

## Limits
Functions that treat elements by their position, draw random numbers, or reject such a length are not checked. The same
holds for a function whose result stops repeating in its first half, since it combines elements by blocks, or at a
single element, since it picks one of several equal ones. A summed dimension is tried at one length, and only if the
gradient on the example is correct.

## Bad
```python
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        out = x * x
        if x.numel() > 16:
            out.view(-1)[x.numel() // 16 * 16 :] = 0
        return out

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        gx = 2 * g * x
        if x.numel() > 16:
            gx.view(-1)[x.numel() // 16 * 16 :] = 0
        return gx

def inputs():
    return (torch.randn(5, dtype=torch.float64, requires_grad=True),)
```

## Good
```python
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x

def inputs():
    return (torch.randn(5, dtype=torch.float64, requires_grad=True),)
```
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pullback.check.case import Case
from pullback.check.cases import sizes
from pullback.check.cases.growth import Growth, broken_tail, dims_of, reordered, repeated, tail_size, taken
from pullback.check.derivative.agreement import difference
from pullback.check.derivative.compare_input import MAX_ELEMENTS
from pullback.check.rules._rule import Rule
from pullback.check.trial import Raised, forward, standard_cotangents, vjp
from pullback.dtypes import has_reals
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_SUMMED = 37
_SAME = 1e-2
"""Relative difference between periods that is none: a vector's arithmetic may round otherwise, in bfloat16 inside."""

_Results = tuple[list[Tensor], list[Tensor | None]]
"""Values and gradients."""


def _run(audit: Audit) -> Iterator[Finding]:
    if audit.draws or audit.backward_draws or not audit.backward_works:
        return
    for growth in audit.growths:
        audit.events.beat()
        if all(growth.dims(k) for k in range(len(growth.slopes))):
            yield from _periodic(audit, growth)
        elif not any(any(slope) for slope in growth.slopes):
            yield from _summed(audit, growth)


def _periodic(audit: Audit, growth: Growth) -> Iterator[Finding]:
    """Look for a break in results that should repeat."""
    if any(type(v) is int and v == growth.size for v in audit.base.values):
        return  # the error names the length of the dimension
    try:
        if not _treats_alike(audit, growth):
            return
        tensors = (*audit.base.tensors, *audit.base_run.outputs)
        n = tail_size(growth.size, tensors, fast=audit.elements == MAX_ELEMENTS)
        case = repeated(audit.base, growth.size, n)
        if not _fits(audit, case):
            return
        values, gradients = _results(audit, case, growth, torch.arange(n) % growth.size)
    except Raised:
        return
    for what, t, dims in _repeating(audit, growth, values, gradients):
        broken = broken_tail(t.detach(), dims, growth.size, _SAME)
        if broken is not None:
            index, before = broken
            if not t[before].isfinite():
                return  # repeated rows may make a matrix singular
            yield audit.finding(
                "PB506",
                "error",
                "wrong",
                f"with the example repeated to length {n}, {what} stops repeating at {list(index)}: "
                f"{t[index].item()} there, {t[before].item()} one period before",
                case=case,
                tail=["print(out)"],
                hint="look at how the last elements are treated when the length is not a multiple of the block size",
            )
            return


def _fits(audit: Audit, case: Case) -> bool:
    """Whether the sizes of a case may fit each other: kernels check none."""
    return not audit.subject.is_interpreted or sizes.keeps_sizes(audit.base, case)


def _treats_alike(audit: Audit, growth: Growth) -> bool:
    """Whether reordering along the dimension reorders values and gradients, for two orders that make all others."""
    ids = torch.arange(growth.size)
    plain = _results(audit, audit.base, growth, ids)
    for order in (torch.cat([ids[:2].flip(0), ids[2:]]), ids.roll(1)):
        case = reordered(audit.base, growth.size, order)
        values, gradients = _results(audit, case, growth, order)
        expected = [taken(t, dims, order) for _, t, dims in _repeating(audit, growth, *plain)]
        got = [t for _, t, _ in _repeating(audit, growth, values, gradients)]
        if len(expected) != len(got) or difference(expected, got) is not None:
            return False
    return True


def _results(audit: Audit, case: Case, growth: Growth, order: Tensor) -> _Results:
    """Return values and gradients, with the example's cotangents taken in the same order as its inputs."""
    run = forward(audit.subject, case)
    plain = standard_cotangents(audit.base_run.roots, audit.base_run.differentiable)
    cotangents = [
        taken(g, growth.dims(position), order) for g, position in zip(plain, audit.base_run.differentiable, strict=True)
    ]
    return run.outputs, vjp(run, cotangents)


def _repeating(
    audit: Audit, growth: Growth, values: Sequence[Tensor], gradients: Sequence[Tensor | None]
) -> Iterator[tuple[str, Tensor, list[int]]]:
    """Yield the results that should repeat, with their names and the dimensions along which they should."""
    for position, value in enumerate(values):
        if has_reals(value):
            yield f"output {position}", value.detach(), growth.dims(position)
    for name, x, gradient in zip(audit.names, audit.base.tensors, gradients, strict=True):
        dims = dims_of(x, growth.size)
        if gradient is not None and dims:
            yield f"the gradient of {name}", gradient, dims


def _summed(audit: Audit, growth: Growth) -> Iterator[Finding]:
    """Compare the gradient with the numeric derivative where the dimension is gone from every output."""
    case = growth.at(_SUMMED)
    if audit.intent is not None or audit.base_result is None or audit.base_result.wrong or case.doubtful:
        return
    if not _fits(audit, case):
        return
    result = audit.compare(case)
    if result is None:
        return
    for c in result.wrong:
        if audit.intent_of(result, c) is None and not any(
            c.input_index == w.input_index for r in audit.variants for w in r.wrong
        ):
            yield audit.finding(
                "PB506",
                "error",
                "wrong",
                f"with size {growth.size} -> {_SUMMED}, the gradient of {audit.names[c.input_index]} is wrong: "
                f"expected {c.expected:.6g}, got {c.got:.6g}",
                case=case,
                evidence=audit.evidence(result, c),
                tail=[audit.outs, "print(torch.autograd.grad([o.sum() for o in outs], inputs, allow_unused=True))"],
                hint="look at how the last elements are treated when the length is not a multiple of the block size",
            )
            return


RULE = Rule(__doc__, runtime=_run, blames="forward", shrinks=False, late=True)

"""stride-dependent-value (PB501): the value depends on the strides of an input, or the forward rejects some.

## What it finds
The function runs on inputs that are transposed, sliced with a step, at an offset, expanded from the first row, in
channels-last order, and lazily conjugated (`x.conj()`). Every output must equal that of a contiguous copy of the same
input.

## Why it hurts
The result of `.t()`, of a slice or of `expand` is not contiguous. A kernel that assumes contiguous memory computes
wrong values from it. The gradient can still match those wrong values, so that `gradcheck` passes: it passed a function
that had become the identity on transposed inputs.

## Limits
If the forward raises because memory is not contiguous, that is a warning, or an info if a Python `raise` or `assert`
says so. A value that depends on the strides of a vector of whole numbers alone, such as offsets, is a warning, too:
callers rarely slice these. Functions that draw random numbers are not compared, since they draw in the order of memory;
nor are results that a rounding of the inputs changes as well, as at a singular matrix. PB101 and PB119 test the
gradient on such inputs.

## Bad
```python
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, s):
        ctx.save_for_backward(s)
        return s * x.as_strided(x.shape, (x.shape[1], 1))

    @staticmethod
    def backward(ctx, g):
        (s,) = ctx.saved_tensors
        return g * s, None

def inputs():
    return torch.randn(3, 5, dtype=torch.float64, requires_grad=True), torch.tensor(1.5, dtype=torch.float64)
```

## Good
```python
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, s):
        ctx.save_for_backward(s)
        return s * x.contiguous().as_strided(x.shape, (x.shape[1], 1))

    @staticmethod
    def backward(ctx, g):
        (s,) = ctx.saved_tensors
        return g * s, None

def inputs():
    return torch.randn(3, 5, dtype=torch.float64, requires_grad=True), torch.tensor(1.5, dtype=torch.float64)
```
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pullback.check.case import Case, is_differentiable
from pullback.check.cases import layouts
from pullback.check.cases.repro import call_text, variables
from pullback.check.derivative.agreement import TensorDifference, difference
from pullback.check.derivative.sampler import random_like
from pullback.check.rules._rule import Rule
from pullback.check.trial import Raised, forward
from pullback.report.model import Finding, Severity

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_OF_A_VIEW = re.compile(r"view size is not compatible|view\(\) on a tensor|cannot be viewed")
_OF_LAYOUT = re.compile(r"contiguous|stride|memory.format|layout|conj", re.IGNORECASE)
_CANCELLED = 1e5
"""Units in the last place of the usual output: less is rounding where all of it cancels, as of equal numbers."""
_ROUNDED = 4
"""Number of roundings of the inputs that are tried."""
_HINT = "use reshape where a view is taken, .contiguous() before a kernel, .resolve_conj() before view_as_real"


def _run(audit: Audit) -> Iterator[Finding]:
    if audit.draws:
        return
    outputs = [out.detach() for out in audit.base_run.outputs if is_differentiable(out) and out.numel()]
    floor = max((_CANCELLED * torch.finfo(out.dtype).eps * float(out.abs().max()) for out in outputs), default=0.0)
    others = list(layouts.other_layouts(audit.base))
    plain = [layouts.with_plain_indices(case) for case in others]
    of_indices = [case for case, same in zip(others, plain, strict=True) if case is not same]
    found = list(_of_layouts(audit, plain, floor, "error")) or list(_of_layouts(audit, of_indices, floor, "warning"))
    yield from found


def _of_layouts(audit: Audit, cases: Sequence[Case], floor: float, severity: Severity) -> Iterator[Finding]:
    """Yield the first refusal of other strides, and the first value that depends on them, with that severity."""
    refused = False
    for case in cases:
        try:
            expected = _values(audit, layouts.contiguous(case))
        except Raised:
            continue
        try:
            got = _values(audit, case)
        except Raised as error:
            if not refused:
                yield from _refusal(audit, case, error)
            refused = True
            continue
        where = difference(expected, got, floor=floor)
        if where is not None and not _is_ill_conditioned(audit, case, expected, floor):
            case, where, which = _of_one_input(audit, case, floor) or (case, where, "")
            yield audit.finding(
                "PB501",
                severity,
                "wrong",
                f"with {case.phrase}{which} output {where.tensor_index} changes: {where}",
                case=case,
                tail=_beside_contiguous(case),
                hint=_HINT,
            )
            return


def _values(audit: Audit, case: Case) -> list[Tensor | None]:
    return [out.detach() for out in forward(audit.subject, case).outputs]


def _of_one_input(audit: Audit, case: Case, floor: float) -> tuple[Case, TensorDifference, str] | None:
    """Return the case in which one input of several has the strides, what differs, and words that name the input."""
    plain = layouts.contiguous(case)
    several = [p for p, t in case.all_tensors.items() if t.stride() != plain.values[p].stride()]
    for p in several if len(several) > 1 else ():
        alone = plain.with_values({p: case.values[p]}, layout_only=True)
        with suppress(Raised):
            where = difference(_values(audit, plain), _values(audit, alone), floor=floor)
            if where is not None:
                return alone, where, f" ({case.names[p]} is enough)"
    return None


def _is_ill_conditioned(audit: Audit, case: Case, expected: list[Tensor | None], floor: float) -> bool:
    """Whether a rounding of contiguous inputs changes the output as well: a matrix of equal rows is singular."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(_ROUNDED):
        rounded = layouts.contiguous(case).map_inputs(
            lambda t: t * (1 + torch.finfo(t.dtype).eps * random_like(t, generator)), case.label
        )
        try:
            if difference(expected, _values(audit, rounded), floor=floor) is not None:
                return True
        except Raised:
            return True
    return False


def _refusal(audit: Audit, case: Case, error: Raised) -> Iterator[Finding]:
    """Report a forward that raises on other strides, if the error is about these."""
    of_view = _OF_A_VIEW.search(str(error)) is not None
    if of_view or _OF_LAYOUT.search(str(error)):
        severity: Severity = "warning" if of_view or not _is_said(error.error) else "info"
        message = f"with {case.phrase}, {error}"
        tail = [f"out = fn({call_text(case)})"]
        yield audit.finding("PB501", severity, "unsupported", message, case=case, tail=tail, hint=_HINT)


def _is_said(error: BaseException) -> bool:
    """Whether a Python statement raised an error, such as a function's own check of its arguments."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and (frames[-1].line or "").startswith(("raise", "assert"))


def _beside_contiguous(case: Case) -> list[str]:
    names = dict.fromkeys(variables(case)[p] for p in case.wrt)
    return [
        "print('as given:', out)",
        *(f"{name} = {name}.detach().clone(memory_format=torch.contiguous_format)" for name in names),
        f"print('contiguous:', fn({call_text(case)}))",
    ]


RULE = Rule(__doc__, runtime=_run, blames="forward", shrinks=False, context="other strides")

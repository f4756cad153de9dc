"""saved-what-can-be-derived (PB701): a saved tensor can be computed from another one.

## What it finds
Redundant tensors among those kept between forward and backward, measured on the example: copies of an input, of an
output or of each other, in any dtype; tensors that repeat along a dimension; and, if the inputs are kept too,
intermediates and outputs that are a pointwise function of them. The finding gives the bytes of each.

## Why it hurts
Saved tensors live until the backward, and in deep models they decide how large a batch fits. Inputs and outputs are
mostly alive anyway, because a neighbouring operation keeps them. An intermediate takes memory for this function alone.

## Limits
The finding is advice. It is a warning for copies and repetitions, which have no benefit, and an info for the others,
since recomputing takes time. Copies must be equal on the example and on -37 times its values. Masks and integers are
not compared, since small ones may be equal by chance. Bytes are those of the example. Tensors in lists on `ctx` are not
seen.

## Bad
```python
class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        s = torch.sigmoid(x)
        ctx.save_for_backward(x.clone(), s)
        return x * s

    @staticmethod
    def backward(ctx, g):
        x, s = ctx.saved_tensors
        return g * (s + x * s * (1 - s))
```

## Good
```python
class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return g * (s + x * s * (1 - s))
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor

from pullback.check.derivative.recorder import Trace, describe, equal, is_plain, size, trace
from pullback.check.rules._residuals import bytes_kept
from pullback.check.rules._rule import Rule
from pullback.dtypes import has_reals
from pullback.report.model import Finding, Severity

if TYPE_CHECKING:
    from pullback.check.audit import Audit
    from pullback.check.case import Case

_FAR = 37.0


def _run(audit: Audit) -> Iterator[Finding]:
    found = audit.trace
    if found is None or not any(is_plain(t) for t in found.call.kept):
        return
    far = trace(audit.subject, audit.base.map_inputs(lambda t: -_FAR * t, "far away"))
    copies = _copies(found, far)
    for k, t in enumerate(found.computed):
        if k in copies:
            yield _finding(audit, "warning", t, copies[k])
    rolled = None if audit.draws else trace(audit.subject, _rolled(audit.base))
    if rolled is not None and _alike(found, rolled):
        rest = [t for k, t in enumerate(found.computed) if k not in copies and is_plain(t)]
        yield from _pointwise(audit, found, rolled, rest)


def _finding(audit: Audit, severity: Severity, t: Tensor, why: str) -> Finding:
    return audit.finding(
        "PB701",
        severity,
        "wrong",
        f"kept for the backward: {describe(t)}, {why}",
        case=audit.base,
        evidence=bytes_kept(size(t)),
        hint="save only that one, and compute this one from it in the backward",
    )


def _copies(found: Trace, far: Trace | None) -> dict[int, str]:
    """Say which computed tensors equal another, or repeat themselves, for ordinary and for extreme values.

    Ordinary values alone do not suffice: there `x.clamp(-10, 10)` is x.
    """
    if far is None or not _alike(found, far) or len(found.computed) != len(far.computed):
        return {}
    both = [(_what(found, k), _what(far, k)) for k in range(len(found.computed))]
    return {k: near for k, (near, there) in enumerate(both) if near and near == there}


def _what(found: Trace, k: int) -> str:
    t = found.computed[k]
    if not has_reals(t) or not is_plain(t):
        return ""
    others = found.computed[:k]
    groups = (("an input", found.inputs), ("an output", found.run.outputs), ("another one that is kept", others))
    for what, tensors in groups:
        if any(is_plain(other) and equal(t, other) for other in tensors):
            return f"a copy of {what}"
    dim = _repeated(t)
    return "" if dim is None else f"the same all along dim {dim}"


def _repeated(t: Tensor) -> int | None:
    """Return the first dimension along which a tensor repeats itself in memory."""
    for dim in range(t.ndim):
        if t.shape[dim] > 1 and t.stride(dim) and bool((t == t.narrow(dim, 0, 1)).all()):
            return dim
    return None


def _pointwise(audit: Audit, found: Trace, rolled: Trace, rest: list[Tensor]) -> Iterator[Finding]:
    """Report a saved tensor that is an elementwise function of inputs, which are saved too: it moves when they do."""
    widest = _widest(audit.base)
    inputs = [x for x in found.run.inputs if x.shape == widest.shape]
    if not all(found.keeps(x) for x in inputs):
        return
    outputs = [out for out in found.run.outputs if found.keeps(out) and is_plain(out)]
    for t in (*rest, *outputs):
        if t.shape == widest.shape and has_reals(t) and _rolls(t, found, rolled):
            what = "an output, which is" if any(t is out for out in outputs) else "which is"
            why = f"{what} kept as well as the inputs that determine it element by element"
            yield _finding(audit, "info", t, why)


def _rolls(t: Tensor, found: Trace, rolled: Trace) -> bool:
    """Whether the same tensor of the other run has its elements moved on by one place."""
    before = [*found.call.kept, *found.run.outputs]
    after = [*rolled.call.kept, *rolled.run.outputs]
    input_index = next(k for k, other in enumerate(before) if other is t)
    return equal(t.detach().flatten().roll(1), after[input_index])


def _alike(a: Trace, b: Trace) -> bool:
    return len(a.call.kept) == len(b.call.kept) and len(a.run.outputs) == len(b.run.outputs)


def _widest(case: Case) -> Tensor:
    return max(case.tensors, key=lambda t: t.numel())


def _rolled(case: Case) -> Case:
    """Return the case with the elements of each tensor as large as the largest input moved on by one place."""
    shape = _widest(case).shape
    return case.map_tensors(
        lambda t: t.flatten().roll(1).reshape(t.shape) if t.shape == shape else t, "elements moved on by one"
    )


RULE = Rule(__doc__, runtime=_run, kinds=("function",), shrinks=False, needs_cpu=True)

"""wrong-gradient-dtype (PB105): a returned gradient has a narrower dtype than its input, or is on another device.

## What it finds
The dtype and device of each gradient, as `backward` returned it. The engine silently casts the gradient to the input's
dtype, which does not bring lost digits back. If the example is float64, the rule also checks that value and gradients
have the precision of float64. If every number of a result is exact in float32, it was rounded to float32 on the way; so
was an input whose digits beyond float32 change nothing.

## Why it hurts
A float64 input gets a float32 gradient: `gradcheck` becomes noisy, and solvers that need the precision stall.

## Limits
A dtype wider than the input's costs memory but no precision, and is not reported. The rule runs on the example, and on
float32 inputs if the forward accepts them. A function that quantises has few digits on purpose, so the precision is
checked only if the gradient is correct. A cast to float32 in the forward is an info, since the function computes in
float32 on purpose.

## Bad
```python
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return (2 * g * x).float()
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
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from pullback._torch import DispatchMode
from pullback.check.cases import layouts
from pullback.check.derivative.intent import staircase_inputs
from pullback.check.derivative.oracle import working_epsilon
from pullback.check.derivative.recorder import placed_gradients
from pullback.check.derivative.sampler import random_like
from pullback.check.rules._reproduction import returned
from pullback.check.rules._rule import Rule
from pullback.check.trial import ForwardRun, Raised, as_real, forward, standard_cotangents, vjp
from pullback.dtypes import has_reals
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_DOUBLE = (torch.float64, torch.complex128)
_LAST = 2.0**-40
"""A relative change that uses the last digits of float64, and is too small for any other difference."""
_SEEN = 1e3
"""Units of rounding of a value that are surely seen in it."""


def _run(audit: Audit) -> Iterator[Finding]:
    if audit.subject.kind == "function":
        yield from _of_other_dtype(audit)
    yield from _of_fewer_digits(audit)


def _of_other_dtype(audit: Audit) -> Iterator[Finding]:
    """Yield the finding that a gradient comes in a narrower dtype, or on another device."""
    for case in (audit.base, *layouts.other_dtypes(audit.base)):
        if case is not audit.base and (case.label != "float32" or not audit.is_valid(case)):
            continue
        for name, x, gradient, other_device in placed_gradients(audit.subject, case):
            loses = torch.finfo(gradient.dtype).eps > torch.finfo(x.dtype).eps if _floats(gradient) else True
            if loses or other_device:
                what, wanted = (str(t.dtype).removeprefix("torch.") for t in (gradient, x))
                if other_device:
                    what, wanted = f"{what} on {other_device}", f"{wanted} on {audit.subject.device or x.device}"
                yield audit.finding(
                    "PB105",
                    "error" if other_device or not _floats(gradient) else "warning",
                    "wrong",
                    f"backward returned a gradient of {what} for {name} of {wanted}",
                    case=case,
                    tail=[
                        audit.outs,
                        *(returned("device", audit.subject.device) if other_device else returned("dtype")),
                    ],
                    hint="keep the input's dtype: no .float(), and pass dtype= and device= to factories",
                )
                return


def _of_fewer_digits(audit: Audit) -> Iterator[Finding]:
    """Yield the finding that of float64 inputs, all digits of which are in use, value or gradient is in float32."""
    given = [t.dtype for case in (audit.base, *audit.given) for t in case.tensors]
    first = audit.base_result
    is_right = first is not None and all(c.status == "ok" for c in first.comparisons)
    if audit.guessed or audit.draws or not is_right or not all(d in _DOUBLE for d in given):
        return
    base = audit.base
    case = base.with_values({p: _with_all_digits(base.values[p], audit.generator) for p in base.wrt})
    casts = _Casts()  # type: ignore[no-untyped-call]
    try:
        with casts:
            run = forward(audit.subject, case)
        cotangents = [_with_all_digits(g, audit.generator) for g in standard_cotangents(run.roots)]
        gradients = vjp(run, cotangents)
        rounded = forward(audit.subject, base.with_values({p: _in_single(case.values[p]) for p in base.wrt}))
    except Raised:
        return
    named = zip((f"the gradient of {name}" for name in audit.names), gradients, strict=True)
    for what, found in (*(("the value", out) for out in run.roots), *named):
        if found is not None and working_epsilon(as_real(found)) == torch.finfo(torch.float32).eps:
            yield _fewer_digits(audit, f"{what}, of float64 inputs, has only the precision of float32", casts)
            return
    is_unchanged = all(torch.equal(a, b) for a, b in zip(run.roots, rounded.roots, strict=True))
    if is_unchanged and not staircase_inputs(audit.subject, base) and _moves(run, cotangents, gradients, rounded):
        yield _fewer_digits(
            audit, "float64 inputs give the value of the same inputs in float32, to the last digit", casts
        )


def _fewer_digits(audit: Audit, what: str, casts: _Casts) -> Finding:
    return audit.finding(
        "PB105",
        "info" if casts.seen else "warning",
        "ok" if casts.seen else "unstable",
        f"{what}: " + ("the forward casts to float32" if casts.seen else "something on the way is rounded to it"),
        hint="keep the input's dtype on the way, in tables and constants too",
    )


class _Casts(DispatchMode):
    """Sees whether float64 is cast to float32, which the code asks for, since PyTorch never does it by itself."""

    seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default and args[0].dtype in _DOUBLE:
            self.seen |= kwargs.get("dtype") in (torch.float32, torch.complex64)
        return func(*args, **kwargs)


def _moves(
    run: ForwardRun, cotangents: list[torch.Tensor], gradients: list[torch.Tensor | None], other: ForwardRun
) -> bool:
    """Whether the gradient tells of a change between two runs that float64 would show."""
    pairs = zip(gradients, run.inputs, other.inputs, strict=True)
    expected = sum(float(as_real(g) @ (as_real(a) - as_real(b))) for g, a, b in pairs if g is not None)
    size = sum(float((as_real(c) * as_real(y)).abs().sum()) for c, y in zip(cotangents, run.roots, strict=True))
    return abs(expected) > _SEEN * torch.finfo(torch.float64).eps * size


def _in_single(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.complex64 if x.is_complex() else torch.float32).to(x.dtype)


def _with_all_digits(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return x + x * _LAST * random_like(x, generator)


def _floats(t: torch.Tensor) -> bool:
    return has_reals(t)


RULE = Rule(__doc__, runtime=_run, blames="backward", column="eager", needs_repeatable=False, of_weights="always")

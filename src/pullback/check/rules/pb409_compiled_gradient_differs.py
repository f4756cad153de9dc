"""compiled-gradient-differs (PB409): compiling the function changes its gradient, or fails.

## What it finds
The function is compiled by `torch.compile` with the backend `aot_eager`, which traces forward and backward but
generates no code. It is run and differentiated, then called with another size, which makes its shapes dynamic, and with
one tensor passed as two arguments if two have equal shapes. A gradient that differs from the eager one is an error. It
is an info if PyTorch does not compile the function, in one graph or with graph breaks, or if it compiles and fails on
the other size; the finding gives the first line of the reason. With `--deep` the function is compiled by Inductor too.

## Why it hurts
Under the compiler the backward runs on traced tensors. A branch on `torch.compiler.is_compiling()`, on the type of a
tensor, or on state outside the context is decided once, at tracing time.

## Limits
The rule makes three calls. `aot_eager` runs the same kernels as eager mode, so effects of code generation show only
with `--deep`. No other size is tried if a numeric argument would have to change with it.

## Bad
```python
class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.softmax(x, -1)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        if torch.compiler.is_compiling():
            return g * out * (1 - out)
        return out * (g - (g * out).sum(-1, keepdim=True))
```

## Good
```python
class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.softmax(x, -1)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return out * (g - (g * out).sum(-1, keepdim=True))
```
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pullback._torch import without_compile_workers
from pullback.check.case import copy_tensor
from pullback.check.cases import sizes, values
from pullback.check.cases.guess import is_same_argument
from pullback.check.contexts.compare import GRADIENT, PRINT, ContextCall, compare_one
from pullback.check.contexts.eager import EagerReference, base_setting, on_smallest, pure, setting_of, tensor_slots
from pullback.check.rules._rule import Rule
from pullback.check.trial import reseed
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_NEW_SIZE = 7
_HINT = "something in it is decided at trace time: is_compiling(), the type of a tensor, global state"
_BREAK = "it runs, in pieces: TORCH_LOGS=graph_breaks shows where"
_BROKEN = "put torch.compiler.disable on the function that calls it"


def _run(audit: Audit) -> Iterator[Finding]:
    base = base_setting(audit)
    if base is None:
        return
    torch.compiler.reset()
    try:
        yield from _compare(audit, base)
    finally:
        torch.compiler.reset()


def _compare(audit: Audit, base: EagerReference) -> Iterator[Finding]:
    compiled, found = _compiled(audit, base, fullgraph=True)
    if found is not None and found.verdict == "unsupported":
        yield found
        compiled, found = _compiled(audit, base, fullgraph=False)
    if found is not None and found.verdict == "wrong":
        found = on_smallest(audit, base, found, lambda small: _compiled(audit, small, compiled.fullgraph)[1])
    if found is None and (resized := _resized(audit, base)) is not None:
        found = compare_one(audit, "PB409", resized, compiled.way(", called with another size"))
    if found is None and (shared := _shared(audit)) is not None and not _loses_a_twin():
        torch.compiler.reset()
        twice = _Compiled(shared, fullgraph=False)
        found = compare_one(audit, "PB409", shared, twice.way(", given one tensor twice"))
    if found is None and audit.options.deep:
        found = _by_inductor(audit, base, compiled.fullgraph)
    if found is not None:
        yield found


@functools.cache
def _loses_a_twin() -> bool:
    """Whether PyTorch compiles any Function that is given one tensor twice to half of its gradient, as 2.11 does."""
    torch.compiler.reset()
    x = torch.ones(2, dtype=torch.float64, requires_grad=True)
    compiled = torch.compile(_Product.apply, backend="aot_eager")
    (gradient,) = torch.autograd.grad(compiled(x, x).sum(), x)
    return not torch.equal(gradient, torch.full_like(x, 2.0))


class _Product(torch.autograd.Function):
    """A right Function of two tensors."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, y = ctx.saved_tensors
        return torch.mul(g, y), torch.mul(g, x)


def _compiled(audit: Audit, setting: EagerReference, fullgraph: bool) -> tuple[_Compiled, Finding | None]:
    torch.compiler.reset()
    compiled = _Compiled(setting, fullgraph)
    return compiled, compare_one(audit, "PB409", setting, compiled.way())


def _by_inductor(audit: Audit, base: EagerReference, fullgraph: bool) -> Finding | None:
    audit.events.beat()
    torch.compiler.reset()
    with without_compile_workers():
        try:
            torch.compile(torch.sin)(torch.ones(2))
        except Exception:  # no C++ compiler, for example: not a fault of the function
            return None
        return compare_one(audit, "PB409", base, _Compiled(base, fullgraph, "inductor").way())


class _Compiled:
    """The function of a setting, compiled: its tensors are arguments, other arguments are constants."""

    def __init__(self, setting: EagerReference, fullgraph: bool, backend: str = "aot_eager") -> None:
        self.fullgraph = fullgraph
        self.text = f'torch.compile(backend="{backend}", fullgraph={fullgraph})'
        function = pure(setting.subject.called, setting.case, tensor_slots(setting), setting.outputs)
        self.function = torch.compile(function, backend=backend, fullgraph=fullgraph)

    def gradient(self, setting: EagerReference) -> list[Tensor | None]:
        """Return the gradient that the compiled function gives."""
        leaves = setting.leaves()
        rest = [copy_tensor(setting.case.values[slot[0]]) for slot in tensor_slots(setting)[len(leaves) :]]
        reseed()
        return setting.gradient_from(self.function(*leaves, *rest), leaves)

    def way(self, circumstance: str = "") -> ContextCall:
        """Return the comparison of the compiled function with eager mode."""
        dynamic = "dynamic=True, " if "size" in circumstance else ""
        options = self.text.removeprefix("torch.compile(")
        return ContextCall(
            self.text + circumstance,
            self.gradient,
            [
                f"compiled = torch.compile(call, {dynamic}{options}",
                "outs = compiled(*inputs)",
                *GRADIENT,
                *PRINT,
            ],
            hint=_HINT,
            raising=_BREAK if self.fullgraph else _BROKEN,
            refused_as="info",
        )


def _resized(audit: Audit, base: EagerReference) -> EagerReference | None:
    """Return the example with one size changed, if the forward takes that, and no number has to change with it.

    Non-tensor arguments are constants of the compiled function.
    """
    present = {size for value in base.case.values if isinstance(value, Tensor) for size in value.shape}
    for size in sorted(present - {0, 1}, reverse=True):
        case = sizes.resized(base.case, {size: _NEW_SIZE + (size == _NEW_SIZE)})
        pairs = zip(case.values, base.case.values, strict=True)
        if any(not isinstance(new, Tensor) and not is_same_argument(new, old) for new, old in pairs):
            continue
        found = setting_of(audit.subject, case)
        if found is not None and (found.slots, found.outputs) == (base.slots, base.outputs):
            return found
    return None


def _shared(audit: Audit) -> EagerReference | None:
    """Return the example with one tensor in the place of two, if there are two of equal shape."""
    case = next(values.shared(audit.base), None)
    return setting_of(audit.subject, case) if case is not None else None


RULE = Rule(__doc__, runtime=_run, shrinks=False, late=True, column="compile", compiles=True, context="torch.compile")

"""unmarked-mutation (PB202): the forward changes an input in place without marking it dirty.

## What it finds
Differentiable inputs whose values change during the forward and that are not returned and marked by `ctx.mark_dirty`,
and inputs whose memory the forward frees (`resize_(0)` of a storage). It is a warning if an output has the same values
and the gradient passes unchanged, since later uses of the input then get the correct gradient.

## Why it hurts
Autograd does not know of the change. A later use of the input sees the new values but gets the derivative of the old
ones, or raises an error about a version, far from the cause. Reading freed memory may crash the process.

## Limits
Buffers that are updated on purpose (running statistics) are not differentiable inputs, and are not reported. The rule
runs on the example alone.

## Bad
```python
class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = x.exp_().clone()
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g * out
```

## Good
```python
class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.exp_()
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g * out
```

## In the source: unmarked-mutation-in-source (PB805)
If the function cannot be run, this rule looks for `x.mul_(…)`, `x[…] = …` or `x += …` in `forward` on an argument for
which the backward returns a gradient, in a class without any `mark_dirty`. It is a warning: a match proves the write if
the line is reached. An argument that the method rebinds first (`x = x.clone()`) is not reported, even if that happens
in one branch only. Writes by kernels that take a pointer, or by `out=`, are not seen.

### Bad
```python
class Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.clamp_(min=0)
        ctx.save_for_backward(x)
        return cuda_kernels.copy(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x > 0)
```

### Good
```python
class Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clamp(min=0)
        ctx.save_for_backward(x)
        return cuda_kernels.copy(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x > 0)
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pullback.check.cases.repro import variables
from pullback.check.derivative.agreement import equal_or_nan
from pullback.check.find.source import FunctionSource
from pullback.check.find.syntax import ast_text
from pullback.check.rules._rule import Rule, SourceMatch
from pullback.check.rules._source import differentiated, writes
from pullback.check.trial import ForwardRun, forward, is_freed, standard_cotangents, vjp
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    run = forward(audit.subject, audit.base)
    for input_index, (before, after) in enumerate(zip(audit.base.tensors, run.inputs, strict=True)):
        freed = is_freed(after)  # not to be read
        if not freed and (any(out is after for out in run.outputs) or equal_or_nan(before, after)):
            continue
        name = variables(audit.base)[audit.base.wrt[input_index]]
        seen = f"{name}.untyped_storage().nbytes(), 'bytes'" if freed else name
        what = "frees the memory of {}" if freed else "changes {} in place and does not mark it as dirty"
        yield audit.finding(
            "PB202",
            "warning" if not freed and audit.backward_works and _is_handed_on(run, input_index) else "error",
            "wrong",
            f"the forward {what.format(audit.names[input_index])}",
            case=audit.base,
            tail=[f"print('{name} after the call:', {seen})"],
            hint="leave it to whoever made it"
            if freed
            else "work on a copy, or call ctx.mark_dirty on the input and return it",
        )
        return


def _is_handed_on(run: ForwardRun, input_index: int) -> bool:
    """Whether an output is what the input became, and its cotangent is the gradient."""
    alike = [k for k, root in enumerate(run.roots) if equal_or_nan(root.detach(), run.inputs[input_index].detach())]
    if not alike:
        return False
    cotangents = standard_cotangents(run.roots)
    gradient = vjp(run, cotangents)[input_index]
    return gradient is not None and equal_or_nan(gradient, cotangents[alike[0]])


def _static(source: FunctionSource) -> Iterator[SourceMatch]:
    forward = source.methods.get("forward")
    if forward is None or any("mark_dirty" in ast_text(method) for method in source.methods.values()):
        return
    for write in writes(forward, differentiated(source)):
        yield SourceMatch(
            write.line,
            f"the forward changes {write.name} in place and does not mark it as dirty: {write.code}",
            "work on a copy, or call ctx.mark_dirty on the input and return it",
            "warning",
        )


RULE = Rule(
    __doc__, runtime=_run, static=_static, blames="forward", kinds=("function",), needs_repeatable=False, needs_cpu=True
)

"""silent-cut (PB604): a call between an input and the output leaves the autograd graph.

## What it finds
The line at which a gradient is lost. If the gradient of a callable is wrong or missing, the finding lists the calls
that take a tensor depending on that input and return values without a graph (`.item()`, `.numpy()`, `.tolist()`,
`.data`, `.detach()`, anything under `no_grad`), with their lines. If the second derivative of a Function is silently
wrong, it lists the same calls in its backward.

## Why it hurts
Nothing raises. The part of the derivative through that call is zero, and the rest looks plausible.

## Limits
A call is reported only if the gradient, or the second derivative, was measured to be wrong and nothing says that this
is on purpose: a `detach` that changes no derivative is not reported. It is certain that the call cuts the graph, but
there may be other mistakes as well. It is a warning if the example was guessed, and for second derivatives, which other
rules report. Casts to integers and comparisons are not listed.

## Bad
```python
def example(x, y):
    scale = x.norm().item()
    return (x / scale * y).sum()

def inputs():
    return torch.tensor([0.5, -2.0, 1.0], requires_grad=True), torch.tensor([1.0, 2.0, 3.0])
```

## Good
```python
def example(x, y):
    scale = x.norm()
    return (x / scale * y).sum()

def inputs():
    return torch.tensor([0.5, -2.0, 1.0], requires_grad=True), torch.tensor([1.0, 2.0, 3.0])
```

## In the source: cut-in-backward-source (PB808)
If the function cannot be run, this rule looks in a backward for `.item()`, `.numpy()`, `.tolist()`, `.data`,
`.detach()` and `float(…)` on the cotangent or a saved tensor, and for `no_grad` around a part of it, unless the
backward is marked `once_differentiable`. The second derivative lacks the part through that call, and nothing raises:
Hessians, gradient penalties and meta-learning are silently wrong. (If the function can be run, PB401 measures that.) It
is a warning: a match proves that the graph is cut if the line is reached, but the second derivative may not depend on
it, as with a sign or a mask. Functions that the backward calls are not examined, although a kernel that it calls cuts
the graph too.

### Bad
```python
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return cuda_kernels.scale(x, scale)

    @staticmethod
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        return g * scale.item(), (g * x).sum()
```

### Good
```python
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return cuda_kernels.scale(x, scale)

    @staticmethod
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        return g * scale, (g * x).sum()
```
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from pullback.check.derivative.recorder import recording
from pullback.check.find.source import FunctionSource
from pullback.check.find.syntax import decorator_names
from pullback.check.purity.cuts import GraphCut, culprits, watch_cuts
from pullback.check.rules._double_backward import is_once_differentiable
from pullback.check.rules._reproduction import gradient_and_quotient
from pullback.check.rules._rule import Rule, SourceMatch
from pullback.check.rules._source import cotangents, saved, text
from pullback.check.trial import forward, guarded, standard_cotangents
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    if audit.subject.is_made:
        return  # a made op refuses or declares every cut
    if audit.subject.kind == "callable":
        yield from _in_callable(audit)
    elif audit.second is not None and audit.second.status == "wrong" and not is_once_differentiable(audit):
        yield from _in_backward(audit)


def _in_callable(audit: Audit) -> Iterator[Finding]:
    result = audit.base_result
    if result is None or not result.wrong or audit.any_intent is not None:
        return
    watch = watch_cuts()
    with watch:
        run = forward(audit.subject, audit.base)
    for comparison in result.wrong:
        cuts = list(culprits(watch.cuts, run.inputs[comparison.input_index]))
        if cuts:
            name = audit.names[comparison.input_index]
            part = "the" if result.gradients[comparison.input_index] is None else "part of the"
            yield audit.finding(
                "PB604",
                "warning" if audit.guessed else "error",
                "wrong",
                f"{part} gradient of {name} is lost: it leaves the graph by {_lines(cuts)}",
                case=audit.base,
                evidence=audit.evidence(result, comparison),
                tail=gradient_and_quotient(audit, result, comparison) if result.run.roots else (),
                hint="stay in torch operations on tensors; if the cut is intended, say so in the docstring",
                line=_line(audit, cuts),
            )


def _in_backward(audit: Audit) -> Iterator[Finding]:
    watch = watch_cuts()
    with recording(audit.subject, watch):
        run = forward(audit.subject, audit.base)
        weights = standard_cotangents(run.roots)
        # of a loss that is not linear in the outputs, so that the cotangents depend on the inputs as well
        loss = torch.stack([(w * root * root).abs().sum() for w, root in zip(weights, run.roots, strict=True)]).sum()
        with guarded("backward"):
            torch.autograd.grad(loss, run.inputs, create_graph=True, allow_unused=True)
    for name, x in zip(audit.names, run.inputs, strict=True):
        cuts = list(culprits(watch.cuts, x))
        if cuts:
            yield audit.finding(
                "PB604",
                "warning",
                "wrong",
                f"second derivatives along {name} are lost in the backward: it leaves the graph by {_lines(cuts)}",
                case=audit.base,
                hint="stay in differentiable operations on what was saved, or use once_differentiable",
                line=_line(audit, cuts),
            )
            return


def _lines(cuts: Sequence[GraphCut]) -> str:
    return " and ".join(cut.where for cut in cuts[:3]) + (f" and {len(cuts) - 3} more" if len(cuts) > 3 else "")


def _line(audit: Audit, cuts: Sequence[GraphCut]) -> int | None:
    """Return the first line that is in the audited file itself."""
    file = os.path.realpath(audit.subject.location.file or "")
    return next((cut.line for cut in cuts if os.path.realpath(cut.file) == file), None)


_LEAVES = frozenset({"item", "numpy", "tolist", "detach", "data"})
_NUMBERS = frozenset({"float", "int", "complex"})


def _static(source: FunctionSource) -> Iterator[SourceMatch]:
    backward = source.methods.get("backward")
    if backward is None or not isinstance(source.node, ast.ClassDef):
        return
    if "once_differentiable" in decorator_names(backward):
        return
    tensors = {*cotangents(source), *saved(backward)}
    for node in ast.walk(backward):
        found = _cut(node, tensors)
        if found is not None:
            yield SourceMatch(
                found.lineno,
                f"the backward leaves the autograd graph, and with it its second derivative: {text(found)}",
                "stay in differentiable operations on what was saved, or use once_differentiable",
                "warning",
            )


def _cut(node: ast.AST, tensors: set[str]) -> ast.expr | None:
    match node:
        case ast.Attribute(value=ast.Name(id=name), attr=attr) if name in tensors and attr in _LEAVES:
            return node
        case ast.Call(func=ast.Name(id=function), args=[ast.Name(id=name)]) if name in tensors and function in _NUMBERS:
            return node
        case ast.With(items=[ast.withitem(context_expr=ast.Call(func=called) as call)]) if "no_grad" in text(called):
            return call
        case _:
            return None


RULE = Rule(__doc__, runtime=_run, static=_static, kinds=("function", "callable"))

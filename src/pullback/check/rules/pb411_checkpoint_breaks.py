"""checkpoint-breaks (PB411): activation checkpointing changes the gradient, or makes the backward raise.

## What it finds
The gradient through `torch.utils.checkpoint.checkpoint`, with `use_reentrant=False` and `True`, is compared with the
gradient without it. A different gradient is an error, and so is a second read of `ctx.saved_tensors`, which raises
under `use_reentrant=False`. Any other exception is a warning.

## Why it hurts
Checkpointing runs the forward again during the backward. A backward that reads `ctx.saved_tensors` twice then raises. A
backward that uses state outside the context (on the class, or keyed by the address of a tensor) may get the values of
another call.

## Limits
The rule tests one call in one checkpoint, on the example and on the example in float32.

## Bad
```python
class XSinX(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sin(x)

    @staticmethod
    def backward(ctx, g):
        cosine = torch.cos(ctx.saved_tensors[0])
        return g * (torch.sin(ctx.saved_tensors[0]) + ctx.saved_tensors[0] * cosine)
```

## Good
```python
class XSinX(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sin(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (torch.sin(x) + x * torch.cos(x))
```

## In the source: saved-tensors-read-twice (PB809)
If the function cannot be run, this rule looks for two reads of `ctx.saved_tensors` on one path through the backward, or
for a read inside a loop. Each read unpacks every tensor again: hooks that offload or decompress do their work twice,
and `torch.utils.checkpoint(use_reentrant=False)` raises ("Unpack is being triggered for a tensor that was already
unpacked once"). It is a warning. Reads in the two branches of an `if` count once, and so does a read after a `return`.
Reads in functions to which the backward passes its context are not seen.

### Bad
```python
class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return cuda_kernels.product(x, y)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[1], g * ctx.saved_tensors[0]
```

### Good
```python
class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return cuda_kernels.product(x, y)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y, g * x
```
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pullback.check.contexts.compare import ContextCall, compare
from pullback.check.contexts.eager import EagerReference, settings
from pullback.check.find.source import FunctionSource
from pullback.check.rules._rule import Rule, SourceMatch
from pullback.check.trial import Raised, guarded, reseed
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    known = settings(audit)
    # A backward that adds to `.grad` itself, which PB210 tells, gives other gradients there without a checkpoint, too.
    alike = known if all(_agrees_by_backward(setting) for setting in known) else []
    for way, suited in ((_NOT_REENTRANT, known), (_REENTRANT, alike)):
        found = list(compare(audit, "PB411", suited, [way]))
        yield from found
        if found:
            return


def _agrees_by_backward(setting: EagerReference) -> bool:
    try:
        with guarded("backward"):
            return setting.differs(_by_backward(setting, setting.function())) is None
    except Raised:
        return False


def _by_backward(setting: EagerReference, function: Callable[..., Sequence[Tensor]]) -> Sequence[Tensor | None]:
    leaves = setting.leaves()
    reseed()
    outs, cotangents = _in_graph(setting, function(*leaves))
    torch.autograd.backward(outs, cotangents)
    return [leaf.grad for leaf in leaves]


def _in_graph(setting: EagerReference, outs: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    pairs = [(o, g) for o, g in zip(outs, setting.cotangents, strict=True) if o.requires_grad]
    return [o for o, _ in pairs], [g for _, g in pairs]


def _not_reentrant(setting: EagerReference) -> Sequence[Tensor | None]:
    leaves = setting.leaves()
    reseed()
    outs, cotangents = _in_graph(setting, checkpoint(setting.function(), *leaves, use_reentrant=False))
    return torch.autograd.grad(outs, leaves, cotangents, allow_unused=True)


def _reentrant(setting: EagerReference) -> Sequence[Tensor | None]:
    # It refuses torch.autograd.grad.
    return _by_backward(setting, functools.partial(checkpoint, setting.function(), use_reentrant=True))


def _way(
    use_reentrant: bool, run: Callable[[EagerReference], Sequence[Tensor | None]], code: Sequence[str]
) -> ContextCall:
    return ContextCall(
        f"checkpoint(use_reentrant={use_reentrant})",
        run,
        [
            "from torch.utils.checkpoint import checkpoint",
            "inputs = [x.detach().requires_grad_() for x in inputs]",
            f"outs = checkpoint(call, *inputs, use_reentrant={use_reentrant})",
            "print('eager mode:', expected)",
            *code,
        ],
        hint="the forward runs a second time, in the backward: keep what the backward needs on ctx alone",
        raising="the backward runs on tensors that were computed a second time: keep nothing outside ctx",
        refused_as="warning",
    )


_NOT_REENTRANT = _way(
    False,
    _not_reentrant,
    ["print('checkpoint:', torch.autograd.grad(outs, inputs, cotangents, allow_unused=True))"],
)
_REENTRANT = _way(
    True,
    _reentrant,
    ["torch.autograd.backward(outs, cotangents)", "print('checkpoint:', [x.grad for x in inputs])"],
)


def _static(source: FunctionSource) -> Iterator[SourceMatch]:
    backward = source.methods.get("backward")
    if backward is None or not isinstance(source.node, ast.ClassDef):
        return
    unpackings = _longest_path(backward.body)
    if len(unpackings) > 1:
        yield SourceMatch(
            unpackings[1],
            f"ctx.saved_tensors is read again, after line {unpackings[0]}",
            "unpack it once, in the first line: x, y = ctx.saved_tensors",
            "warning",
        )


def _longest_path(body: Sequence[ast.stmt]) -> list[int]:
    """Return the lines of the reads on the way through some statements that has most."""
    lines: list[int] = []
    longest: list[int] = []
    for statement in body:
        match statement:
            case ast.If(test=test, body=then, orelse=other):
                lines += _unpackings(test)
                ways = sorted(
                    ((_longest_path(way), _leaves(way)) for way in (then, other)), key=lambda way: len(way[0])
                )
                longest = max([longest, *(lines + way for way, _ in ways)], key=len)
                going_on = [way for way, leaves in ways if not leaves]
                if not going_on:
                    return longest
                lines = lines + going_on[-1]
            case ast.For(body=inner) | ast.While(body=inner):
                lines = lines + 2 * _longest_path(inner)
            case ast.With(body=inner) | ast.Try(body=inner):
                lines = lines + _longest_path(inner)
            case _:
                lines = lines + _unpackings(statement)
    return max(longest, lines, key=len)


def _unpackings(node: ast.AST) -> list[int]:
    return [n.lineno for n in ast.walk(node) if isinstance(n, ast.Attribute) and n.attr == "saved_tensors"]


def _leaves(body: Sequence[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Return | ast.Raise)


RULE = Rule(__doc__, runtime=_run, static=_static, column="checkpoint", early=1)

"""func-jacrev-differs (PB408): a vectorised backward gives another Jacobian than one backward per row.

## What it finds
`torch.autograd.grad(…, is_grads_batched=True)` with three cotangents, and `torch.func.jacrev` of a few output elements,
are compared with one backward for each. Both run the backward under vmap. A difference is an error. An exception, such
as for a branch on the cotangent's values, is an info, or a warning if the Function declares a rule for vmap (`vmap`, or
`generate_vmap_rule = True`).

## Why it hurts
`jacrev`, `hessian` and `torch.autograd.functional.jacobian(vectorize=True)` run the backward this way. A
backward that takes a norm over all of `g`, or writes in place into a buffer, mixes the rows or breaks.

## Limits
Only a few rows of the Jacobian are compared.

## Bad
```python
class Cube(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x * x * g if g.any() else torch.zeros_like(x)
```

## Good
```python
class Cube(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x * x * g
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pullback.check.contexts.compare import DifferenceText, RefusalText, differing, is_promised, preamble, refusing
from pullback.check.contexts.eager import EagerReference, parts, settings
from pullback.check.rules._rule import Rule
from pullback.check.trial import Raised, guarded, reseed
from pullback.report.model import Finding, Severity

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_ROWS = 3
_BATCHED = "is_grads_batched=True"
_JACREV = "torch.func.jacrev"
_HINT = "the backward must treat its cotangent as one tensor of the given shape, by PyTorch operations alone"


def _run(audit: Audit) -> Iterator[Finding]:
    ways = ((_BATCHED, _batched, _one_by_one, _BATCHED_CODE), (_JACREV, _jacrev, _rows, _JACREV_CODE))
    for name, vectorised, single, code in ways:
        for setting in settings(audit):
            if name == _JACREV and any(x.is_complex() for x in setting.inputs):
                return  # jacrev takes real inputs only
            audit.events.beat()
            lines = [*preamble(setting), *code]
            try:
                expected = single(setting)
                with guarded(name):
                    got = vectorised(setting)
            except Raised as error:
                if error.stage == name:
                    severity: Severity | None = None if is_promised(audit.subject, vmap=True) else "info"
                    refused = RefusalText(name, lines, context="vectorised", severity=severity)
                    yield refusing(audit, "PB408", setting, error, refused)
                break
            different = parts(expected, got)
            if different is not None:
                text = DifferenceText(name, lines, _HINT, yardstick="one backward at a time")
                yield differing(audit, "PB408", setting, different, text)
                break


def _cotangents(setting: EagerReference) -> list[Tensor]:
    """Return three cotangents for each output, stacked, none a multiple of another."""
    return [
        torch.stack([g, 2 * g.flatten().roll(1).view(g.shape), g.flip(tuple(range(g.ndim)))])
        for g in setting.cotangents
    ]


def _batched(setting: EagerReference) -> list[Tensor | None]:
    leaves = setting.leaves()
    reseed()
    outs = setting.function()(*leaves)
    return list(torch.autograd.grad(outs, leaves, _cotangents(setting), is_grads_batched=True, allow_unused=True))


def _one_by_one(setting: EagerReference) -> list[Tensor | None]:
    leaves = setting.leaves()
    reseed()
    with guarded("forward"):
        outs = setting.function()(*leaves)
    stacked = _cotangents(setting)
    with guarded("backward"):
        return _stacked(
            [
                torch.autograd.grad(outs, leaves, [g[row] for g in stacked], retain_graph=True, allow_unused=True)
                for row in range(_ROWS)
            ]
        )


def _chosen(setting: EagerReference) -> list[Tensor]:
    """Return, for each output, the indices of the elements whose rows are computed."""
    sizes = [value.numel() for value in setting.values]
    return [torch.tensor(sorted({0, size // 2, size - 1}) if size else []).long() for size in sizes]


def _jacrev(setting: EagerReference) -> list[Tensor | None]:
    function, chosen = setting.function(), _chosen(setting)

    def elements(*xs: Tensor) -> Tensor:
        return torch.cat([out.flatten()[at] for out, at in zip(function(*xs), chosen, strict=True)])

    reseed()
    everything = tuple(range(len(setting.inputs)))
    return list(torch.func.jacrev(elements, argnums=everything)(*setting.inputs))


def _rows(setting: EagerReference) -> list[Tensor | None]:
    leaves, chosen = setting.leaves(), _chosen(setting)
    reseed()
    with guarded("forward"):
        outs = setting.function()(*leaves)
        elements = torch.cat([out.flatten()[at] for out, at in zip(outs, chosen, strict=True)])
    with guarded("backward"):
        return _stacked([torch.autograd.grad(e, leaves, retain_graph=True, allow_unused=True) for e in elements])


def _stacked(rows: list[tuple[Tensor | None, ...]]) -> list[Tensor | None]:
    columns = zip(*rows, strict=True)
    made: list[Tensor | None] = []
    for column in columns:
        given = [t for t in column if t is not None]
        zero = torch.zeros_like(given[0]) if given else None
        made.append(None if zero is None else torch.stack([zero if t is None else t for t in column]))
    return made


_BATCHED_CODE = (
    "rows = [torch.stack([g, 2 * g.flatten().roll(1).view(g.shape), g.flip(tuple(range(g.ndim)))])",
    "        for g in cotangents]",
    "outs = call(*inputs)",
    "for row in range(3):",
    "    gs = [g[row] for g in rows]",
    "    print('single:', torch.autograd.grad(outs, inputs, gs, retain_graph=True, allow_unused=True))",
    "print('batched:', torch.autograd.grad(outs, inputs, rows, is_grads_batched=True, allow_unused=True))",
)
_JACREV_CODE = (
    "def ends(*xs):",
    "    return torch.cat([out.flatten()[[0, out.numel() // 2, -1]] for out in call(*xs)])",
    "for element in ends(*inputs):",
    "    print('single:', torch.autograd.grad(element, inputs, retain_graph=True, allow_unused=True))",
    "print('jacrev:', torch.func.jacrev(ends, argnums=tuple(range(len(points))))(*points))",
)

RULE = Rule(__doc__, runtime=_run, column="func.jacrev", transforms=True, context="torch.func")

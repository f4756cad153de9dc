"""func-vmap-differs (PB406): torch.func.vmap gives other values or gradients than a loop over the batch.

## What it finds
The function is mapped over a batch of three examples by `vmap`. Its values, and the gradients through the batch, are
compared with those of a Python loop. All tensors are batched along their first dimension, then along different
dimensions, then one tensor is batched and the others are shared; per-example gradients (`vmap` of `vjp`) are compared
too. A difference is an error. PyTorch rejects a Function without a vmap rule, or without `setup_context`, with a clear
error: that is an info. If a Function declares a rule (`vmap`, or `generate_vmap_rule = True`) and raises, that is a
warning.

## Why it hurts
A hand-written vmap rule that confuses two batch dimensions returns numbers of the right shape.
`generate_vmap_rule` runs forward and backward on batched tensors, where a branch on a value or `.item()` cannot
work.

## Limits
The rule tests one level of vmap. Random numbers are drawn once for the batch (`randomness="same"`).

## Bad
```python
class Dot(torch.autograd.Function):
    @staticmethod
    def forward(x, y):
        return (x * y).sum(-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g[..., None] * y, g[..., None] * x

    @staticmethod
    def vmap(info, in_dims, x, y):
        return Dot.apply(x, y), 0


def inputs():
    return torch.randn(3, 3, dtype=torch.float64), torch.randn(3, 3, dtype=torch.float64)
```

## Good
```python
class Dot(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, y):
        return (x * y).sum(-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g[..., None] * y, g[..., None] * x


def inputs():
    return torch.randn(3, 3, dtype=torch.float64), torch.randn(3, 3, dtype=torch.float64)
```
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from pullback.check.contexts.batches import Batch, batches
from pullback.check.contexts.compare import DifferenceText, RefusalText, differing, is_promised, refusing
from pullback.check.contexts.eager import EagerReference, base_setting, parts, setting_of
from pullback.check.rules._rule import Rule
from pullback.check.trial import Raised
from pullback.report.model import Finding, Severity

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_HINT = "look at how the vmap rule uses in_dims: each may be None or any dimension, and differ from the others"


def _run(audit: Audit) -> Iterator[Finding]:
    base = base_setting(audit)
    if base is None:
        return
    for setting in (base, *_of_unequal_rank(audit)):
        for i, (batch, expected) in enumerate(batches(setting)):
            audit.events.beat()
            found = _compare(audit, setting, batch, expected, with_vjp=i == 0)
            if found is not None:
                yield found
                return


def _of_unequal_rank(audit: Audit) -> Iterator[EagerReference]:
    """Yield the example with one tensor short of its first dimension, where the forward broadcasts."""
    case = audit.base
    for position in case.wrt if len(case.wrt) > 1 else ():
        t = case.values[position]
        if t.ndim and t.shape[0]:
            found = setting_of(audit.subject, case.with_values({position: t[0]}))
            if found is not None:
                yield found


def _compare(
    audit: Audit, setting: EagerReference, batch: Batch, expected: list[Tensor | None], with_vjp: bool
) -> Finding | None:
    code = batch.code()
    try:
        found = _difference(audit, setting, batch, batch.mapped(), expected, code)
        if found is not None or not with_vjp:
            return found
        code = [*code, *batch.per_example_code()]
        gradients = batch.per_example_gradients()
    except Raised as error:
        severity: Severity | None = None if is_promised(audit.subject, vmap=True) else "info"
        refused = RefusalText(error.stage, code, context="vectorised", severity=severity)
        return refusing(audit, "PB406", setting, error, refused)
    outputs = len(setting.outputs)
    return _difference(audit, setting, batch, [*expected[:outputs], *gradients], expected, code)


def _difference(
    audit: Audit,
    setting: EagerReference,
    batch: Batch,
    got: list[Tensor | None],
    expected: list[Tensor | None],
    code: Sequence[str],
) -> Finding | None:
    different = parts(expected, got)
    if different is None:
        return None
    text = DifferenceText(batch.name, code, _HINT, labels=batch.labels(), yardstick="in a loop")
    return differing(audit, "PB406", setting, different, text)


RULE = Rule(__doc__, runtime=_run, column="func.vmap", transforms=True, context="vmap")

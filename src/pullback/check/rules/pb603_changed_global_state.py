"""changed-global-state (PB603): a call leaves a global setting, or the seed of a generator, changed.

## What it finds
PyTorch's settings before a call are compared with those after the forward and after the backward: default dtype, grad
mode, autocast, number of threads, deterministic algorithms, anomaly detection, precision of float32 matrix products,
cuDNN's options. The rule also compares the states of PyTorch's, Python's and NumPy's random number generators: if two
runs from different states end in the same state, the call has set the seed.

## Why it hurts
All code that runs afterwards is affected. A seed set in a layer makes every later dropout mask and every shuffle the
same in each step, and the cause is hard to find.

## Limits
Settings that change the results of other code are an error, others a warning. Drawing random numbers is allowed, and so
is setting a seed if the state is restored afterwards (`torch.random.fork_rng`). The random states of GPUs, environment
variables and settings of other libraries are not compared.

## Bad
```python
class Jitter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, seed=0):
        torch.manual_seed(seed)
        return x + torch.rand_like(x)

    @staticmethod
    def backward(ctx, g):
        return g, None
```

## Good
```python
class Jitter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, seed=0):
        generator = torch.Generator(x.device).manual_seed(seed)
        return x + torch.rand(x.shape, generator=generator, dtype=x.dtype, device=x.device)

    @staticmethod
    def backward(ctx, g):
        return g, None
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pullback.check.purity.settings import changes
from pullback.check.rules._rule import Rule
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    found = changes(audit.subject, audit.base)
    for stage in ("forward", "backward"):
        for severity in ("error", "warning"):
            changes_of_stage = [change for change in found if (change.stage, change.severity) == (stage, severity)]
            if changes_of_stage:
                yield audit.finding(
                    "PB603",
                    severity,
                    "wrong",
                    f"the {stage} changes {' and '.join(change.what for change in changes_of_stage)}",
                    case=audit.base,
                    tail=_tail(audit, stage, changes_of_stage[0].shown),
                    hint="use an argument, a generator of its own or a context manager that restores the setting",
                )


def _tail(audit: Audit, stage: str, shown: str) -> list[str]:
    backward = [
        audit.outs,
        "torch.autograd.grad(outs, inputs, [torch.ones_like(o) for o in outs], allow_unused=True)",
    ]
    imports = [f"import {name}" for name in ("random", "numpy") if shown.startswith(f"{name}.")]
    return [*imports, *(backward if stage == "backward" else []), f"print('afterwards:', {shown})"]


RULE = Rule(__doc__, runtime=_run, shrinks=False, needs_repeatable=False, of_weights="alone")

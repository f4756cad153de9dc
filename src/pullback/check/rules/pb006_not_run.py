"""not-run (PB006): some rules or variants did not run, most often for lack of time.

## What it finds
A function so slow that the budget (`--budget`, in seconds of processor time per function) ran out before every rule
could run, or before the gradient was compared on every variant of the inputs. The contract rules always run, but on
fewer variants. The rule also reports a function of tensors on a GPU, for which the rules that inspect CPU memory do not
run, and a function whose Triton kernels are interpreted, for which the rules that compile or export do not run.

## Why it hurts
A rule that did not run cannot report anything.

## Limits
It is an info. Raise `--budget`, or give smaller inputs with `--inputs`.

## Bad
```python
import time

class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        time.sleep(0.01)
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g
```

## Good
```python
class Fast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g
```
"""

from __future__ import annotations

from pullback.check.rules._rule import Rule

RULE = Rule(__doc__)

"""budget-spent (PB006): some rules did not run for lack of time.

## What it finds
A function that is so slow that the budget (`--budget`, seconds of processor time for each function) was spent before
every rule could run. The contract rules run whatever the budget is, on fewer variants. And a function of tensors on a
GPU, where rules that look at the CPU's memory do not run.

## Why it hurts
A rule that did not run found nothing.

## Limits
An info: raise `--budget`, or give smaller inputs with `--inputs`.

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

"""exhausts-memory (PB005): a call asks for more memory than there is.

## What it finds
An allocation that fails, or a process killed by the system, on inputs of a few hundred elements. Each audit may
use 8 GiB more than it starts with.

## Why it hurts
Memory that grows with the square of the input, or with a value in it, works in the test and takes the machine
down in use.

## Limits
On a machine with a GPU there is no limit of ours, since its driver reserves address space far beyond it: only
the system's own applies. A SIGKILL sent by somebody else looks the same.

## Bad
```python
class PairwiseSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        table = torch.zeros(100_000, 100_000, dtype=x.dtype)  # 75 GiB, whatever x is
        table[: x.numel(), : x.numel()] = x.flatten()[:, None] + x.flatten()[None, :]
        return table.sum()

    @staticmethod
    def backward(ctx, g):
        return g
```

## Good
```python
class PairwiseSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return 2 * x.numel() * x.sum()

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.shape.numel() * g.expand(ctx.shape)
```
"""

from __future__ import annotations

from pullback.check.rules._rule import Rule

RULE = Rule(__doc__, incident="memory")

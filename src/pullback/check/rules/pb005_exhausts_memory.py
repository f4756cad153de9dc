"""exhausts-memory (PB005): a call asks for more memory than there is.

## What it finds
An allocation that fails, or a process that the system kills, on inputs of a few hundred elements. Each audit may use 8
GiB more than it starts with.

## Why it hurts
If memory grows with the square of the input's size, or with a value in it, the function passes its tests and exhausts
the machine in production.

## Limits
On a machine with a GPU, Pullback sets no limit, since the driver reserves far more address space than 8 GiB; only the
system's own limit applies. A SIGKILL that another program sent looks the same.

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

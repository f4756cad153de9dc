"""never-returns (PB003): a call does not return.

## What it finds
The audit's process sent nothing for 10 seconds, or for the budget where that is longer (180 seconds with `--deep`), and
again nothing when the call was made once more. It was killed, and the audit goes on without that case and rule. An
audit that makes progress but is not done after six budgets and half a minute is stopped too: a warning, and the
function counts as not audited. Seconds are processor time; a process that only waits is killed after three times as
many.

## Why it hurts
A loop that waits for convergence does not end on NaN, on zeros or on an empty tensor, and a training job then
hangs without a message.

## Limits
A clock cannot tell endless from slow: raise `--budget`, or give smaller inputs with `--inputs`. An info where
PyTorch's compiler took the time. A warning where only a
variant of the example hangs, or a guessed call, which may be no input for it; where the call came back when it was made
again; and where the process did not work all the while but waited, as for a thread, which a forked process lacks. From
the command line a hang on the example is an error only if it also happens in a Python that was not forked.

## Bad
```python
class Root(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        y = torch.ones_like(a)
        while not ((y * y - a).abs() < 1e-12).all():
            y = (y + a / y) / 2
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g / (2 * y)

def inputs():
    return (torch.ones(3, dtype=torch.float64, requires_grad=True),)
```

## Good
```python
class Root(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        y = torch.ones_like(a)
        for _ in range(50):
            y = (y + a / y) / 2
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g / (2 * y)

def inputs():
    return (torch.ones(3, dtype=torch.float64, requires_grad=True),)
```
"""

from __future__ import annotations

from pullback.check.rules._rule import Rule

RULE = Rule(__doc__, incident="hang")

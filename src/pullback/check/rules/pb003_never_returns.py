"""never-returns (PB003): a call does not return.

## What it finds
The audit's process made no progress for 10 seconds (180 seconds with `--deep`), or for the length of the budget if that
is longer, and the same happened when the call was repeated. The process was killed, and the audit goes on without that
case and rule. An audit that makes progress but is not done after six budgets and half a minute is stopped too: this is
a warning, and the function counts as not audited. Seconds are seconds of processor time; a process that only waits is
killed after three times as many.

## Why it hurts
A loop that waits for convergence may not end on NaN, zeros or an empty tensor. The training job then hangs without a
message.

## Limits
A clock cannot tell an endless call from a slow one: raise `--budget`, or give smaller inputs with `--inputs`. It is an
info if PyTorch's compiler took the time. It is a warning if only a variant of the example or a guessed call hangs,
which may not be a valid input; if the repeated call returned; or if the process was waiting rather than computing, for
example for a thread that a forked process does not have. From the command line, a hang on the example is an error only
if it also happens in a Python process that was not forked.

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

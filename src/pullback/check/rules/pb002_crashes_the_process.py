"""crashes-the-process (PB002): the function kills the process that calls it.

## What it finds
The process of the audit was ended by a signal (SIGSEGV, SIGBUS, SIGFPE, SIGABRT, …) that Pullback did not send.
The finding names the signal, the rule and the case it was in, and the end of what was printed with the Python
lines that were running. The audit goes on in another process without that case and rule, four processes at
most.

## Why it hurts
No `except` catches it: training ends without a traceback, and without a crash the same code reads or writes
memory that belongs to something else.

## Limits
Memory that is overwritten without a crash goes unseen. A crash may come later than its cause: one that comes after a
variant of the example is an error only if its step crashes alone, too. A warning on a variant that may be no valid
input. A SIGKILL, and an abort for want of memory, are PB005.

## Bad
```python
import ctypes

class Shift(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        first = ctypes.c_double.from_address(x.data_ptr()).value  # an empty tensor has address 0
        return x + 0 * first

    @staticmethod
    def backward(ctx, g):
        return g

def inputs():
    return (torch.randn(3, dtype=torch.float64, requires_grad=True),)
```

## Good
```python
class Shift(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        first = x.flatten()[0].item() if x.numel() else 0.0
        return x + 0 * first

    @staticmethod
    def backward(ctx, g):
        return g
```
"""

from __future__ import annotations

from pullback.check.rules._rule import Rule

RULE = Rule(__doc__, incident="crash")

"""crashes-the-process (PB002): the function kills the process that calls it.

## What it finds
The audit's process was killed by a signal (SIGSEGV, SIGBUS, SIGFPE, SIGABRT, …) that Pullback did not send. The finding
names the signal, the rule and the case, and shows the last lines of output and the Python stack at that moment. The
audit goes on in a new process without that case and rule; it starts six processes at most.

## Why it hurts
No `except` catches it, and training ends without a traceback. On other inputs the same code may not crash, and reads or
writes memory that belongs to something else.

## Limits
Memory that is overwritten without a crash is not noticed. A crash may come later than its cause: a crash after a
variant of the example is an error only if its step also crashes alone. It is a warning on a variant that may not be a
valid input. A SIGKILL, and an abort for lack of memory, are reported as PB005.

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

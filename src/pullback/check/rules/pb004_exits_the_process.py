"""exits-the-process (PB004): the function ends the program that calls it.

## What it finds
`os._exit`, an `exit` in native code, or `sys.exit` during a call: the audit's process ended early and without a signal,
or the call raised `SystemExit`.

## Why it hurts
The caller cannot handle it: no checkpoint is saved, the other workers are not notified, and the exit status may even be
0.

## Limits
A function that exits before the first rule is not run again; only the static rules examine it.

## Bad
```python
import sys

class OnlySquare(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        if x.dim() != 2 or x.shape[0] != x.shape[1]:
            sys.exit("x must be square")
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g
```

## Good
```python
class OnlySquare(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        if x.dim() != 2 or x.shape[0] != x.shape[1]:
            raise ValueError(f"x must be square, not {tuple(x.shape)}")
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g
```
"""

from __future__ import annotations

from pullback.check.rules._rule import Rule

RULE = Rule(__doc__, incident="exit")

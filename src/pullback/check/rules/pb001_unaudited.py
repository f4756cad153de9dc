"""unaudited (PB001): the function could not be run, so only its source was examined.

## What it finds
A Function for which no example of a call works: the guesses from its signature, its call sites and its names
all raise, or give nothing to differentiate; or one whose file cannot be imported here, or that needs a module which
cannot. The message says what was tried, and what it raised most often.

## Why it hurts
What was not run was not audited: no news is no good news.

## Limits
Where no guess works, functions and modules of the same package that apply a Function are called with guesses, and what
they give it is the example. Guessing stops after 1500 calls or 4 seconds, and sooner if they fail for what the machine
lacks: a GPU, a process group, a package. Give inputs: `--inputs FILE:function`, a function that is called with the
subject and returns `(args, kwargs)` pairs, or `pullback.check(fn, *inputs)` from Python. An error if given inputs do
not work.

## Bad
```python
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, sequence):
        if sequence["lengths"] is None:
            raise ValueError("lengths must be given")
        return 2 * sequence["values"]

    @staticmethod
    def backward(ctx, g):
        return 2 * g
```

## Good
```python
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        return 2 * values

    @staticmethod
    def backward(ctx, g):
        return 2 * g
```
"""

from __future__ import annotations

from pullback.check.rules._rule import Rule

RULE = Rule(__doc__)

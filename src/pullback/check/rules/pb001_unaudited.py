"""unaudited (PB001): the function could not be run, so only its source was examined.

## What it finds
A Function that no guessed call can run: every guess from its signature, its call sites and the names of its arguments
raises or returns nothing to differentiate. Also a Function whose file, or a module that it needs, cannot be imported
here. The message says which calls were tried and which error they raised most often.

## Why it hurts
A function that never ran was not audited. The absence of other findings says nothing about it.

## Limits
If no guess works, Pullback calls the functions and modules of the same package that apply the Function, with guessed
arguments, and audits the Function on the inputs that they pass to it. Guessing stops after 1500 calls or 4 seconds, or
earlier if the calls fail because the machine lacks something: a GPU, a process group, a package. To audit the function,
give inputs: `--inputs FILE:function` names a function that is called with the subject and returns `(args, kwargs)`
pairs; from Python, call `pullback.check(fn, *inputs)`. It is an error if the given inputs do not work.

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

"""instantiated-function (PB803): an autograd.Function is instantiated instead of applied.

## What it finds
`Name(…)` in the module that defines the Function `Name`. The finding says whether the instance is called: `Name(…)(x)`.

## Why it hurts
Functions were used this way before PyTorch 0.4. Calling an instance raises ("Legacy autograd function"). Making one
gives a warning, and attributes that its `__init__` sets never reach `forward`.

## Limits
It is an error if the instance is called at once, which raises on every run that reaches it; otherwise it is a warning.
Calls from other modules are not seen. Nothing is reported if the module also binds the name to something else.
`pullback check --fix` rewrites `Name()(x)` as `Name.apply(x)`; calls with arguments to `__init__` are left to you.

## Bad
```python
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x

def square(x):
    return Square()(x)
```

## Good
```python
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x

def square(x):
    return Square.apply(x)
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.find.source import FunctionSource
from pullback.check.rules._rule import Rule, SourceMatch


def _static(source: FunctionSource) -> Iterator[SourceMatch]:
    for call, is_called in source.instantiations:
        what = "an instance of it is called, which raises" if is_called else "an instance of it is made"
        yield SourceMatch(
            call.lineno,
            f"{what}: {source.name}(…)",
            f"call {source.name}.apply(…), and pass the arguments of the instance to forward"
            if call.args or call.keywords
            else f"call {source.name}.apply(…)",
            "error" if is_called else "warning",
        )


RULE = Rule(__doc__, static=_static, kinds=("function",), fix="calls")

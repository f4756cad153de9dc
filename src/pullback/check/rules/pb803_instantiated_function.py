"""instantiated-function (PB803): an autograd.Function is instantiated instead of applied.

## What it finds
`Name(…)` in the module that defines the Function `Name`, and whether the instance is called: `Name(…)(x)`.

## Why it hurts
That was the way until PyTorch 0.4. An instance that is called raises ("Legacy autograd function"); to make one warns,
and what its `__init__` keeps never reaches `forward`.

## Limits
An error where the instance is called at once, which raises on every run that gets there; a warning otherwise. Calls
from other modules are not seen. Silent where the module gives the name to anything else as well. `pullback check --fix`
turns `Name()(x)` into `Name.apply(x)`; what an `__init__` takes it leaves to you.

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
            f"call {source.name}.apply(…), and give what the instance is given to forward"
            if call.args or call.keywords
            else f"call {source.name}.apply(…)",
            "error" if is_called else "warning",
        )


RULE = Rule(__doc__, static=_static, kinds=("function",), fix="calls")

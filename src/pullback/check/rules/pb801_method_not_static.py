"""method-not-static (PB801): a method of an autograd.Function is not a staticmethod.

## What it finds
`forward`, `backward`, `setup_context`, `jvp` or `vmap` in the source of a Function without `@staticmethod`, or with
`@classmethod`.

## Why it hurts
`apply` looks the method up on the class, so a plain method happens to work. Called on an instance, or by `super()`, it
gets the instance in place of its context. With `@classmethod` eager mode works, and `torch.compile` fails to trace the
forward.

## Limits
It is a warning, one for all methods. The rule reads the source alone, so it also works if the code cannot run. A
decorator that itself makes a static method is recognised only if it is called `staticmethod`. A method that is assigned
to the class from outside is not seen. `pullback check --fix` writes `@staticmethod` above a method without a decorator,
and in place of a `@classmethod` that does not use its class.

## Bad
```python
class Square(torch.autograd.Function):
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x
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
```
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pullback.check.find.source import FunctionSource
from pullback.check.find.syntax import decorator_names
from pullback.check.rules._rule import Rule, SourceMatch

_STATIC = ("forward", "backward", "setup_context", "jvp", "vmap", "vjp")


def _static(source: FunctionSource) -> Iterator[SourceMatch]:
    if not isinstance(source.node, ast.ClassDef):
        return
    bound: list[str] = []
    plain: list[str] = []
    for name in _STATIC:
        method = source.methods.get(name)
        if method is None or "staticmethod" in decorator_names(method):
            continue
        if "classmethod" in decorator_names(method):
            bound.append(name)
        elif not method.decorator_list:
            plain.append(name)
    for names, one, several, hint in (
        (bound, "is a classmethod", "are classmethods", "make it a @staticmethod and call the class by its name"),
        (plain, "is not a staticmethod", "are not staticmethods", "write @staticmethod above it"),
    ):
        if names:
            what = f"{' and '.join(names)} {one if len(names) == 1 else several}"
            what += ", which torch.compile does not trace" if names is bound else ""
            yield SourceMatch(source.methods[names[0]].lineno, what, hint, "warning")


RULE = Rule(__doc__, static=_static, kinds=("function",), fix="style")

"""allow-without-reason (PB007): an allow comment gives no reason, so it does not count.

## What it finds
`# pullback: allow[NAME]` with nothing behind it. The comment silences a finding of that rule in the class that
it stands in or directly above, but only with a reason: `# pullback: allow[wrong-vjp] clips the gradient on
purpose`.

## Why it hurts
Who reads the code later cannot tell a decision from a shortcut.

## Limits
Any text counts as a reason.

## Bad
```python
class Clip(torch.autograd.Function):  # pullback: allow[nonlinear-in-cotangent]
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g.clamp(-1, 1)
```

## Good
```python
class Clip(torch.autograd.Function):  # pullback: allow[nonlinear-in-cotangent] clips the gradient on purpose
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g.clamp(-1, 1)
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.find.source import FunctionSource
from pullback.check.rules._rule import SourceMatch, rule


def _static(source: FunctionSource) -> Iterator[SourceMatch]:
    for line in source.allow_without_reason:
        yield SourceMatch(
            line,
            "this allow comment gives no reason, so it does not count",
            "write why after the bracket: # pullback: allow[NAME] reason",
            "warning",
        )


RULE = rule(__doc__, static=_static)

"""idle-allow-comment (PB007): an allow comment has no effect: it gives no reason, or names no rule.

## What it finds
A comment `# pullback: allow[NAME]` without a reason after it, without brackets, or with a NAME that is not the name or
id of a rule. In a class or on the line above it, the comment silences that rule's findings for the class, but only with
a reason: `# pullback: allow[wrong-vjp] clips the gradient on purpose`.

## Why it hurts
Without a reason, later readers cannot tell a decision from a shortcut. A misspelt name silences nothing.

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
from pullback.check.rules import rule_named
from pullback.check.rules._rule import Rule, SourceMatch


def _static(source: FunctionSource) -> Iterator[SourceMatch]:
    for line in source.allow_without_reason:
        yield SourceMatch(
            line,
            "this allow comment names no rule in brackets or gives no reason, so it does not count",
            "write # pullback: allow[NAME] reason",
            "warning",
        )
    for name in source.allow:
        if rule_named(name) is None:
            yield SourceMatch(
                source.line,
                f"an allow comment names {name!r}, which is not a rule",
                "`pullback rules` lists them",
                "warning",
            )


RULE = Rule(__doc__, static=_static)

"""random-in-backward (PB811): the source of the backward draws random numbers.

## What it finds
In a Function that cannot be run here: calls of `torch.rand`, `randn`, `randint`, `randperm`, `bernoulli`,
`multinomial`, `dropout` and their siblings in a backward, without a `generator` and with no random state restored in
the method. Where the function runs, PB602 and PB101 compare gradients.

## Why it hurts
If it is to be what the forward drew, it is not: the generator has moved on.

## Limits
A warning. A match proves that the gradient depends on the generator's state if the line is reached, not that this is
wrong: stochastic estimators do it on purpose. Draws in functions that the backward calls are not seen.

## Bad
```python
class Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return cuda_kernels.dropout(x, torch.rand_like(x))

    @staticmethod
    def backward(ctx, g):
        return g * (torch.rand_like(g) > 0.5)
```

## Good
```python
class Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        noise = torch.rand_like(x)
        ctx.save_for_backward(noise > 0.5)
        return cuda_kernels.dropout(x, noise)

    @staticmethod
    def backward(ctx, g):
        (kept,) = ctx.saved_tensors
        return g * kept
```
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from pullback.check.find.source import FunctionSource
from pullback.check.find.syntax import ast_text
from pullback.check.rules._rule import SourceMatch, rule
from pullback.check.rules._source import calls, text

_DRAWS = re.compile(r"(rand(n|int|perm)?(_like)?|bernoulli_?|multinomial|(alpha_)?dropout\d?d?|normal_|uniform_)$")
_RESTORES = re.compile(r"set_rng_state|fork_rng|manual_seed")


def _static(source: FunctionSource) -> Iterator[SourceMatch]:
    backward = source.methods.get("backward")
    if backward is None or not isinstance(source.node, ast.ClassDef) or _RESTORES.search(ast_text(backward)):
        return
    for call, name in calls(backward):
        if _DRAWS.match(name) and not any(keyword.arg == "generator" for keyword in call.keywords):
            yield SourceMatch(
                call.lineno,
                f"the backward draws random numbers: {text(call)}",
                "save what the forward drew, or the generator's state from before; or say that it is meant",
                "warning",
            )


RULE = rule(__doc__, static=_static, kinds=("function",), stands_for="PB602")

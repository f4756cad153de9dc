"""redrawn-randomness (PB602): the backward redraws the forward's random numbers.

## What it finds
If the forward draws random numbers, its backward runs from two states of the random number generators. If the gradient
depends on the state, the backward draws new numbers. It is an error if the gradient is the derivative of the forward
when the backward starts from the forward's state, since it then is not from any other state.

## Why it hurts
The gradient belongs to another mask, or other noise, than the value: a dropout then drops one set of units and trains
another. A test that sets the seed before both forward and backward does not notice.

## Limits
It is a warning if the gradient cannot be compared with a derivative. A backward that restores the forward's state
(`torch.set_rng_state`), or draws from a saved seed, is correct. A function that calls itself stochastic ("sampling",
"unbiased") gets a finding only if its gradient is correct from the forward's state.

## Bad
```python
class Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * (torch.rand_like(x) > 0.5) * 2

    @staticmethod
    def backward(ctx, g):
        return g * (torch.rand_like(g) > 0.5) * 2
```

## Good
```python
class Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        kept = torch.rand_like(x) > 0.5
        ctx.save_for_backward(kept)
        return x * kept * 2

    @staticmethod
    def backward(ctx, g):
        (kept,) = ctx.saved_tensors
        return g * kept * 2
```

## In the source: random-in-backward (PB811)
If the function cannot be run, this rule looks for calls of `torch.rand`, `randn`, `randint`, `randperm`, `bernoulli`,
`multinomial`, `dropout` and the like in a backward, without a `generator` and without restoring a random state in the
method. It is a warning: a match proves that the gradient depends on the generator's state if the line is reached. That
may be correct, as in a stochastic estimator. Draws in functions that the backward calls are not seen.

### Bad
```python
class Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return cuda_kernels.dropout(x, torch.rand_like(x))

    @staticmethod
    def backward(ctx, g):
        return g * (torch.rand_like(g) > 0.5)
```

### Good
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
from typing import TYPE_CHECKING

from pullback.check.cases.repro import bind
from pullback.check.derivative.agreement import show
from pullback.check.derivative.intent import declared_random
from pullback.check.find.source import FunctionSource
from pullback.check.find.syntax import ast_text
from pullback.check.rules._rule import Rule, SourceMatch
from pullback.check.rules._source import calls, text
from pullback.check.trial import SEED, standard_cotangents
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    where = audit.redrawn
    if where is None:
        return
    result = audit.base_result
    right = result is not None and all(c.status == "ok" for c in result.comparisons if c.compared)
    is_intended = audit.intent is not None or declared_random(audit.subject) is not None
    if is_intended and not right:
        return
    yield audit.finding(
        "PB602",
        "error" if right and not is_intended else "warning",
        "wrong",
        f"the backward draws random numbers again: the gradient of {audit.names[where.tensor_index]} is "
        f"{show(where.expected)} from the forward's random state{', which is right,' if right else ''} and "
        f"{show(where.got)} from another",
        case=audit.base,
        tail=[
            audit.outs,
            bind("g", standard_cotangents(audit.base_run.roots)),
            f"for seed in ({SEED}, {SEED + 1}):",
            "    torch.manual_seed(seed)",
            "    print(torch.autograd.grad(outs, inputs, g, retain_graph=True, allow_unused=True))",
        ],
        hint="save what the forward drew, or the generator's state from before, and use that in the backward",
    )


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
                "save what the forward drew, or the generator's state from before; or say that it is intended",
                "warning",
            )


RULE = Rule(__doc__, runtime=_run, static=_static, blames="backward", of_weights="alone")

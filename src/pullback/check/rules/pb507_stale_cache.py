"""stale-cache (PB507): a call uses a cached value that does not fit it.

## What it finds
The rule compares the state that the function's code names before its first call and after later ones: attributes of the
class, globals, closure variables, `functools` caches. If that state changes, the function is called with other values,
another dtype, another size or another numeric argument: once from the initial state, and once from the initial state
after a call with the example. Value, gradient and dtype must be the same both times, and so must those of the example
after the other call.

## Why it hurts
A mask or table that is cached by its shape alone is wrong for the next dtype or device, and one without a cache key for
the next shape. The first call is correct, so tests that make a single call pass.

## Limits
State in other modules, in objects and in compiled code is not seen, and neither are values that were cached before the
audit. A function whose result changes with every call is not checked.

## Bad
```python
class Ramp(torch.autograd.Function):
    cache = {}

    @staticmethod
    def weights(x):
        if x.shape not in Ramp.cache:
            Ramp.cache[x.shape] = torch.linspace(0, 1, x.shape[-1], dtype=x.dtype)
        return Ramp.cache[x.shape]

    @staticmethod
    def forward(ctx, x):
        return x * Ramp.weights(x)

    @staticmethod
    def backward(ctx, g):
        return g * Ramp.weights(g)

def inputs():
    return (torch.randn(3, 5, dtype=torch.float64, requires_grad=True),)
```

## Good
```python
class Ramp(torch.autograd.Function):
    cache = {}

    @staticmethod
    def weights(x):
        key = (x.shape[-1], x.dtype, x.device)
        if key not in Ramp.cache:
            Ramp.cache[key] = torch.linspace(0, 1, x.shape[-1], dtype=x.dtype, device=x.device)
        return Ramp.cache[key]

    @staticmethod
    def forward(ctx, x):
        return x * Ramp.weights(x)

    @staticmethod
    def backward(ctx, g):
        return g * Ramp.weights(g)

def inputs():
    return (torch.randn(3, 5, dtype=torch.float64, requires_grad=True),)
```
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from torch import Tensor

from pullback.check.case import Case
from pullback.check.cases.layouts import other_dtypes
from pullback.check.cases.repro import bind, call_text, variables
from pullback.check.cases.sizes import resized
from pullback.check.derivative.agreement import difference
from pullback.check.purity.memory import Memory
from pullback.check.rules._rule import Rule
from pullback.check.trial import Raised, forward, standard_cotangents, vjp
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_MOST_SIZES = 3


def _run(audit: Audit) -> Iterator[Finding]:
    memory = audit.memory
    if memory is None or not audit.backward_works or not memory.has_changed():
        return
    for other in _others(audit.base):
        for first, second in ((audit.base, other), (other, audit.base)):
            audit.events.beat()
            what = _stale(audit, memory, first, second)
            if what is None:
                continue
            yield audit.finding(
                "PB507",
                "error",
                "wrong",
                f"called with {_spoken(second)} after {_spoken(first)}, {what}",
                case=first,
                tail=_script(second),
                hint="key the cache by everything that the value depends on: shape, dtype, device, every argument",
            )
            return


def _others(case: Case) -> Iterator[Case]:
    """Yield the case with other values, another dtype, other sizes and another number as argument, one at a time."""
    yield case.map_inputs(lambda t: 2 * t.flip(0) if t.ndim else 2 * t, "other values")
    yield from islice(other_dtypes(case), 1)
    yield from (resized(case, {size: size + 1}) for size in sorted(case.sizes)[:_MOST_SIZES])
    for position, value in enumerate(case.values):
        if isinstance(value, bool | int | float):
            changed = not value if isinstance(value, bool) else value + 1
            yield case.with_values({position: changed}, f"{case.names[position]}={changed}")


def _stale(audit: Audit, memory: Memory, first: Case, second: Case) -> str | None:
    """Return how the second call differs if the first one precedes it; `None` if it does not."""
    try:
        with memory.forgotten():
            fresh = _results(audit, second)
            repeated = _results(audit, second)
    except Raised:
        return None
    if _differs(fresh, repeated):
        return None
    try:
        with memory.forgotten():
            forward(audit.subject, first)
            after = _results(audit, second)
    except Raised as error:
        return None if _refuses(audit, memory, first) else f"{error}; called first, it does not"
    return _differs(fresh, after)


def _refuses(audit: Audit, memory: Memory, case: Case) -> bool:
    """Whether a case raises in the first state too."""
    try:
        with memory.forgotten():
            forward(audit.subject, case)
    except Raised:
        return True
    return False


def _results(audit: Audit, case: Case) -> list[Tensor | None]:
    """Return values, then gradients."""
    run = forward(audit.subject, case)
    values: list[Tensor | None] = [out.detach() for out in run.outputs]
    return values + vjp(run, standard_cotangents(run.roots, run.differentiable))


def _differs(expected: list[Tensor | None], got: list[Tensor | None]) -> str | None:
    for position, (a, b) in enumerate(zip(expected, got, strict=True)):
        if a is not None and b is not None and a.dtype != b.dtype:
            return f"result {position} is of {b.dtype}; called first, it is of {a.dtype}"
    where = difference(expected, got)
    return None if where is None else f"result {where.tensor_index} is another than if it is called first: {where}"


def _spoken(case: Case) -> str:
    return case.label if case.is_variant else "the example"


def _script(case: Case) -> list[str]:
    names = variables(case)
    tensors = {names[p]: t for p, t in case.all_tensors.items()}
    return [
        *(bind(name, t) for name, t in tensors.items()),
        f"print('after that call:', fn({call_text(case)}))",
        "# The last call without the one before, in a new process, gives something else.",
    ]


RULE = Rule(__doc__, runtime=_run, kinds=("function", "callable"), shrinks=False)

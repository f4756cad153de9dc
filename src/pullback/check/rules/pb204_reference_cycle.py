"""reference-cycle (PB204): the memory of a call is not freed when its outputs are dropped.

## What it finds
Three calls run with the garbage collector off. The outputs of each are dropped, first without a backward and then after
one. The inputs, outputs and graph nodes of the call must then be freed. If they are not, the collector runs: memory
that it frees was held by a reference cycle; memory that it does not free, over twenty more calls, is a permanent leak.

## Why it hurts
An output on its own `ctx` references the node that references it. The memory of every step stays until Python's
collector happens to run, which counts objects and ignores their size. The result is an occasional out-of-memory error
that no traceback explains. A list that every call appends to grows until the process ends.

## Limits
A function may keep the tensors of its last call: only memory that two or more calls leave is reported. Tensors that are
not inputs or outputs and that the node does not hold are not seen.

## Bad
```python
class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.out = x.exp()
        return ctx.out

    @staticmethod
    def backward(ctx, g):
        return g * ctx.out
```

## Good
```python
class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = x.exp()
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g * out
```
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor

from pullback.check.rules._rule import Rule
from pullback.check.trial import forward, standard_cotangents, vjp
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_CALLS = 3
_MANY_CALLS = 20

_Watched = Sequence["weakref.ref[Any]"]
"""Of one call: its inputs, its outputs and their nodes."""


def _run(audit: Audit) -> Iterator[Finding]:
    for backward in (False, True) if audit.backward_works else (False,):
        with _collector_off():
            calls = [_watched(audit, backward) for _ in range(_CALLS)]
            held = _held(calls)
            if len(held) < 2:
                continue
            size = _bytes(held[0])
            gc.collect()
            for_good = len(_held(calls)) > 1 and _grows(audit, backward)
        until = "for good" if for_good else "until the garbage collector runs"
        yield audit.finding(
            "PB204",
            "error" if for_good else "warning",
            "wrong",
            f"after {'forward and backward' if backward else 'a forward'} whose outputs are dropped, "
            f"what the call held stays {until}: {size} bytes a call",
            case=audit.base,
            tail=_script(audit, backward),
            hint="keep tensors by ctx.save_for_backward; nothing that outlives the call may hold its outputs",
        )
        return


@contextmanager
def _collector_off() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _watched(audit: Audit, backward: bool) -> _Watched:
    run = forward(audit.subject, audit.base)
    nodes = [root.grad_fn for root in run.roots if root.grad_fn is not None]
    things = [thing for thing in (*run.inputs, *run.outputs, *nodes) if type(thing).__weakrefoffset__]
    watched = [weakref.ref(thing) for thing in things]  # a node of PyTorch's own takes no weak references
    if backward:
        vjp(run, standard_cotangents(run.roots))
    return watched


def _held(calls: Sequence[_Watched]) -> list[list[Any]]:
    """Return the surviving objects of each call that left some alive."""
    alive = [[thing for ref in watched if (thing := ref()) is not None] for watched in calls]
    return [things for things in alive if things]


def _grows(audit: Audit, backward: bool) -> bool:
    """Whether every one of many calls leaves something that the collector cannot free."""
    calls = [_watched(audit, backward) for _ in range(_MANY_CALLS)]
    gc.collect()
    return len(_held(calls)) == _MANY_CALLS


def _bytes(things: Sequence[Any]) -> int:
    storages = [t.untyped_storage() for t in things if isinstance(t, Tensor)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _script(audit: Audit, backward: bool) -> list[str]:
    gradient = ["torch.autograd.grad(outs, inputs, [torch.ones_like(o) for o in outs], allow_unused=True)"]
    return [
        "import gc, weakref",
        "gc.disable()",
        audit.outs,
        "held = weakref.ref(outs[0])",
        *(gradient if backward else []),
        "del out, outs",
        "print('held after the outputs are dropped:', held() is not None)",
        "gc.collect()",
        "print('held after a collection:', held() is not None)",
    ]


RULE = Rule(__doc__, runtime=_run, shrinks=False, needs_cpu=True)
"""Not shrunk: a collection takes a tenth of a second, and a smaller example shows no more."""

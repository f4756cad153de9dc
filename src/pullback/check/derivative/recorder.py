"""Arguments and results of a `backward`, before PyTorch's engine sums, casts and checks them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pullback.check.case import Case
from pullback.check.device import to_cpu
from pullback.check.subject import Subject
from pullback.check.trial import Raised, forward, standard_cotangents, vjp


@dataclass
class Recorded:
    """One call of `backward`.

    Attributes:
        cotangents: as received; `None` where unmaterialised.
        needs: `ctx.needs_input_grad`.
        returned: the results, as a tuple.
        places: the devices that they were on; `None` for what is no tensor.
        raised: whether it raised instead.
        kept: tensors that the forward saved, by `save_for_backward` or on `ctx`.
    """

    cotangents: tuple[Any, ...]
    needs: tuple[bool, ...]
    returned: tuple[Any, ...] = ()
    places: tuple[torch.device | None, ...] = ()
    raised: bool = True
    kept: tuple[Tensor, ...] = field(default=(), repr=False)


@contextmanager
def recording(subject: Subject, inside: AbstractContextManager[Any] | None = None) -> Iterator[list[Recorded]]:
    """Record every call of the backward of a Function subject; of other subjects nothing is recorded.

    Args:
        subject: whose backward.
        inside: a context, to be entered more than once, that each call runs in.
    """
    calls: list[Recorded] = []
    cls = subject.target
    if subject.kind != "function":
        yield calls
        return
    name = backward_name(cls)
    at_hand = tuple if subject.device is None else to_cpu
    original = cls.__dict__.get(name)
    implementation = getattr(cls, name)

    def backward(ctx: Any, *cotangents: Any) -> Any:
        call = Recorded(at_hand(cotangents), tuple(ctx.needs_input_grad), kept=at_hand(_kept(ctx)))
        calls.append(call)
        with inside or nullcontext():
            result = implementation(ctx, *cotangents)
        results = result if isinstance(result, tuple) else (result,)
        call.returned = at_hand(results)
        call.places = tuple(r.device if isinstance(r, Tensor) else None for r in results)
        call.raised = False
        return result

    setattr(cls, name, staticmethod(backward))
    try:
        yield calls
    finally:
        if original is None:
            delattr(cls, name)
        else:
            setattr(cls, name, original)


def _kept(ctx: Any) -> tuple[Tensor, ...]:
    attributes = [value for value in vars(ctx).values() if isinstance(value, Tensor)]
    return (*(t for t in ctx.saved_tensors if isinstance(t, Tensor)), *attributes)


def backward_name(cls: type[torch.autograd.Function]) -> str:
    """Return the method that holds the backward: "backward", or its documented synonym "vjp"."""
    return "vjp" if cls.vjp is not torch.autograd.Function.vjp else "backward"


def record_base(subject: Subject, case: Case, mask: Sequence[bool] | None = None) -> list[Recorded]:
    """Run forward and backward of a case once and return the calls of `backward` that returned something.

    The engine may refuse their results afterwards.
    """
    with recording(subject) as calls, suppress(Raised):
        run = forward(subject, case, mask)
        vjp(run, standard_cotangents(run.roots))
    return [call for call in calls if not call.raised]

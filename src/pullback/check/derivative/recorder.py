"""One forward and backward of a Function: what its `backward` receives, returns and runs.

The engine sums, casts and checks the returned gradients afterwards. Every ATen op of the backward is recorded with its
operands and results.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pullback._torch import DispatchMode, tree_leaves
from pullback.check.case import Case
from pullback.check.subject import Subject, to_cpu
from pullback.check.trial import ForwardRun, Raised, forward, is_freed, standard_cotangents, vjp


@dataclass
class Recorded:
    """One call of `backward`.

    Attributes:
        cotangents: the cotangents received; `None` where unmaterialised.
        needs: `ctx.needs_input_grad`.
        returned: the results, as a tuple.
        places: the devices that they were on; `None` for what is not a tensor.
        raised: whether it raised instead.
        kept: tensors that the forward saved, by `save_for_backward` or on `ctx`.
    """

    cotangents: tuple[Any, ...]
    needs: tuple[bool, ...]
    returned: tuple[Any, ...] = ()
    devices: tuple[torch.device | None, ...] = ()
    raised: bool = True
    kept: tuple[Tensor, ...] = field(default=(), repr=False)


@contextmanager
def recording(subject: Subject, inside: AbstractContextManager[Any] | None = None) -> Iterator[list[Recorded]]:
    """Record every call of the backward of a Function subject; of other subjects nothing is recorded.

    Args:
        subject: the subject whose backward runs.
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
        call.devices = tuple(r.device if isinstance(r, Tensor) else None for r in results)
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


@dataclass(frozen=True, slots=True)
class Misshapen:
    """A returned gradient whose shape is not the input's.

    Attributes:
        name, expected, returned: the input and the two shapes.
        summed: the engine can sum it down to the input's shape, and does.
        is_broadcast: the input was broadcast in the forward and its gradient was not summed back.
    """

    name: str
    expected: tuple[int, ...]
    returned: tuple[int, ...]
    summed: bool
    is_broadcast: bool


def returned_gradients(subject: Subject, case: Case) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield (name, input, gradient as returned) for each differentiated argument that got one."""
    for name, x, gradient, _ in placed_gradients(subject, case):
        yield name, x, gradient


def placed_gradients(subject: Subject, case: Case) -> Iterator[tuple[str, Tensor, Tensor, str]]:
    """As `returned_gradients`, with the device of the gradient if it is not the input's."""
    arguments = case.arguments()[0]
    for call in record_base(subject, case):
        placed = zip(case.top_level(len(arguments)), call.returned, call.devices, strict=False)
        for position, gradient, place in placed:
            if position is not None and position in case.wrt and isinstance(gradient, Tensor) and place is not None:
                x = case.values[position]
                here = place.type == (subject.device or x.device).type
                yield case.names[position], x, gradient, "" if here else str(place)


def misshapen(subject: Subject, case: Case) -> Iterator[Misshapen]:
    """Yield every returned gradient of the wrong shape; nothing if the forward refuses the case."""
    try:
        outputs = forward(subject, case).outputs
    except Raised:
        return
    for name, x, gradient in returned_gradients(subject, case):
        if gradient.shape == x.shape:
            continue
        summed = _expandable(x.shape, gradient.shape)
        shapes = [out.shape for out in outputs]
        grew = (
            summed and gradient.shape in shapes and x.numel() < gradient.numel() and _others_explain(case, x, gradient)
        )
        yield Misshapen(name, tuple(x.shape), tuple(gradient.shape), summed, grew)


def _others_explain(case: Case, x: Tensor, gradient: Tensor) -> bool:
    """Whether the other tensors' shapes explain that the output is wider than `x`."""
    others = [t.shape for t in case.all_tensors.values() if t is not x]
    try:
        return bool(others) and torch.broadcast_shapes(x.shape, *others) == gradient.shape
    except RuntimeError:
        return False


def _expandable(shape: torch.Size, wanted: torch.Size) -> bool:
    try:
        return bool(torch.broadcast_shapes(shape, wanted) == wanted)
    except RuntimeError:
        return False


@dataclass(frozen=True, eq=False)
class BackwardOp:
    """One ATen op: its name, e.g. "aten.mm", its operands and its results."""

    name: str
    read: tuple[Tensor, ...]
    made: tuple[Tensor, ...]

    @property
    def is_view(self) -> bool:
        """Whether it is a view: its results alias its operands, and it wrote to none of them."""
        return storages(self.made) <= storages(self.read) and not self.name.endswith("_")


@dataclass(frozen=True)
class Trace:
    """One run.

    Attributes:
        run: the forward.
        call: arguments and results of the backward, and its residuals.
        steps: the ops of the backward, in order.
    """

    run: ForwardRun
    call: Recorded
    steps: Sequence[BackwardOp]

    @property
    def inputs(self) -> list[Tensor]:
        """Every tensor argument."""
        return [*self.run.inputs, *(leaf for leaf in tree_leaves(self.run.arguments)[0] if isinstance(leaf, Tensor))]

    @property
    def computed(self) -> list[Tensor]:
        """Residuals that are neither inputs nor outputs: memory that is held for the backward alone."""
        known = storages([*self.inputs, *self.run.outputs])
        return [t for t in self.call.kept if storage_of(t) not in known]

    def keeps(self, t: Tensor) -> bool:
        """Whether the memory of a tensor was kept."""
        return storage_of(t) in storages(self.call.kept)

    def serving(self, results: Collection[Tensor]) -> set[BackwardOp]:
        """Return the steps that the results, and only possibly other things, depend on."""
        wanted = storages(results)
        found = set()
        for step in reversed(self.steps):
            if wanted & storages(step.made):
                found.add(step)
                wanted |= storages(step.read)
        return found


class _OpRecorder(DispatchMode):
    """Collects every op, and keeps its tensors alive: their memory must not be reused."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # PyTorch's is not annotated
        self.steps: list[BackwardOp] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = str(func).rpartition(".")[0] or str(func)
        self.steps.append(BackwardOp(name, _tensors((args, kwargs or {})), _tensors(result)))
        return result


def trace(subject: Subject, case: Case, mask: Sequence[bool] | None = None) -> Trace | None:
    """Run forward and backward once; `None` if that fails or the backward is not called exactly once."""
    steps = _OpRecorder()
    with recording(subject, steps) as calls, suppress(Raised):
        run = forward(subject, case, mask)
        vjp(run, standard_cotangents(run.roots))
    if len(calls) != 1 or calls[0].raised:
        return None
    return Trace(run, calls[0], steps.steps)


def storages(tensors: Collection[Tensor]) -> set[int]:
    """Return the storages of the tensors; views share theirs."""
    return {storage_of(t) for t in tensors}


def is_plain(t: Tensor) -> bool:
    """Whether a tensor has elements that can be compared, and not all the same."""
    strided = t.layout is torch.strided and not t.is_quantized
    return strided and t.numel() > 1 and not is_freed(t) and bool((t != t.flatten()[0]).any())


def equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold equal numbers in the same order, whatever their dtypes."""
    return a.numel() == b.numel() and bool((a.detach().flatten() == b.detach().flatten()).all())


def size(t: Tensor) -> int:
    """Return the bytes of a tensor's elements."""
    return t.numel() * t.element_size()


def describe(t: Tensor) -> str:
    """Return dtype, shape and bytes, e.g. "float64 (3, 4), 96 bytes"."""
    return f"{str(t.dtype).removeprefix('torch.')} {tuple(t.shape)}, {size(t)} bytes"


def storage_of(t: Tensor) -> int:
    """Return the identity of a tensor's storage, its address; for a sparse tensor, that of the tensor."""
    return t.untyped_storage().data_ptr() if t.layout is torch.strided else id(t)


def _tensors(tree: Any) -> tuple[Tensor, ...]:
    return tuple(leaf for leaf in tree_leaves(tree)[0] if isinstance(leaf, Tensor))

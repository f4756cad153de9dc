"""One forward and backward of a Function, with its residuals and every ATen op of the backward."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback._torch import DispatchMode, tree_leaves
from pullback.check.case import Case
from pullback.check.derivative.recorder import Recorded, recording
from pullback.check.subject import Subject
from pullback.check.trial import ForwardRun, Raised, forward, is_freed, standard_cotangents, vjp


@dataclass(frozen=True, eq=False)
class BackwardOp:
    """One ATen op: its name, e.g. "aten.mm", the tensors that it read and those that it returned."""

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
    """Collects every op, and holds on to its tensors: their memory must not be used again."""

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

"""Whether a run can be repeated: the same values from the same random state, and no memory that was never written.

For the latter, one forward and backward run with new memory filled with NaN, as PyTorch does in its deterministic mode,
and a second time with zeros in it. A NaN in the first run only was never written.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy
import torch
from torch import Tensor

from pullback import _torch
from pullback.check.case import Case
from pullback.check.derivative.agreement import TensorDifference, difference
from pullback.check.find.kernels import is_unwritten
from pullback.check.subject import Subject
from pullback.check.trial import Raised, forward, standard_cotangents, vjp
from pullback.dtypes import has_reals


@dataclass(frozen=True, slots=True)
class RunDifference:
    """Difference of two runs from the same state of PyTorch's and Python's generators.

    Attributes:
        what: "output" or "gradient".
        where: which element, and the two values.
        is_rounding: whether the difference is no larger than another order of the same operations would cause.
        by_numpy: whether they agree once NumPy's generator starts from the same state, too.
        adds_up: whether a third gradient is as far from the second as that is from the first.
    """

    what: str
    where: TensorDifference
    is_rounding: bool
    by_numpy: bool
    adds_up: bool


_Run = tuple[Sequence[Tensor | None], Sequence[Tensor | None] | None]
"""The floating outputs, and the gradients unless the backward raised."""


def run_difference(subject: Subject, case: Case) -> RunDifference | None:
    """Run forward and backward twice and return where the runs differ; `None` if they agree bit for bit."""
    try:
        runs = _run_seeded(subject, case), _run_seeded(subject, case)
        found = _differ(*runs)
        if found is None:
            return None
        adds_up = found[0] == "gradient" and _adds_up(
            [gradients for _, gradients in (*runs, _run_seeded(subject, case))]
        )
        state = numpy.random.get_state()
        by_numpy = _differ(_run_seeded(subject, case, 0), _run_seeded(subject, case, 0)) is None
        numpy.random.set_state(state)
    except Raised:
        return None
    return RunDifference(*found, by_numpy, adds_up)


def _adds_up(runs: Sequence[Sequence[Tensor | None] | None]) -> bool:
    """Whether the gradients differ by the same amounts from run to run, as sums over all calls do."""
    # Run k of a backward that accumulates in a buffer returns k times the gradient: an arithmetic progression.
    first, second, third = ([g for g in run or () if g is not None] for run in runs)
    if not len(first) == len(second) == len(third):
        return False
    first_change, second_change = (
        [b - a for a, b in zip(x, y, strict=True)] for x, y in ((first, second), (second, third))
    )
    return difference(first_change, second_change) is None


def _differ(first: _Run, second: _Run) -> tuple[str, TensorDifference, bool] | None:
    for what, a, b in zip(("output", "gradient"), first, second, strict=True):
        if a is None or b is None or len(a) != len(b):
            return None
        where = difference(a, b, rounding=0.0)
        if where is not None:
            return what, where, difference(a, b) is None
    return None


def _run_seeded(subject: Subject, case: Case, numpy_seed: int | None = None) -> _Run:
    if numpy_seed is not None:
        numpy.random.seed(numpy_seed)
    run = forward(subject, case)
    values = [out.detach().clone() for out in run.outputs if has_reals(out)]
    try:
        return values, vjp(run, standard_cotangents(run.roots))
    except Raised:  # another rule's matter
        return values, None


_ALLOCATE = (
    torch.ops.aten.empty,
    torch.ops.aten.empty_like,
    torch.ops.aten.empty_strided,
    torch.ops.aten.new_empty,
    torch.ops.aten.new_empty_strided,
)


@dataclass(frozen=True, slots=True)
class Unwritten:
    """Where a result exposes memory that was never written.

    Attributes:
        kind: whether it is an output of the forward or a gradient.
        tensor_index: which output, or which input's gradient.
        index: its first element that was never written.
        is_left_by_kernel: whether kernels wrote the other elements of an output, so that they were to write it, too.
    """

    kind: Literal["output", "gradient"]
    tensor_index: int
    index: tuple[int, ...]
    is_left_by_kernel: bool = False


def unwritten(subject: Subject, case: Case) -> Unwritten | None:
    """Return where the forward, or else the backward, returns memory that it never wrote; `None` if nowhere."""
    if subject.is_interpreted:  # new memory holds a NaN that tells it
        return _unwritten_when_interpreted(subject, case)
    try:
        with fresh_memory_is_nan():
            outputs, gradients = _values(subject, case)
        with _FreshMemoryIsZero():  # type: ignore[no-untyped-call]
            usual_outputs, usual_gradients = _values(subject, case)
    except Raised:
        return None
    return _first("output", outputs, usual_outputs) or _first("gradient", gradients, usual_gradients)


def _unwritten_when_interpreted(subject: Subject, case: Case) -> Unwritten | None:
    try:
        run = forward(subject, case)
        outputs, gradients = run.outputs, vjp(run, standard_cotangents(run.roots))
    except Raised:
        return None
    for tensor_index, t in enumerate([*outputs, *gradients]):
        where = [] if t is None else is_unwritten(t).nonzero().tolist()
        if t is not None and where:
            later = tensor_index - len(outputs)
            at = tuple(where[0])
            if later >= 0:
                return Unwritten("gradient", later, at)
            is_part = t.requires_grad and len(where) < t.numel()  # other outputs may be buffers
            return Unwritten("output", tensor_index, at, is_left_by_kernel=is_part)
    return None


def _values(subject: Subject, case: Case) -> tuple[list[Tensor | None], list[Tensor | None]]:
    run = forward(subject, case)
    outputs: list[Tensor | None] = [out.detach() for out in run.outputs]
    return outputs, vjp(run, standard_cotangents(run.roots))


@contextmanager
def fresh_memory_is_nan() -> Iterator[None]:
    """Fill the tensors that PyTorch allocates in a block with NaN."""
    settings: Any = torch.utils.deterministic
    mode, fills = torch.get_deterministic_debug_mode(), settings.fill_uninitialized_memory
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about operations that have no deterministic form, which is no matter here
        try:
            torch.set_deterministic_debug_mode("warn")
            settings.fill_uninitialized_memory = True
            yield
        finally:
            torch.set_deterministic_debug_mode(mode)
            settings.fill_uninitialized_memory = fills


class _FreshMemoryIsZero(_torch.DispatchMode):
    """Fills new memory with zeros, since memory with the NaN of the other run might be reused."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        return made.zero_() if func.overloadpacket in _ALLOCATE else made


def _first(
    kind: Literal["output", "gradient"], filled: Sequence[Tensor | None], usual: Sequence[Tensor | None]
) -> Unwritten | None:
    """Return the first element that is NaN where fresh memory is, and only there."""
    for tensor_index, (there, here) in enumerate(zip(filled, usual, strict=False)):
        if there is None or here is None or there.shape != here.shape:
            continue
        where = (there.isnan() & ~here.isnan()).nonzero()
        if len(where):
            return Unwritten(kind, tensor_index, tuple(where[0].tolist()))
    return None

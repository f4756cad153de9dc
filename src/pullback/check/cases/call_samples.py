"""Recorded calls of Functions: copies of the smallest inputs of each, within a bound on memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pullback import _torch
from pullback.check.case import Case
from pullback.check.find.discover import subject_of
from pullback.check.subject import Inputs, Subject
from pullback.check.trial import Raised, forward
from pullback.check.weights import given_call
from pullback.errors import TargetError

_SIGNATURES, _CALLS = 3, 100
"""For each function: the samples that are kept, of different shapes or dtypes, and the calls that are examined."""
_LARGEST, _MOST = 8 << 20, 64 << 20
"""Bytes of one sample, and of all samples."""
_MOST_FUNCTIONS = 4
OURS = ("torch.", "pullback.")
"""Prefixes of modules whose Functions are not the user's."""


@dataclass(slots=True)
class _Calls:
    """Samples of the calls of one function.

    Attributes:
        count: number of its calls, up to `_CALLS`.
        samples: for each signature, bytes and arguments.
    """

    count: int = 0
    samples: dict[Any, tuple[int, tuple[Any, ...]]] = field(default_factory=dict)


class CallSamples:
    """Samples of the calls of several functions. Thread-safe."""

    def __init__(self) -> None:
        self._calls: dict[type, _Calls] = {}
        self._lock = threading.Lock()

    def are_enough(self, function: type) -> bool:
        """Whether further calls of a function are ignored."""
        calls = self._calls.get(function)
        return calls is not None and calls.count >= _CALLS

    def record(self, function: type, args: tuple[Any, ...]) -> None:
        """Record a call: copy its inputs if they are among the smallest of the first calls of the function."""
        if self.are_enough(function):
            return
        with self._lock:
            calls = self._calls.setdefault(function, _Calls())
            calls.count += 1
            self._keep(calls, args)

    @property
    def functions(self) -> list[type]:
        """The functions that were called, in the order of their first calls."""
        return list(self._calls)

    def of(self, function: type) -> Inputs | None:
        """Return the samples of a function, the smallest first; `None` if there are none."""
        kept = sorted(self._calls[function].samples.values(), key=lambda sample: sample[0])
        return [(args, {}) for _, args in kept] or None

    def _keep(self, calls: _Calls, args: tuple[Any, ...]) -> None:
        leaves, spec = _torch.tree_leaves(args)
        tensors = [a for a in leaves if isinstance(a, Tensor)]
        if not all(_is_plain(t) for t in tensors):
            return
        signature = tuple(_kind(a) for a in leaves)
        size = sum(t.numel() * t.element_size() for t in tensors)
        if signature in calls.samples:
            return
        if len(calls.samples) >= _SIGNATURES:
            largest = max(calls.samples, key=lambda s: calls.samples[s][0])
            if calls.samples[largest][0] <= size:
                return
            del calls.samples[largest]
        if size > _LARGEST or self._size() + size > _MOST:
            return
        kept = [_copied(a) if isinstance(a, Tensor) else a for a in leaves]
        calls.samples[signature] = size, _torch.tree_unflatten(kept, spec)

    def _size(self) -> int:
        return sum(size for calls in self._calls.values() for size, _ in calls.samples.values())


def _is_plain(t: Tensor) -> bool:
    """Whether a tensor has values that can be copied: it is not of a subclass, a tracer or the meta device."""
    layouts = (torch.strided, torch.sparse_coo)
    return type(t) in (Tensor, torch.nn.Parameter) and t.layout in layouts and t.device.type != "meta"


def _kind(value: Any) -> Any:
    """Return the part of a signature that an argument contributes."""
    if isinstance(value, Tensor):
        is_dense = value.layout is torch.strided and value.is_contiguous()
        return tuple(value.shape), value.dtype, value.device, value.requires_grad, value.layout, is_dense
    return value if isinstance(value, bool | int | float | str | None) else type(value)


def _copied(t: Tensor) -> Tensor:
    """Return a copy as a leaf, with the strides of the original."""
    with torch.no_grad():
        same_strides = {"memory_format": torch.preserve_format} if t.layout is torch.strided else {}
        return t.detach().clone(**same_strides).requires_grad_(t.requires_grad)


@contextmanager
def recording(record: Callable[[type, tuple[Any, ...]], None]) -> Iterator[None]:
    """Call `record` with each Function that is applied in a block, and its arguments."""
    end = _torch.observe_functions(record)
    try:
        yield
    finally:
        end()


def functions_inside(subject: Subject, case: Case) -> list[tuple[Subject, Case]]:
    """Return the first few Functions that a call of a callable applies, each with its smallest call.

    Functions without a differentiated input there are left out, and those of PyTorch and of tensor subclasses.
    """
    if subject.kind != "callable" or subject.is_made:
        return []
    samples = CallSamples()
    with recording(samples.record), suppress(Raised):
        forward(subject, case)
    found: list[tuple[Subject, Case]] = []
    for function in samples.functions:
        inputs = samples.of(function)
        if inputs is None or f"{function.__module__}.".startswith(OURS) or len(found) == _MOST_FUNCTIONS:
            continue
        with suppress(TargetError):
            inner = subject_of(function)
            args, kwargs = inputs[0]
            called = given_call(inner, args, kwargs)
            if called.wrt and _gives_plain_tensors(inner, called):
                found.append((inner, called))
    return found


def _gives_plain_tensors(subject: Subject, case: Case) -> bool:
    """Whether its outputs are of no tensor subclass, which may refuse inspection."""
    with suppress(Raised):
        given = [*case.tensors, *forward(subject, case).outputs]
        return all(type(t) is Tensor and t.layout is torch.strided for t in given)
    return False

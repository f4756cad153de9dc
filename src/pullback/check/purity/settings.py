"""Settings of the process and of the thread, and whether a call restores them.

An earlier call may have changed a setting already, so that it is equal before and after. Each is therefore first set to
a known value, and the random number generators to two different states: a generator with the same state after both was
seeded by the call.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from pullback.check.case import Case
from pullback.check.subject import Subject
from pullback.check.trial import forward, reseed, standard_cotangents, vjp
from pullback.report.model import Severity


@dataclass(frozen=True, slots=True)
class GlobalSetting:
    """One global setting.

    Attributes:
        name: name in words.
        get, set: how it is read and written.
        starts: the values that a call is started with, in the first and in the second run.
        severity: "error" where it changes the numbers of other code.
        shown: the expression that prints it.
    """

    name: str
    get: Callable[[], Any]
    set: Callable[[Any], Any]
    starts: tuple[Any, Any]
    severity: Severity
    shown: str

    def put(self, value: Any) -> None:
        """Set a value, unless it is set already: PyTorch's own tests forbid writing some."""
        if self.get() != value:
            self.set(value)


@dataclass(frozen=True, slots=True)
class Change:
    """A setting that a call changed; `stage` is "forward" or "backward"."""

    stage: str
    what: str
    severity: Severity
    shown: str


SETTINGS = (
    GlobalSetting(
        "the default dtype",
        torch.get_default_dtype,
        torch.set_default_dtype,
        (torch.float32, torch.float64),
        "error",
        "torch.get_default_dtype()",
    ),
    GlobalSetting(
        "grad mode",
        torch.is_grad_enabled,
        torch.set_grad_enabled,
        (True, True),
        "error",
        "torch.is_grad_enabled()",
    ),
    GlobalSetting(
        "autocast",
        lambda: torch.is_autocast_enabled("cpu"),
        lambda value: torch.set_autocast_enabled("cpu", value),
        (False, False),
        "error",
        'torch.is_autocast_enabled("cpu")',
    ),
    GlobalSetting(
        "the number of threads",
        torch.get_num_threads,
        torch.set_num_threads,
        (1, 1),
        "warning",
        "torch.get_num_threads()",
    ),
    GlobalSetting(
        "the choice of deterministic algorithms",
        torch.get_deterministic_debug_mode,
        torch.set_deterministic_debug_mode,
        (0, 0),
        "warning",
        "torch.get_deterministic_debug_mode()",
    ),
    GlobalSetting(
        "anomaly detection",
        torch.is_anomaly_enabled,
        torch.autograd.set_detect_anomaly,
        (False, False),
        "warning",
        "torch.is_anomaly_enabled()",
    ),
    GlobalSetting(
        "the precision of float32 products",
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
        ("highest", "highest"),
        "warning",
        "torch.get_float32_matmul_precision()",
    ),
    GlobalSetting(
        "cuDNN's choice by benchmark",
        lambda: torch.backends.cudnn.benchmark,
        lambda value: setattr(torch.backends.cudnn, "benchmark", value),
        (False, False),
        "warning",
        "torch.backends.cudnn.benchmark",
    ),
    GlobalSetting(
        "cuDNN's determinism",
        lambda: torch.backends.cudnn.deterministic,
        lambda value: setattr(torch.backends.cudnn, "deterministic", value),
        (False, False),
        "warning",
        "torch.backends.cudnn.deterministic",
    ),
)

# Of torch's generator the seed alone: how far it has got depends on the default dtype that a run starts with.
_STATES: dict[str, tuple[Callable[[], Any], str]] = {
    "torch's": (torch.default_generator.initial_seed, "torch.initial_seed()"),
    "Python's": (random.getstate, "random.getstate()[1][:3]"),
    "NumPy's": (lambda: numpy.random.get_state(legacy=False)["state"]["key"].tolist(), "numpy.random.get_state()"),
}


def changes(subject: Subject, case: Case) -> list[Change]:
    """Return the settings that a forward and a backward leave changed, the forward's changes first.

    Raises:
        Raised: if forward or backward raises.
    """
    with _put_back():
        first, second = (_left_behind(subject, case, number) for number in (0, 1))
    found: list[Change] = []
    for stage in first:
        found += _changed(stage, first[stage], second[stage])
    by_forward = {change.what for change in found if change.stage == "forward"}
    return [change for change in found if change.stage == "forward" or change.what not in by_forward]


def _changed(stage: str, first: dict[str, Any], second: dict[str, Any]) -> Iterator[Change]:
    """Yield the settings that differ from their values before a run, and the generators left in one state by both."""
    for setting in SETTINGS:
        for start, left in zip(setting.starts, (first[setting.name], second[setting.name]), strict=True):
            if left != start:
                yield Change(stage, f"{setting.name} (from {start} to {left})", setting.severity, setting.shown)
                break
    for name, (_, shown) in _STATES.items():
        if first[name] == second[name]:
            yield Change(stage, f"the state of {name} random number generator, by setting its seed", "error", shown)


def _left_behind(subject: Subject, case: Case, number: int) -> dict[str, dict[str, Any]]:
    """Return every setting after the forward, and after the backward if there is one."""
    left: dict[str, dict[str, Any]] = {}

    def call(*args: Any, **kwargs: Any) -> Any:
        _start(number)
        result = subject.call(*args, **kwargs)
        left["forward"] = _observed()
        _start(number)
        return result

    run = forward(subject, case, call=call)
    if run.roots:
        cotangents = standard_cotangents(run.roots)
        _start(number)
        vjp(run, cotangents, seed=number)
        left["backward"] = _observed()
    return left


def _start(number: int) -> None:
    for setting in SETTINGS:
        setting.put(setting.starts[number])
    reseed(number)
    numpy.random.seed(number)


def _observed() -> dict[str, Any]:
    return {s.name: s.get() for s in SETTINGS} | {name: state() for name, (state, _) in _STATES.items()}


@contextmanager
def _put_back() -> Iterator[None]:
    before = [(setting, setting.get()) for setting in SETTINGS]
    state = numpy.random.get_state()
    try:
        yield
    finally:
        for setting, value in before:
            setting.put(value)
        numpy.random.set_state(state)

"""One guessed call: how far it got, and whether an error is evidence about the guess or about the function."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from pullback.check.case import Case
from pullback.check.subject import Subject
from pullback.check.trial import Raised, forward, standard_cotangents, vjp


class Score(IntEnum):
    """How far a guessed call got. An example has at least `BROKEN`."""

    RAISED = 0
    NOT_FINITE = 1
    NO_BACKWARD = 2
    """Its backward raised, perhaps because the call is invalid."""
    BROKEN = 3
    """Its backward raised an error that no arguments avoid."""
    RAN_BACK = 4
    """Every gradient was zero."""
    PERFECT = 5


@dataclass(frozen=True, slots=True)
class Attempt:
    """Result of a guessed call.

    Attributes:
        score: quality of the example.
        reason: why it is not perfect; empty otherwise.
        error: the exception of the forward or the backward.
    """

    score: Score
    reason: str = ""
    error: BaseException | None = None

    @property
    def gradients(self) -> int | None:
        """How many gradients the backward returned, where the engine expected another number."""
        found = re.search(r"incorrect number of gradients \(expected \d+, got (\d+)\)", self.reason)
        return int(found[1]) if found else None

    @property
    def wants_tensor(self) -> int | None:
        """Position of a non-tensor argument for which the backward returned a gradient: it may have to be a tensor."""
        found = re.search(r"different (?:from|than) None at position (\d+)", self.reason)
        return int(found[1]) - 1 if found else None

    @property
    def wants_shape(self) -> tuple[int, tuple[int, ...]] | None:
        """Which of the tensors got a gradient that the engine refuses, and the shape of that gradient."""
        found = re.search(r"invalid gradient at index (\d+) - got \[([\d, ]*)\]", self.reason)
        return (int(found[1]), tuple(map(int, re.findall(r"\d+", found[2])))) if found else None


_ENVIRONMENT = re.compile(
    r"process group|torch\.distributed|model parallel|(initiali[sz]\w+|destroyed?) .*(distributed|parallel)"
    r"|not compiled with|(?<!is_)CUDA|NVIDIA|\btriton\b|not installed|No module named|from the 'CPU' backend"
    r"|MPS (backend|device)|active drivers|which could not be imported here",
    re.IGNORECASE,
)
# The engine's messages about a backward that is wrong for every example.
_BROKEN_CONTRACT = re.compile(r"returned an (invalid|incorrect)|returned a gradient different (from|than) None")
_NAMED_TYPE = re.compile(r"'(\w+)' object|not '?(\w+)'?$")


def of_environment(reason: str) -> bool:
    """Whether a call failed for lack of a feature of this machine or process, whatever its arguments."""
    return _ENVIRONMENT.search(reason) is not None


def attempt(subject: Subject, case: Case) -> Attempt:
    """Make the call, forward and backward."""
    try:
        run = forward(subject, case)
    except Raised as raised:
        return Attempt(Score.RAISED, str(raised), raised.error)
    roots = run.roots
    if not roots and case.wrt and run.outputs and subject.relaxation is not None:
        return Attempt(Score.PERFECT)  # its relaxation has no derivative, which is a fault to audit
    if not roots or not case.wrt:
        return Attempt(Score.RAISED, "forward gave no differentiable output")
    if not all(bool(torch.isfinite(_elements(root)).all()) for root in roots):
        return Attempt(Score.NOT_FINITE, "forward gave values that are not finite")
    try:
        grads = vjp(run, standard_cotangents(roots))  # ones give 0 where outputs sum to 1
    except Raised as raised:
        return Attempt(_of_failed_backward(case, raised), str(raised), raised.error)
    if any(g is not None and bool((_elements(g) != 0).any()) for g in grads):
        return Attempt(Score.PERFECT)
    return Attempt(Score.RAN_BACK, "every gradient was zero")


def _elements(t: Tensor) -> Tensor:
    return t if t.layout == torch.strided else t.to_dense()


def _of_failed_backward(case: Case, raised: Raised) -> Score:
    text = str(raised)
    if of_environment(text):
        return Score.RAISED
    if isinstance(raised.error, AttributeError | TypeError):
        types = {found for match in _NAMED_TYPE.finditer(text) for found in match.groups() if found}
        return Score.RAISED if types & _guessed_types(case) else Score.NO_BACKWARD
    broken = _BROKEN_CONTRACT.search(text) or isinstance(raised.error, NameError | RecursionError)
    return Score.BROKEN if broken else Score.NO_BACKWARD


def _guessed_types(case: Case) -> set[str]:
    """Names of the classes of the guessed arguments, for which a tensor may be as wrong as a number."""
    return {type(argument).__name__ for argument in case.arguments()[0]}

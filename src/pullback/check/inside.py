"""The Functions that a callable calls, each with its inputs there: the callable's graph does not show these."""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import Tensor

from pullback import _torch
from pullback.check.case import Case
from pullback.check.find.discover import subject_of
from pullback.check.subject import Subject
from pullback.check.trial import Raised, forward
from pullback.check.watch.samples import Samples
from pullback.check.weights import given_call
from pullback.errors import TargetError

_MOST = 4
_OURS = ("torch.", "pullback.")
"""Modules whose Functions are not the user's."""


def functions_inside(subject: Subject, case: Case) -> list[tuple[Subject, Case]]:
    """Return the first few Functions that a call of a callable applies, each with its smallest call.

    Functions without a differentiated input there are left out, and those of PyTorch and of tensor subclasses.
    """
    if subject.kind != "callable" or subject.is_made:
        return []
    samples = Samples()
    end = _torch.observe_functions(samples.note)
    try:
        with suppress(Raised):
            forward(subject, case)
    finally:
        end()
    found: list[tuple[Subject, Case]] = []
    for function in samples.functions:
        inputs = samples.of(function)
        if inputs is None or f"{function.__module__}.".startswith(_OURS) or len(found) == _MOST:
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

"""Tensors kept for the backward that are neither inputs nor outputs: double backward takes them for constants."""

from __future__ import annotations

import torch
from torch import Tensor

from pullback.check.case import Case
from pullback.check.derivative.recorder import recording
from pullback.check.derivative.sampler import are_probabilities
from pullback.check.subject import Subject
from pullback.check.trial import Raised, forward, standard_cotangents, vjp


def hidden_saved(subject: Subject, case: Case) -> int:
    """Count the saved tensors that are neither input nor output, and change with the inputs.

    Return `None` if the forward takes no other inputs of this kind.
    """
    if subject.kind != "function":
        return 0
    here = _hidden(subject, case)
    try:
        there = _hidden(subject, case.map_inputs(_other, case.label))
    except Raised:
        return 0
    if len(here) != len(there):
        return max(len(here), len(there))
    return sum(a.shape != b.shape or not torch.equal(a, b) for a, b in zip(here, there, strict=True))


def _other(t: Tensor) -> Tensor:
    return t.roll(1, -1) if are_probabilities(t) else t * 0.875


def _hidden(subject: Subject, case: Case) -> list[Tensor]:
    run = forward(subject, case)
    known = {(t.data_ptr(), t.shape) for t in (*run.inputs, *run.outputs)}
    known |= {(v.data_ptr(), v.shape) for v in case.values if isinstance(v, Tensor)}
    known |= {(v.data_ptr(), v.shape) for v in run.arguments if isinstance(v, Tensor)}
    with recording(subject) as calls:
        try:
            vjp(run, standard_cotangents(run.roots))
        except Raised:
            return []
    kept = [t.detach() for call in calls for t in call.kept]
    return [t.clone() for t in kept if t.is_floating_point() and (t.data_ptr(), t.shape) not in known]

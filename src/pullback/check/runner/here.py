"""The audit of subjects that cannot be sent to a new interpreter, in this process, without protection."""

from __future__ import annotations

import faulthandler
import random
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from pullback import settings
from pullback.check import audit
from pullback.check.case import Case
from pullback.check.rules import all_rules
from pullback.check.runner.child import ordinary_modes, settle
from pullback.check.runner.outcome import Outcome, make_outcome
from pullback.check.runner.task import describe_failure, our_fault, trace_of
from pullback.check.subject import Given, Options, Subject
from pullback.check.weights import reached
from pullback.errors import PullbackError
from pullback.report.model import Finding


def audit_here(subjects: Sequence[Subject], options: Options, given: Given) -> list[Outcome]:
    """Audit each subject, without limits: a crash ends this program, and an endless loop does not end.

    Args:
        subjects, options, given: as of `run_subjects`; rules that compile are left out, since they drop what the
            program has compiled.

    Raises:
        PullbackError: as `run_subjects` does.
    """
    options = replace(options, ignore=(*options.ignore, *(rule.id for rule in all_rules() if rule.compiles)))
    outcomes = []
    for subject in subjects:
        with _program_as_it_was(), _as_they_were(subject):
            outcomes.append(_outcome(subject, options, given))
    return outcomes


def _outcome(subject: Subject, options: Options, given: Given) -> Outcome:
    heard = _Heard()
    started = time.monotonic()
    try:
        with ordinary_modes():
            end = audit.audit(subject, options, given(subject), heard)
    except PullbackError:
        raise
    except Exception as error:
        heard.finding(our_fault(subject, describe_failure(error), trace_of(error)))
        return make_outcome(subject, heard.findings, seconds=time.monotonic() - started)
    return make_outcome(
        subject, heard.findings, end.cases, time.monotonic() - started, end.allowed, measured=end.measured
    )


class _Heard:
    """Collects the events of an audit."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def step(self, rule: str, what: str, reproduce: str) -> None:
        """Ignore the step."""

    def beat(self) -> None:
        """Ignore the sign of life."""

    def finding(self, finding: Finding) -> None:
        """Keep a finding."""
        self.findings.append(finding)


@contextmanager
def _as_they_were(subject: Subject) -> Iterator[None]:
    """Give back the numbers, gradients and modes of the modules and tensors that a subject reaches."""
    held = reached(subject, Case((), None, (), ())).values()
    modules = [m for value in held if isinstance(value, torch.nn.Module) for m in value.modules()]
    tensors = {id(t): t for m in modules for t in (*m.parameters(recurse=False), *m.buffers(recurse=False))}
    tensors |= {id(value): value for value in held if isinstance(value, torch.Tensor)}
    modes = [(module, module.training) for module in modules]
    kept = [
        (t, t.detach().clone(), None if t.grad is None else t.grad.clone(), t.grad)
        for t in tensors.values()
        if t.is_leaf
    ]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
        for t, value, gradient, place in kept:
            t.data.copy_(value)
            t.grad = place
            if place is not None and gradient is not None:
                place.data.copy_(gradient)


@contextmanager
def _program_as_it_was() -> Iterator[None]:
    """Give back the settings and the random state that an audit changes."""
    threads, backend, grad = torch.get_num_threads(), settings.chosen(), torch.is_grad_enabled()
    tells_of_crashes = faulthandler.is_enabled()
    drawn = random.getstate()
    with warnings.catch_warnings(), torch.random.fork_rng():
        settle()
        try:
            yield
        finally:
            random.setstate(drawn)
            torch.set_num_threads(threads)
            settings.set_backend(backend)
            torch.set_grad_enabled(grad)
            if not tells_of_crashes:
                faulthandler.disable()

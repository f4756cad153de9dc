"""Audits subjects, each in a separate forked process with limits on time and memory.

A function that crashes its process, never returns, exits or takes all memory is then a finding like any other, and the
remaining rules run in another process. A subject that can be sent to none is audited in this one, without protection.
"""

from __future__ import annotations

import faulthandler
import functools
import random
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from pullback import _torch, settings
from pullback.check.case import Case
from pullback.check.rules import all_rules, selected
from pullback.check.run_audit import run_audit
from pullback.check.runner.outcome import Outcome, make_outcome, static_outcome
from pullback.check.runner.pool import run_tasks, usable_cores
from pullback.check.runner.process import ensure_can_fork, fork_is_clean, has_accelerator, ordinary_modes, settle
from pullback.check.runner.task import Limits, SubjectTask, describe_failure, our_fault, trace_of
from pullback.check.subject import Given, Options, Subject
from pullback.check.weights import reached
from pullback.errors import PullbackError
from pullback.report.model import Finding


def run_subjects(
    subjects: Sequence[Subject],
    options: Options,
    given: Given,
    *,
    limits: Limits | None = None,
    jobs: int | None = None,
    may_run_files: bool = False,
    on_outcome: Callable[[int, Outcome], None] | None = None,
    on_rule: Callable[[str], None] | None = None,
    tick: Callable[[], None] | None = None,
) -> list[Outcome]:
    """Audit each subject in a separate process; those without a target by their source, in this one.

    The processes are forked from this one, or new interpreters where no fork can run a backward.

    Args:
        subjects: the functions to audit.
        options: options of the audit.
        given: example inputs for a subject.
        limits: limits for each subject; by default derived from the budget.
        jobs: number of concurrent processes; by default as `options` say, else one for each usable core, eight at most.
        may_run_files: whether the reproduction of an error may run the file of the function a second time, to confirm
            it; a program that runs an audit would run it again.
        on_outcome: called with the position and the outcome of each subject as soon as it is known.
        on_rule: called with each step, "PB101 of Square", as it begins.
        tick: called many times a second.

    Returns:
        One outcome for each subject, in the same order.

    Raises:
        RunnerError: if this process cannot be forked, or a subject cannot be sent to a new interpreter.
        PullbackError: if `given` raises one.
    """
    ensure_can_fork()
    outcomes: dict[int, Outcome] = {}

    def take(position: int, outcome: Outcome) -> None:
        outcomes[position] = outcome
        if on_outcome is not None:
            on_outcome(position, outcome)

    limits = limits or Limits.of(options)
    in_new = any(subject.target is not None for subject in subjects) and not fork_is_clean()
    tasks = []
    for position, subject in enumerate(subjects):
        if subject.target is None:
            take(position, static_outcome(subject, options, subject.why_unaudited))
        else:
            done = partial(take, position)
            tasks.append(SubjectTask(subject, options, given, limits, done, may_run_files, in_new, on_rule))
    run_tasks(tasks, jobs or options.jobs or usable_cores(), tick or _nothing)
    return [outcomes[position] for position in range(len(subjects))]


def preload(options: Options, subjects: Sequence[Subject] = ()) -> None:
    """Warm up torch.compile and tracing in this process, before forking, so that the children need not.

    Args:
        options: options of the audit; without a rule that compiles or traces there is nothing to do.
        subjects: those to be audited, if known. Nothing compiles or traces kernels that are interpreted.
    """
    if subjects and all(subject.is_interpreted for subject in subjects):
        return
    if any(rule.is_of_range for rule in selected(options)):
        _warm_tracing()
    if any(rule.compiles for rule in selected(options)):
        _warm()


@functools.cache
def _warm() -> None:
    with (
        warnings.catch_warnings(),
        suppress(Exception),
        _torch.without_trace_log(),
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        warnings.simplefilter("ignore")
        compiled = torch.compile(_Sine.apply, backend="aot_eager", fullgraph=True)  # this triggers its lazy imports
        # In a build for an accelerator a backward under fake tensors starts threads: no fork runs another after that.
        if not has_accelerator():
            for size in (2, 3):
                torch.autograd.backward(compiled(torch.ones(size, requires_grad=True)).sum())
            torch.func.jvp(torch.sin, (torch.ones(2),), (torch.ones(2),))


@functools.cache
def _warm_tracing() -> None:
    with suppress(Exception), _torch.without_trace_log(), torch.no_grad():
        _torch.trace_ops(lambda x: [torch.sin(x)], torch.ones(1))


class _Sine(torch.autograd.Function):
    """Something small to compile."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return torch.sin(x)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return torch.mul(g, x.cos())


def _nothing() -> None:
    pass


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
            end = run_audit(subject, options, given(subject), heard)
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
    """Restore values, gradients and modes of the modules and tensors that a subject reaches."""
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
    """Restore the settings and the random state that an audit changes."""
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

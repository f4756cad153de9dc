"""The audit of subjects that cannot be sent to a new interpreter, in this process, without protection."""

from __future__ import annotations

import faulthandler
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from pullback import settings
from pullback.check import audit
from pullback.check.runner.child import settle
from pullback.check.runner.outcome import Outcome, make_outcome
from pullback.check.runner.task import describe_failure, our_fault
from pullback.check.subject import Given, Options, Subject
from pullback.errors import PullbackError
from pullback.report.model import Finding


def audit_here(subjects: Sequence[Subject], options: Options, given: Given) -> list[Outcome]:
    """Audit each subject, without limits: a crash ends this program, and an endless loop does not end.

    Args:
        subjects, options, given: as of `run_subjects`.

    Raises:
        PullbackError: as `run_subjects` does.
    """
    with _program_as_it_was():
        return [_outcome(subject, options, given) for subject in subjects]


def _outcome(subject: Subject, options: Options, given: Given) -> Outcome:
    heard = _Heard()
    started = time.monotonic()
    try:
        with torch.inference_mode(False):
            end = audit.audit(subject, options, given(subject), heard)
    except PullbackError:
        raise
    except Exception as error:
        heard.finding(our_fault(subject, describe_failure(error), traceback.format_exc()))
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
def _program_as_it_was() -> Iterator[None]:
    """Give back the settings and the random state that an audit changes."""
    threads, backend, grad = torch.get_num_threads(), settings.chosen(), torch.is_grad_enabled()
    tells_of_crashes = faulthandler.is_enabled()
    with warnings.catch_warnings(), torch.random.fork_rng():
        settle()
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            settings.set_backend(backend)
            torch.set_grad_enabled(grad)
            if not tells_of_crashes:
                faulthandler.disable()

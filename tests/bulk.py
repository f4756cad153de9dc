"""Several audits at once, on this pytest-xdist worker's share of the cores."""

import os

from pullback.check.find.discover import subject_of
from pullback.check.runner.pool import usable_cores
from pullback.check.runner.subjects import preload, run_subjects
from pullback.check.subject import Options

OPTIONS = Options(budget=60)  # generous: the tests are of the findings, and the machine may be busy
JOBS = max(1, usable_cores() // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def audit_all(calls, options=OPTIONS):
    """Audit `(target, inputs)` pairs, `inputs` a function that returns the arguments; return the findings of each."""
    subjects = [subject_of(target) for target, _ in calls]
    inputs = [(subject, make) for subject, (_, make) in zip(subjects, calls, strict=True)]
    return [outcome.findings for outcome in outcomes_of(subjects, options, lambda s: [(of(s, inputs)(), {})])]


def of(subject, pairs):
    """Return the value paired with a subject; by identity, since both travel to a new interpreter together."""
    return next(value for one, value in pairs if one is subject)


def outcomes_of(subjects, options=OPTIONS, given=lambda subject: None):
    """Audit subjects, on inputs that the audit finds by itself unless they are given; return the outcome of each."""
    preload(options)
    return run_subjects(subjects, options, given, jobs=JOBS)

"""Audits the command line's targets, without running the user's code in this process.

One forked process for each target imports it, finds its subjects and forks one process for each of them. This
process only listens. If it cannot be forked, a new interpreter takes the place of the forked process.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import inf
from typing import Any

from pullback.check.cases.given import constant_inputs_for
from pullback.check.clock import PATIENCE
from pullback.check.events import Progress
from pullback.check.find import discover
from pullback.check.find.target import parse_target
from pullback.check.runner.fresh import exec_in_new, packed, unpacked
from pullback.check.runner.outcome import (
    Outcome,
    outcome_from_dict,
    outcome_to_dict,
    report_of,
    signal_name,
    static_outcome,
)
from pullback.check.runner.pool import run_tasks, usable_cores
from pullback.check.runner.process import GIBIBYTE, Channel, Death, ensure_can_fork, fork_is_clean, limit_memory
from pullback.check.runner.subjects import preload, run_subjects
from pullback.check.runner.task import Limits, Sender, describe_failure, refusal
from pullback.check.subject import Given, Inputs, Kind, Options, Subject, device_of
from pullback.errors import PullbackError, RunnerError, TargetError
from pullback.report.model import Location
from pullback.report.report import Report

_IMPORT_SILENCE = 120.0


@dataclass(frozen=True, slots=True)
class Listed:
    """A subject as another process names it."""

    name: str
    kind: Kind
    location: Location


@dataclass(frozen=True)
class TargetPlan:
    """The audit of one target's subjects; it can be sent to another interpreter.

    Attributes:
        what: the target, for messages.
        find: returns its subjects, imported.
        load: called after that; returns the source of example inputs.
        options: options of the audit.
        only: positions of the subjects to audit, in the order they are found; `None` for all.
        jobs: number of concurrent subjects.
        limits: limits for each subject.
        may_run_files: as of `run_subjects`.
    """

    what: str
    find: Callable[[], Sequence[Subject]]
    load: Callable[[], Given]
    options: Options
    only: Collection[int] | None = None
    jobs: int = 1
    limits: Limits | None = None
    may_run_files: bool = True

    def wanted(self, count: int) -> list[int]:
        """Return the positions of the subjects to audit, for a number of subjects."""
        return [position for position in range(count) if self.only is None or position in self.only]

    def carry_out(self, channel: Channel) -> None:
        """Import, list and audit, in a separate process."""
        limit_memory(8 * GIBIBYTE)
        try:
            subjects = self.find()
            given = self.load()
            channel.send("subjects", subjects=[asdict(listed) for listed in _listed(subjects)])
            # From here on Ctrl-C ends the children too, even if the imported code has changed its handler.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._audit(subjects, given, channel)
        except PullbackError as error:
            channel.send("refused", error=type(error).__name__, message=str(error))
        except Exception as error:
            channel.send("broken", what=describe_failure(error))
        else:
            channel.send("end")

    def _audit(self, subjects: Sequence[Subject], given: Given, channel: Channel) -> None:
        wanted = self.wanted(len(subjects))
        audited = [subjects[position] for position in wanted]
        if audited:
            preload(self.options, audited)
        run_subjects(
            audited,
            self.options,
            given,
            limits=self.limits,
            jobs=self.jobs,
            may_run_files=self.may_run_files,
            on_outcome=lambda n, outcome: channel.send("outcome", position=wanted[n], outcome=outcome_to_dict(outcome)),
            on_rule=lambda doing: channel.send("doing", what=doing),
            tick=Sender(channel).beat,
        )


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during an audit, with what is finished.

    Attributes:
        report: on the functions that were audited.
        known: how many were to be, as far as they were found.
    """

    def __init__(self, report: Report, known: int) -> None:
        super().__init__()
        self.report, self.known = report, known


class TargetTask:
    """One target: its import, the list of its subjects, and the audit of those asked for."""

    has_processes = True
    silence = _IMPORT_SILENCE
    limit = inf

    def __init__(
        self, plan: TargetPlan, static: Callable[[str], Sequence[Subject]], in_new: bytes | None = None
    ) -> None:
        """Prepare the audit of one target.

        Args:
            plan: the audit.
            static: returns its subjects as their source shows them, unaudited for a reason.
            in_new: the plan, packed, if it runs in a new interpreter.
        """
        self.listed: list[Listed] = []
        self.outcomes: dict[int, Outcome] = {}
        self.doing = ""
        self._plan = plan
        self._static = static
        self._in_new = in_new

    @property
    def wanted(self) -> list[int]:
        """Positions of the subjects to audit, among those listed."""
        return self._plan.wanted(len(self.listed))

    def work(self, channel: Channel) -> None:
        """Carry out the plan: called in the forked process."""
        if self._in_new is not None:
            exec_in_new(self._in_new, channel)
        self._plan.carry_out(channel)

    def message(self, message: dict[str, Any]) -> bool:
        """Handle a message of the process; return true if it was the last one.

        Raises:
            PullbackError: if the process reports that nothing can be audited.
        """
        match message["event"]:
            case "subjects":
                self.listed = [Listed(**{**s, "location": Location(**s["location"])}) for s in message["subjects"]]
            case "doing":
                self.doing = message["what"]
            case "outcome":
                self.outcomes[message["position"]] = outcome_from_dict(message["outcome"])
            case "refused":
                raise refusal(message)
            case "broken":
                raise RunnerError(f"{self._plan.what}: the audit itself failed, a bug of Pullback: {message['what']}")
        return bool(message["event"] == "end")

    def over(self, death: Death) -> bool:
        """Audit by their source the subjects whose process ended early; no other process is started.

        Raises:
            TargetError: if the source holds none either.
        """
        if death.cause == "finished":
            return False
        why = _why(death, imported=bool(self.listed))
        if self.listed:
            lost = [Subject(s.name, s.kind, None, s.location, why_unaudited=why) for s in self.listed]
        else:
            lost = list(self._static(why))
            self.listed = _listed(lost)
        if not lost:
            raise TargetError(f"{self._plan.what}: {why}")
        for position in self.wanted:
            if position not in self.outcomes:
                self.outcomes[position] = static_outcome(lost[position], self._plan.options, why)
        return False


def _listed(subjects: Sequence[Subject]) -> list[Listed]:
    return [Listed(subject.name, subject.kind, subject.location) for subject in subjects]


def run_targets(
    targets: Sequence[str],
    options: Options,
    load: Callable[[], Given],
    *,
    on_progress: Progress | None = None,
) -> Report:
    """Audit every subject of every target; one report. Arguments and errors are those of `audit_targets`."""
    return report_of(audit_targets(targets, options, load, on_progress=on_progress))


def audit_targets(
    targets: Sequence[str],
    options: Options,
    load: Callable[[], Given],
    *,
    only: Collection[int] | None = None,
    limits: Limits | None = None,
    on_progress: Progress | None = None,
) -> list[Outcome]:
    """Audit the subjects of every target.

    Args:
        targets: as on the command line.
        options: how to audit.
        load: called in the process of each target, after its import; returns the source of example inputs.
        only: positions of the subjects to audit in each target, `None` for all.
        limits: limits for each subject; by default derived from the budget.
        on_progress: called many times a second with the number of subjects done and known, and the current step.

    Returns:
        One outcome for each subject, target by target, in the order of their source.

    Raises:
        TargetError: if a target cannot be found, read or understood, or holds nothing to audit.
        OptionError: if the example inputs cannot be loaded.
        RunnerError: if this process cannot be forked.
    """
    for target in targets:
        parse_target(target)  # report a typo in the last target before the first is audited
    ensure_can_fork()
    unique = list(dict.fromkeys(targets))
    if len(unique) > 1:
        preload(options)
    cores = options.jobs or usable_cores()
    jobs = max(1, min(cores, len(unique)))
    plans = [
        TargetPlan(target, partial(discover.discover, target), load, options, only, cores // jobs, limits)
        for target in unique
    ]
    return _carried_out([(plan, partial(discover.static_subjects, plan.what)) for plan in plans], on_progress, jobs)


def audit_object(
    target: object, find: Callable[[], Sequence[Subject]], given: Inputs | None, options: Options
) -> Report:
    """Audit an object of this program, which cannot be forked, in a new interpreter.

    Args:
        target: the object, or the module that holds the subjects.
        find: returns its subjects, in this process or in the new one.
        given: example inputs, the same for all subjects; unpacked in the processes that use them.
        options: how to audit.

    Raises:
        TargetError, OptionError: as `run_targets`; the latter, too, if the example is not on the CPU.
        RunnerError: if it cannot travel.
    """
    what = str(getattr(target, "__name__", type(target).__name__))
    device_of(given or ())  # before anything is sent
    inputs = None if given is None else packed(given, f"the example of {what}")
    jobs = options.jobs or usable_cores()
    plan = TargetPlan(what, find, partial(_unpacking, inputs), options, jobs=jobs, may_run_files=False)

    def static(why: str) -> list[Subject]:
        return [replace(subject, target=None, why_unaudited=why) for subject in find()]

    return report_of(_carried_out([(plan, static)], None, 1, about=target))


def _unpacking(inputs: bytes | None) -> Given:
    return lambda subject: None if inputs is None else unpacked(inputs)


def _carried_out(
    plans: Sequence[tuple[TargetPlan, Callable[[str], Sequence[Subject]]]],
    on_progress: Progress | None,
    jobs: int,
    about: object = None,
) -> list[Outcome]:
    """Carry out plans, each in a process; return the outcomes in order."""
    is_clean = fork_is_clean()
    tasks = [
        TargetTask(plan, static, None if is_clean else packed(plan.carry_out, plan.what, about))
        for plan, static in plans
    ]

    def tick() -> None:
        if on_progress is None:
            return
        begun = [task.doing for task in tasks if len(task.outcomes) < len(task.wanted)]
        done, known = sum(len(task.outcomes) for task in tasks), sum(len(task.wanted) for task in tasks)
        on_progress(done, known, begun[0] if begun else "")

    try:
        run_tasks(tasks, jobs, tick)
    except KeyboardInterrupt:
        finished = [outcome for task in tasks for _, outcome in sorted(task.outcomes.items())]
        raise Interrupted(report_of(finished), sum(len(task.wanted) for task in tasks)) from None
    return [task.outcomes[position] for task in tasks for position in task.wanted]


def list_subjects(target: str) -> list[Listed]:
    """Return the subjects of a target, found in another process; nothing is audited.

    Raises:
        TargetError: if it cannot be found, read or understood, or holds nothing to audit.
        RunnerError: if this process cannot be forked.
    """
    ensure_can_fork()
    plan = TargetPlan(
        target, partial(discover.discover, target), partial(constant_inputs_for, (), {}), Options(), only=()
    )
    task = TargetTask(plan, partial(discover.static_subjects, target))
    run_tasks([task], 1, lambda: None)
    return task.listed


def _why(death: Death, imported: bool) -> str:
    """The reason why the process of a target ended, in words."""
    doing = "auditing" if imported else "importing"
    if death.cause == "silent":
        return f"{doing} it did not get on for {_IMPORT_SILENCE * (PATIENCE if death.was_idle else 1):g} s"
    if death.cause == "signal":
        return f"{doing} it ended with {signal_name(death.status)}"
    printed = death.output.splitlines()
    last_words = f": {printed[-1].strip()}" if printed else ""
    return f"{doing} it ended the process with exit status {death.status}{last_words}"

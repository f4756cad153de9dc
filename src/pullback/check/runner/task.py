"""The audit of one subject as a task: the work of its processes, and their messages."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pullback.check.case import IF_IT_FITS
from pullback.check.clock import PATIENCE
from pullback.check.events import Events
from pullback.check.find.kernels import enter_for_object
from pullback.check.rules import rule_of
from pullback.check.run_audit import run_alone, run_audit, static_findings, unaudited
from pullback.check.runner.fresh import exec_in_new, packed, unpacked
from pullback.check.runner.outcome import AuditStep, Outcome, make_outcome, newest, process_finding
from pullback.check.runner.process import GIBIBYTE, Channel, Death, limit_memory, ordinary_modes
from pullback.check.runner.replay import can_replay, complaint, hangs, unshown
from pullback.check.subject import Given, Inputs, Options, Subject
from pullback.check.trial import describe_error, reseed
from pullback.errors import OptionError, PullbackError, RunnerError, TargetError
from pullback.report.model import (
    Evidence,
    Finding,
    Measurements,
    finding_from_dict,
    measurements_from_dict,
    to_plain,
)

_REFUSALS = {error.__name__: error for error in (TargetError, OptionError, RunnerError)}
_BEAT = 0.2
_TO_START = 20.0
"""Seconds for a Python that imports PyTorch, on a busy machine."""
ONCE = "called once more, it came back"
NOT_AGAIN = "in a new process, the script did not reproduce this: "
_NO_FORK = "fork() called from a process already using"
"""Words of the message with which OpenMP ends a forked process."""
NOT_ALONE = "run alone it ended well: a variant before it may have written outside of its memory"
WAITED = "it waited all the time, as for a thread, which a forked process has not"


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one subject; seconds are those that count (`clock.py`).

    Attributes:
        silence: seconds without news from its process.
        total: seconds over all of its processes.
        memory: bytes, in addition to those its process starts with.
        attempts: processes.
    """

    silence: float
    total: float
    memory: int = 8 * GIBIBYTE
    attempts: int = 6

    @classmethod
    def of(cls, options: Options) -> Limits:
        """Limits for a budget. Inductor alone may be silent for minutes."""
        silence = max(180.0 if options.deep else 10.0, options.budget)
        return cls(silence=silence, total=6 * options.budget + 30 + (6 * silence if options.deep else 0))


@dataclass
class ProcessLog:
    """Messages of one process; `has_varied` says whether it has called a variant of the example."""

    step: AuditStep = field(default_factory=AuditStep)
    has_varied: bool = False
    findings: list[Finding] = field(default_factory=list)
    cases: int = 0
    allowed: int = 0
    measured: Measurements = field(default_factory=Measurements)


class SubjectTask:
    """The audit of one subject, over as many processes as needed, and the replay of each error in a separate one."""

    has_processes = False

    def __init__(
        self,
        subject: Subject,
        options: Options,
        given: Given,
        limits: Limits,
        done: Callable[[Outcome], None],
        may_run_files: bool,
        in_new: bool = False,
        on_rule: Callable[[str], None] | None = None,
    ) -> None:
        """Prepare the audit of one subject.

        Args:
            subject, options, given, limits, may_run_files: as of `run_subjects`.
            done: called with the outcome.
            in_new: whether each of its processes is a new interpreter, since no forked process could run a backward.
            on_rule: as of `run_subjects`.

        Raises:
            RunnerError: if it cannot be sent to one.
        """
        self._subject = subject
        self._done = done
        self._on_rule = on_rule
        self._seconds = self._spent = 0.0
        self._finished = False
        self._options = options
        self._given = given
        self._limits = limits
        self._attempts = [ProcessLog()]
        self._skip: frozenset[str] = frozenset()
        self._deaths: list[Finding] = []
        self._hung: dict[AuditStep, Finding] = {}
        self._idle: set[str] = set()
        self._crashes: dict[str, AuditStep] = {}
        self._may_run_files = may_run_files
        self._packed = self._pack() if in_new else b""
        self._result: Outcome | None = None
        self._to_replay: list[Finding] = []
        self._complaint = ""

    @property
    def silence(self) -> float:
        """Seconds without news after which its process is killed."""
        starts = bool(self._packed) and not self._attempts[-1].step.what
        return self._limits.silence + (_TO_START if starts else 0.0)

    @property
    def limit(self) -> float:
        """Seconds that are left to it."""
        return self._limits.total - self._spent

    def work(self, channel: Channel) -> None:
        """Audit the subject, or replay an error: called in the forked process."""
        if self._packed:
            rest = self._skip, self._to_replay[:1], self._crashes
            exec_in_new(packed(partial(_in_new, self._packed, *rest), ""), channel)
        limit_memory(self._limits.memory)
        if enter_for_object(self._subject.target):
            self._subject = replace(self._subject, is_interpreted=True)
        if self._to_replay:
            with ordinary_modes():
                channel.send("replayed", complaint=self._replayed(self._to_replay[0], Sender(channel)))
            return
        events = Sender(channel)
        try:
            with ordinary_modes():
                events.step("", "getting example inputs", "")
                inputs = self._inputs()
                end = run_audit(self._subject, self._options, inputs, events, self._skip)
        except PullbackError as error:
            channel.send("refused", error=type(error).__name__, message=str(error))
        except Exception as error:
            channel.send("broken", what=describe_failure(error), trace=trace_of(error))
        else:
            channel.send("end", cases=end.cases, allowed=end.allowed, measured=asdict(end.measured))

    def _inputs(self) -> Inputs | None:
        """The given examples, from a fixed random state, so that a seed determines the report."""
        reseed(self._options.seed)
        return self._given(self._subject)

    def resume(self, skip: frozenset[str], to_replay: list[Finding], crashes: dict[str, AuditStep]) -> None:
        """Start again without rules and cases that ended an earlier process, or with errors to replay."""
        self._skip, self._to_replay, self._crashes = skip, to_replay, crashes

    def message(self, message: dict[str, Any]) -> bool:
        """Handle a message of the process; return true if it was the last one.

        Raises:
            PullbackError: if the process reports that nothing can be audited.
        """
        attempt = self._attempts[-1]
        match message["event"]:
            case "step":
                if self._on_rule is not None and message["rule"] != attempt.step.rule:
                    self._on_rule(f"{message['rule'] or 'an example'} of {self._subject.name}")
                attempt.has_varied |= bool(attempt.step.rule) and not attempt.step.is_call
                attempt.step = AuditStep(message["rule"], message["what"], message["reproduce"])
            case "finding":
                attempt.findings.append(finding_from_dict(message["finding"]))
            case "end":
                attempt.cases, attempt.allowed = message["cases"], message["allowed"]
                attempt.measured = measurements_from_dict(message["measured"])
            case "broken":
                attempt.findings.append(our_fault(self._subject, message["what"], message["trace"]))
            case "replayed":
                self._complaint = message["complaint"]
            case "refused":
                raise refusal(message)
        return message["event"] in ("end", "broken", "replayed")

    def over(self, death: Death) -> bool:
        """Record how its process ended; return true if another process is to start."""
        self._seconds += death.seconds
        self._spent += death.spent
        if self._result is None:
            self._finished = death.cause == "finished"
            if not self._finished and self._another(death):
                return True
            self._result = self._without_idle(self._outcome())
            self._to_replay = [f for f in self._result.findings if self._can_replay(f)]
        else:
            finding = self._to_replay.pop(0)
            if self._complaint:
                self._result = self._result.with_finding(finding, unshown(finding, self._complaint))
                self._complaint = ""
        if self._to_replay and self.limit > 0:
            return True
        self._done(self._result)
        return False

    def _can_replay(self, finding: Finding) -> bool:
        """Whether it can be replayed: by its reproduction or, for a crash after variants, by its step alone."""
        if finding.message in self._crashes:
            return finding.severity == "error"
        is_death = finding in self._deaths and finding.rule != rule_of("hang").id
        may_run_files = self._may_run_files and not self._subject.absent  # imports that a stand-in replaces fail there
        return not is_death and can_replay(finding, may_run_files)

    def _without_idle(self, outcome: Outcome) -> Outcome:
        """Return an outcome in which a hang that cannot be replayed, and took no work, is no error."""
        for finding in outcome.findings:
            if finding.message in self._idle and finding.severity == "error" and not self._can_replay(finding):
                outcome = outcome.with_finding(finding, unshown(finding, WAITED))
        return outcome

    def _replayed(self, finding: Finding, events: Events) -> str:
        """The contradiction between an error and its replay; empty if the replay confirms it."""
        if (crash := self._crashes.get(finding.message)) is not None:
            inputs = self._inputs()
            is_run = run_alone(self._subject, self._options, inputs, events, crash.rule, crash.what)
            return NOT_ALONE if is_run else ""
        if finding.rule != rule_of("hang").id:
            why = complaint(finding)
        else:
            hung = hangs(finding.reproduce, self._limits.silence + _TO_START, events.beat)
            why = "" if hung else "the call returned"
        return NOT_AGAIN + why if why else ""

    def _another(self, death: Death) -> bool:
        """Record a death; return whether to start another process, without the rule and the case in question.

        A hanging call is repeated once before it is left out. A process that hangs while idle is replaced by a new
        interpreter, if the subject can be sent there: a lock that another thread held is never released in a fork. So
        is one whose code refuses to run in a fork.
        """
        step = self._attempts[-1].step
        limit = self._limits.total if death.cause == "late" else self._limits.silence
        limit *= PATIENCE if death.was_idle else 1
        finding = process_finding(self._subject, death, step, limit)
        if finding.rule == rule_of("crash").id and self._attempts[-1].has_varied:
            self._crashes[finding.message] = step
        culprits = {step.rule, step.what, *[IF_IT_FITS] * step.is_doubtful}
        restarts = bool(step.rule) and not culprits <= self._skip and death.cause != "late"
        restarts = restarts and len(self._attempts) < self._limits.attempts
        of_the_fork = death.was_idle or _NO_FORK in death.output
        if of_the_fork and not self._packed and len(self._attempts) < self._limits.attempts and self._travels():
            self._attempts.append(ProcessLog())
            return True
        if restarts and death.cause == "silent" and not any(culprits == {hung.rule, hung.what} for hung in self._hung):
            self._hung[step] = finding
            self._attempts.append(ProcessLog())
            return True
        self._hung = {hung: f for hung, f in self._hung.items() if culprits != {hung.rule, hung.what}}
        self._deaths.append(finding)
        self._idle |= {finding.message} if death.was_idle else set()
        if not restarts:
            return False
        self._skip |= culprits
        self._attempts.append(ProcessLog())
        return True

    def _travels(self) -> bool:
        """Switch to new interpreters for further processes; return whether the subject can be sent there."""
        with suppress(RunnerError):
            self._packed = self._pack()
        return bool(self._packed)

    def _pack(self) -> bytes:
        what = self._subject, self._options, self._given, self._limits
        return packed(what, self._subject.name, self._subject.target)

    def _outcome(self) -> Outcome:
        attempts = [attempt.findings for attempt in self._attempts]
        if not self._finished:  # the last process died too, perhaps before any rule
            attempts.insert(0, static_findings(self._subject, self._options))
        hung = [] if self._packed else list(self._hung.values())  # it hung for want of the threads of its parent
        deaths = self._deaths + [unshown(finding, ONCE) for finding in hung]
        reported = [finding for finding in deaths if not finding.rule.startswith(self._options.ignore or ("-",))]
        return make_outcome(
            self._subject,
            reported + newest(attempts),
            cases=max(attempt.cases for attempt in self._attempts),
            seconds=self._seconds,
            allowed=max(attempt.allowed for attempt in self._attempts),
            measured=self._attempts[-1].measured,
        )


def _in_new(
    task: bytes, skip: frozenset[str], to_replay: list[Finding], crashes: dict[str, AuditStep], channel: Channel
) -> None:
    """Do the work of a task in a new interpreter, where this is called."""
    subject, options, given, limits = unpacked(task)
    there = SubjectTask(subject, options, given, limits, lambda outcome: None, may_run_files=False)
    there.resume(skip, to_replay, crashes)
    there.work(channel)


def refusal(message: dict[str, Any]) -> PullbackError:
    """Return the error that another process sent as a "refused" message."""
    return _REFUSALS.get(message["error"], PullbackError)(message["message"])


def describe_failure(error: Exception) -> str:
    """Return an exception and its source location, on one line of bounded length."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{describe_error(error)} ({Path(where.filename).name}:{where.lineno})"


def trace_of(error: Exception) -> str:
    """Return where an exception was raised, without its message, which may be long."""
    return "".join(["Traceback (most recent call last):\n", *traceback.format_tb(error.__traceback__)])


class Sender:
    """Turns the events of an audit into messages."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._last = time.monotonic()

    def step(self, rule: str, what: str, reproduce: str) -> None:
        """Send the step that begins."""
        self._channel.send("step", rule=rule, what=what, reproduce=reproduce)
        self._last = time.monotonic()

    def beat(self) -> None:
        """Send a sign of life, unless a message was sent a moment ago."""
        if time.monotonic() > self._last + _BEAT:
            self._channel.send("beat")
            self._last = time.monotonic()

    def finding(self, finding: Finding) -> None:
        """Send a finding."""
        self._channel.send("finding", finding=to_plain(finding))


def our_fault(subject: Subject, what: str, trace: str) -> Finding:
    """Return the finding for an audit that broke: the subject is not to blame, and was not audited."""
    finding = unaudited(subject, f"the audit itself failed, a bug of Pullback: {what}")
    return replace(finding, evidence=Evidence(got=trace, where="where it failed"))

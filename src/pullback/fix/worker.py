"""Worker process for the functions of one target: it imports the author's code, which may crash or hang."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from pullback.check.audit import Audit
from pullback.check.case import make_case
from pullback.check.cases.signature import positional_names
from pullback.check.find.discover import discover
from pullback.check.runner.outcome import signal_name
from pullback.check.runner.pool import run_tasks
from pullback.check.runner.process import GIBIBYTE, Channel, Death, limit_memory
from pullback.check.runner.task import Sender, refusal
from pullback.check.subject import Given, Options, Subject
from pullback.check.working_example import prepare
from pullback.errors import PullbackError
from pullback.fix.patch import CannotFixError

_MAX_SILENCE = 120.0
"""Seconds without a message after which the process is killed."""

SubjectSelection = Callable[[Sequence[Subject]], Sequence[Subject | None]]
"""Selects functions of a target; `None` for one that is not there."""
SubjectWork = Callable[[Subject | None, Given, Sender], dict[str, Any]]
"""Computes the result for a function, as JSON data."""


def run_worker(target: str, select: SubjectSelection, work: SubjectWork, load: Callable[[], Given]) -> WorkerTask:
    """Process some functions of a target; the task holds the results.

    Raises:
        PullbackError: if the target cannot be loaded, or the example inputs cannot.
    """
    task = WorkerTask(target, select, work, load)
    run_tasks([task], 1, lambda: None)
    return task


class WorkerTask:
    """A task for the pool of processes. If a function ends its process, another process continues after it.

    Attributes:
        found: results, by position among the selected functions.
        lost: reasons for missing results, by position; by `None`, the reason for all others.
    """

    has_processes = False
    silence = _MAX_SILENCE
    limit = inf

    def __init__(self, target: str, select: SubjectSelection, work: SubjectWork, load: Callable[[], Given]) -> None:
        self.found: dict[int, dict[str, Any]] = {}
        self.lost: dict[int | None, str] = {}
        self._current: int | None = None
        self._target, self._select, self._work, self._load = target, select, work, load

    def work(self, channel: Channel) -> None:
        """Import the target and process its functions: called in the forked process."""
        limit_memory(8 * GIBIBYTE)
        try:
            subjects = self._select(discover(self._target))
            given = self._load()
            for i, subject in enumerate(subjects):
                if i not in self.found and i not in self.lost:
                    channel.send("begin", position=i)
                    channel.send("found", position=i, what=self._work(subject, given, Sender(channel)))
        except PullbackError as error:
            channel.send("refused", error=type(error).__name__, message=str(error))
        else:
            channel.send("end")

    def message(self, message: dict[str, Any]) -> bool:
        """Handle a message of the process; true if it was the last one.

        Raises:
            PullbackError: if the process reports that the request is impossible.
        """
        match message["event"]:
            case "begin":
                self._current = message["position"]
            case "found":
                self.found[message["position"]] = message["what"]
            case "refused":
                raise refusal(message)
        return bool(message["event"] == "end")

    def over(self, death: Death) -> bool:
        """Record why the process ended; true if another one is to process the remaining functions."""
        what = signal_name(death.status) if death.cause == "signal" else f"exit status {death.status}"
        silent = f"the process made no progress for {_MAX_SILENCE:g} s"
        self.lost[self._current] = silent if death.cause == "silent" else f"the process ended with {what}"
        continues, self._current = self._current is not None, None
        return continues

    def result(self, position: int) -> dict[str, Any] | str:
        """Result of a function, or the reason why there is none."""
        if position in self.found:
            return self.found[position]
        return self.lost.get(position) or self.lost.get(None, "")


def prepared_audit(subject: Subject, given: Given, options: Options, sender: Sender) -> Audit:
    """Audit of a function, prepared with its example as `pullback check` does it.

    Raises:
        CannotFixError: if there is no example.
    """
    names = positional_names(subject)
    cases = [make_case(args, kwargs, names, "given", False) for args, kwargs in given(subject) or ()]
    audit, why = prepare(subject, options, cases, sender, frozenset())
    if audit is None:
        raise CannotFixError(why)
    return audit

"""Applies a task to some functions of a target, in a separate process, which imports the author's code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from pullback.check.case import make_case
from pullback.check.cases.signature import positional_names
from pullback.check.example import prepare
from pullback.check.find.discover import discover
from pullback.check.runner.child import GIBIBYTE, Channel, limit_memory
from pullback.check.runner.deaths import signal_name
from pullback.check.runner.pool import run_tasks
from pullback.check.runner.process import Death
from pullback.check.runner.task import Sender, refusal
from pullback.check.state import Audit
from pullback.check.subject import Given, Options, Subject
from pullback.errors import PullbackError
from pullback.fix.model import CannotFixError

_SILENCE = 120.0

Choose = Callable[[Sequence[Subject]], Sequence[Subject | None]]
"""Picks functions out of all of a target; `None` for one that is not there."""
Do = Callable[[Subject | None, Given, Sender], dict[str, Any]]
"""Returns the result for a function, as JSON data."""


class EachTask:
    """A task for some functions of one target. A function that ends the process is left out of the next one.

    Attributes:
        found: result of each, by its position among the chosen ones.
        lost: why a function has no result, by its position; by `None`, why all missing ones have none.
    """

    has_processes = False
    silence = _SILENCE
    limit = inf

    def __init__(self, target: str, choose: Choose, do: Do, load: Callable[[], Given]) -> None:
        self.found: dict[int, dict[str, Any]] = {}
        self.lost: dict[int | None, str] = {}
        self._at: int | None = None
        self._target, self._choose, self._do, self._load = target, choose, do, load

    def work(self, channel: Channel) -> None:
        """Import, and do it: called in the forked process."""
        limit_memory(8 * GIBIBYTE)
        try:
            subjects = self._choose(discover(self._target))
            given = self._load()
            for i, subject in enumerate(subjects):
                if i not in self.found and i not in self.lost:
                    channel.send("begin", position=i)
                    channel.send("found", position=i, what=self._do(subject, given, Sender(channel)))
        except PullbackError as error:
            channel.send("refused", error=type(error).__name__, message=str(error))
        else:
            channel.send("end")

    def message(self, message: dict[str, Any]) -> bool:
        """Handle a message of the process; return true if it was the last one.

        Raises:
            PullbackError: if the process reports that the request is impossible.
        """
        match message["event"]:
            case "begin":
                self._at = message["position"]
            case "found":
                self.found[message["position"]] = message["what"]
            case "refused":
                raise refusal(message)
        return bool(message["event"] == "end")

    def over(self, death: Death) -> bool:
        """Record why the process ended; functions after the one that ended it run in another process."""
        what = signal_name(death.status) if death.cause == "signal" else f"exit status {death.status}"
        silent = f"for {_SILENCE:g} s it did not get on"
        self.lost[self._at] = silent if death.cause == "silent" else f"the process ended with {what}"
        is_known, self._at = self._at is not None, None
        return is_known

    def of(self, position: int) -> dict[str, Any] | str:
        """Return the result of a function, or the reason why there is none."""
        if position in self.found:
            return self.found[position]
        return self.lost.get(position) or self.lost.get(None, "")


def do_each(target: str, choose: Choose, do: Do, load: Callable[[], Given]) -> EachTask:
    """Do something with some functions of a target, and return the task that did.

    Raises:
        PullbackError: if the target or the example inputs cannot be had.
    """
    task = EachTask(target, choose, do, load)
    run_tasks([task], 1, lambda: None)
    return task


def audited(subject: Subject, given: Given, options: Options, sender: Sender) -> Audit:
    """Return a function with the audit's own example.

    Raises:
        CannotFixError: if there is none.
    """
    names = positional_names(subject)
    cases = [make_case(args, kwargs, names, "given", False) for args, kwargs in given(subject) or ()]
    state, why = prepare(subject, options, cases, sender, frozenset())
    if state is None:
        raise CannotFixError(why)
    return state

"""The processes of a judgement, as tasks of the audit's pool: what they sent, and how they ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pullback.check.runner.fresh import exec_in_new, packed
from pullback.check.runner.outcome import signal_name
from pullback.check.runner.pool import run_tasks
from pullback.check.runner.process import Channel, Death, fork_is_clean
from pullback.check.runner.task import refusal

Work = Callable[[Channel], None]

_TO_START = 20.0
"""Seconds for a Python that imports PyTorch."""


@dataclass
class Session:
    """One process.

    Attributes:
        function: what it does.
        name: of what it runs, for messages.
        silence: seconds for one call.
        limit: seconds for all of them.
        answers: messages about calls, by the position of the call.
        begun: position of the call that it has begun last.
        end: its last message; `None` if it ended without one.
        death: how it ended.
    """

    function: Work
    name: str
    silence: float
    limit: float
    answers: dict[int, dict[str, Any]] = field(default_factory=dict)
    begun: int = -1
    end: dict[str, Any] | None = None
    death: Death | None = None
    has_processes = False
    _packed: bytes = b""

    def work(self, channel: Channel) -> None:
        """Do it: called in the forked process."""
        if self._packed:
            exec_in_new(self._packed, channel)
        self.function(channel)

    def travel(self) -> None:
        """Do it in a new interpreter.

        Raises:
            RunnerError: if it cannot be sent there.
        """
        self._packed = packed(self.function, self.name)
        self.silence += _TO_START

    def message(self, message: dict[str, Any]) -> bool:
        """Keep a message; return true if it was the last one."""
        match message["event"]:
            case "begin" if isinstance(message.get("call"), int):  # a candidate may forge any message
                self.begun = message["call"]
            case "answer" | "band" if isinstance(message.get("call"), int):
                self.answers[message["call"]] = message
            case "end" | "refused":
                self.end = message
        return self.end is not None

    def over(self, death: Death) -> bool:
        """Keep how it ended; no other process is started."""
        self.death = death
        return False

    def required(self) -> dict[str, Any]:
        """The last message.

        Raises:
            PullbackError: if it says that nothing can be done, or there is none.
        """
        if self.end is None:
            message = f"{self.name} {self.why}"
            raise refusal({"error": "PullbackError", "message": message})
        if self.end["event"] == "refused":
            raise refusal(self.end)
        return self.end

    @property
    def why(self) -> str:
        """How it ended early, in words."""
        if self.death is None:
            return "did not run"
        if self.death.cause in ("silent", "late"):
            return f"did not return within {self.silence if self.death.cause == 'silent' else self.limit:g} s"
        if self.death.cause == "signal":
            return f"ended the process with {signal_name(self.death.status)}"
        printed = self.death.output.splitlines()
        last = f": {printed[-1].strip()}" if printed else ""
        return f"ended the process with exit status {self.death.status}{last}"


def run_sessions(sessions: list[Session]) -> None:
    """Run processes side by side, forked, or in new interpreters where no fork could run a backward."""
    if not fork_is_clean():
        for session in sessions:
            session.travel()
    run_tasks(sessions, len(sessions), lambda: None)

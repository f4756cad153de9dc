"""Derives new backwards in a process of its own, which imports the author's code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from pullback.check.case import make_case
from pullback.check.cases.signature import positional_names
from pullback.check.example import prepare
from pullback.check.find.discover import discover
from pullback.check.runner.child import GIBIBYTE, Channel, limit_memory
from pullback.check.runner.deaths import signal_name
from pullback.check.runner.pool import run_tasks
from pullback.check.runner.process import Death
from pullback.check.runner.task import Sender, describe_failure, refusal
from pullback.check.subject import Given, Options, Subject
from pullback.errors import PullbackError
from pullback.fix.derive import derive
from pullback.fix.model import CannotFixError, Derived, Key, derived_from_dict

_SILENCE = 120.0


@dataclass(frozen=True, slots=True)
class Found:
    """What came of one function.

    Attributes:
        derived: the new backward, or why there is none.
        file: that defines it; empty where that is not known.
        qualname: of it in that file.
    """

    derived: Derived | str
    file: str = ""
    qualname: str = ""


class DeriveTask:
    """The new backwards of some functions of one target."""

    has_processes = False
    silence = _SILENCE
    limit = inf

    def __init__(self, target: str, keys: Sequence[Key], options: Options, load: Callable[[], Given]) -> None:
        self.found: dict[Key, Found] = {}
        self._target, self._keys, self._options, self._load = target, keys, options, load

    def work(self, channel: Channel) -> None:
        """Import and derive: called in the forked process."""
        limit_memory(8 * GIBIBYTE)
        try:
            subjects = {_key(subject): subject for subject in discover(self._target)}
            given = self._load()
            for i, key in enumerate(self._keys):
                channel.send("found", position=i, **_found(subjects.get(key), given, self._options, channel))
        except PullbackError as error:
            channel.send("refused", error=type(error).__name__, message=str(error))
        else:
            channel.send("end")

    def message(self, message: dict[str, Any]) -> bool:
        """Take a message of the process; true if it was the last one.

        Raises:
            PullbackError: if the process says that nothing can be derived as asked.
        """
        match message["event"]:
            case "found":
                data = message["derived"]
                derived = data if isinstance(data, str) else derived_from_dict(data)
                self.found[self._keys[message["position"]]] = Found(derived, message["file"], message["qualname"])
            case "refused":
                raise refusal(message)
        return bool(message["event"] == "end")

    def over(self, death: Death) -> bool:
        """Have what its end cut off stay as it is; no other process is started."""
        what = signal_name(death.status) if death.cause == "signal" else f"exit status {death.status}"
        silent = f"for {_SILENCE:g} s it did not get on"
        why = f"deriving its backward, {silent if death.cause == 'silent' else f'the process ended with {what}'}"
        for key in self._keys:
            self.found.setdefault(key, Found(why))
        return False


def derive_all(target: str, keys: Sequence[Key], options: Options, load: Callable[[], Given]) -> dict[Key, Found]:
    """Return new backwards for some functions of a target, or why there are none.

    Raises:
        PullbackError: if the target or the example inputs cannot be had.
    """
    task = DeriveTask(target, keys, options, load)
    run_tasks([task], 1, lambda: None)
    return task.found


def _key(subject: Subject) -> Key:
    return Key(subject.name, subject.location.file or "", subject.location.line or 0)


def _found(subject: Subject | None, given: Given, options: Options, channel: Channel) -> dict[str, Any]:
    if subject is None or subject.kind != "function" or subject.target is None:
        return {"derived": "it is no autograd.Function that can be called", "file": "", "qualname": ""}
    place = {"file": "", "qualname": ""}
    if subject.source is not None:
        place = {"file": str(Path(subject.source.file).resolve()), "qualname": subject.source.qualname}
    try:
        return {"derived": derive(subject, _example(subject, given, options, channel)).to_dict(), **place}
    except CannotFixError as error:
        return {"derived": str(error), **place}
    except PullbackError:
        raise
    except Exception as error:  # a fault of ours is told of this function, and the others still get theirs
        return {"derived": f"Pullback failed, which is a bug of it: {describe_failure(error)}", **place}


def _example(subject: Subject, given: Given, options: Options, channel: Channel) -> tuple[Any, ...]:
    """Return the arguments of the audit's example."""
    names = positional_names(subject)
    cases = [make_case(args, kwargs, names, "given", False) for args, kwargs in given(subject) or ()]
    state, why = prepare(subject, options, cases, Sender(channel), frozenset())
    if state is None:
        raise CannotFixError(why)
    args, kwargs, _ = state.base.arguments()
    if kwargs:
        raise CannotFixError("its example has keyword arguments")
    return tuple(args)

"""`pullback.watch`: record the calls of custom functions while a program runs, and audit them afterwards."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from pullback import _torch
from pullback.check.cases.call_samples import OURS, CallSamples
from pullback.check.events import Progress
from pullback.check.find import discover
from pullback.check.options import make_options
from pullback.check.runner.outcome import report_of
from pullback.check.runner.subjects import preload, run_subjects
from pullback.check.subject import Inputs, Options, Subject
from pullback.errors import TargetError
from pullback.report.report import Report


class Watch:
    """Recorder of the calls of custom functions between `start` and `stop`, in this process alone."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._samples = CallSamples()
        self._end: Callable[[], None] | None = None
        self._process = os.getpid()

    def start(self) -> None:
        """Start recording."""
        self._end = _torch.observe_functions(self._record)

    def stop(self) -> None:
        """Stop recording."""
        if self._end is not None:
            self._end()
            self._end = None

    @property
    def is_here(self) -> bool:
        """Whether this process is the watched one, rather than one forked from it."""
        return os.getpid() == self._process

    @property
    def has_calls(self) -> bool:
        """Whether a custom function was called."""
        return bool(self._samples.functions)

    def audit(self, on_progress: Progress | None = None) -> Report:
        """Audit what was called so far, and return the report.

        Args:
            on_progress: receives the progress.

        Raises:
            RunnerError: if this process cannot be forked.
        """
        subjects = [found for function in self._samples.functions for found in _subjects(function)]
        if not subjects:
            return Report((), ())
        preload(self._options, subjects)
        done, doing = 0, ""

        def on_outcome(_: int, __: Any) -> None:
            nonlocal done
            done += 1

        def on_rule(what: str) -> None:
            nonlocal doing
            doing = what

        def tick() -> None:
            if on_progress is not None:
                on_progress(done, len(subjects), doing)

        samples = {subject.target: self._samples.of(subject.target) for subject in subjects}

        def given(subject: Subject) -> Inputs | None:
            return samples[subject.target]

        return report_of(
            run_subjects(subjects, self._options, given, on_outcome=on_outcome, on_rule=on_rule, tick=tick)
        )

    def _record(self, function: type, args: tuple[Any, ...]) -> None:
        if self._samples.are_enough(function) or f"{function.__module__}.".startswith(OURS):
            return
        if not self.is_here or _torch.may_be_traced():
            return
        self._samples.record(function, args)


class watch:  # noqa: N801 -- as `warnings.catch_warnings`
    """Audit the custom functions that a block of code calls, on copies of the inputs that it gives them.

    The block runs unchanged: its results and its random numbers are the same. Up to three calls of each function are
    kept, of different shapes or dtypes, 64 MiB in all. A function whose inputs are larger, or are not plain tensors, is
    audited on generated inputs. Code that `torch.compile` has traced no longer calls the function, so it is not seen;
    nor are processes that the block starts. At the end of the block, also if it raises, the report is printed.

    Args:
        select: rule id prefixes to run, e.g. "PB1" or ["PB101", "PB4"]; all by default.
        ignore: rule id prefixes to leave out.
        seed: seed of all random choices of the audit.
        budget: seconds of processor time for each function.
        deep: also run Inductor and search random inputs (slow).
        show: receives the report, instead of it being printed.

    Attributes:
        report: the report; `None` until the block has ended.

    Raises:
        OptionError: if the value of an option is invalid.
        RunnerError: at the end of the block, if this process cannot be forked then (CUDA is in use, or the platform
            has no fork).

    Example:
        >>> with pullback.watch() as watched:  # doctest: +SKIP
        ...     train_one_step(model, batch)
        >>> watched.report.ok  # doctest: +SKIP
        True
    """

    def __init__(
        self,
        *,
        select: str | Iterable[str] = (),
        ignore: str | Iterable[str] = (),
        seed: int = 0,
        budget: float = 10.0,
        deep: bool = False,
        show: Callable[[Report], object] = print,
    ) -> None:
        self.report: Report | None = None
        self._watch = Watch(make_options(select, ignore, seed, budget, deep))
        self._show = show

    def __enter__(self) -> Self:
        self._watch.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._watch.stop()
        if self._watch.is_here:
            self.report = self._watch.audit()
            self._show(self.report)


def _subjects(function: type) -> list[Subject]:
    try:
        return [discover.subject_of(function)]
    except TargetError as error:
        warnings.warn(f"{function.__qualname__} is not audited: {error}", stacklevel=2)
        return []

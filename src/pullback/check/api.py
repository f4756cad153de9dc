"""`pullback.check`: the audit as a function call."""

from __future__ import annotations

import difflib
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any, Never

from pullback.check.cases.given import constant_inputs_for
from pullback.check.find import discover
from pullback.check.find.folder import expanded
from pullback.check.options import make_options
from pullback.check.runner.fresh import NotPicklableError
from pullback.check.runner.outcome import report_of
from pullback.check.runner.process import ensure_can_fork, fork_is_clean
from pullback.check.runner.subjects import audit_here, preload, run_subjects
from pullback.check.runner.targets import audit_object, run_targets
from pullback.check.subject import Subject
from pullback.errors import OptionError
from pullback.report.report import Report


def check(
    target: Callable[..., Any] | type | ModuleType | str,
    *inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    select: str | Iterable[str] = (),
    ignore: str | Iterable[str] = (),
    seed: int = 0,
    budget: float = 10.0,
    deep: bool = False,
    reference: Callable[..., Any] | None = None,
    **unknown: Never,
) -> Report:
    """Audit custom autograd functions.

    Each is audited in a separate process, so that a crash or an endless loop is a finding. It is forked from this one,
    or from a new interpreter if CUDA or autograd has threads in this one: then the function is sent there. A function
    that cannot be pickled is audited in this process, without that protection, with a warning.

    Args:
        target: an `autograd.Function` class, a `torch.library` custom op, any callable that takes tensors, a
            module (every custom function in it), or a string as on the command line ("ops.py:Square").
        inputs: the positional arguments of one example call; without them, examples are made.
        kwargs: the keyword arguments of that call.
        select: rules to run, by id, prefix of ids or name, e.g. "PB1" or ["PB101", "wrong-jvp"]; all by default.
        ignore: rules to leave out.
        seed: seed of all random choices.
        budget: seconds of processor time for each function; the contract rules run whatever it is.
        deep: also run what takes long, such as Inductor.
        reference: a formula in plain PyTorch with the same arguments: its value and gradients are the right ones.

    Returns:
        The report; `report.ok` says whether all is well, and `print(report)` shows it.

    Raises:
        TargetError: if the target cannot be audited.
        OptionError: if an option is unknown or has a value that it cannot take.
        RunnerError: if the platform has no fork.

    Example:
        >>> report = pullback.check(Square, torch.randn(3, dtype=torch.float64))  # doctest: +SKIP
        >>> report.ok  # doctest: +SKIP
        True
    """
    _refuse(unknown)
    options = replace(make_options(select, ignore, seed, budget, deep), reference=reference)
    given = constant_inputs_for(inputs, kwargs or {})
    if isinstance(target, str):
        return run_targets(expanded([target]), options, lambda: given)
    ensure_can_fork()
    find = partial(_subjects, target)
    if not fork_is_clean():
        example = [(inputs, dict(kwargs or {}))] if inputs or kwargs else None
        try:
            return audit_object(target, find, example, options)
        except NotPicklableError as why:
            warnings.warn(f"{why}; {_HERE}", stacklevel=_CALLER)
            return report_of(audit_here(find(), options, given))
    subjects = find()
    preload(options, subjects)
    return report_of(run_subjects(subjects, options, given))


_HERE = "until then the audit runs in this process, where a crash or an endless loop takes the program down"
_CALLER = 3
"""Frames from the line that calls `pullback.check`, which imports this module at its first use."""


def _subjects(target: Any) -> list[Subject]:
    return discover.subjects_of_module(target) if isinstance(target, ModuleType) else [discover.subject_of(target)]


def _refuse(unknown: Mapping[str, Any]) -> None:
    for name in unknown:
        known = [p.name for p in inspect.signature(check).parameters.values() if p.kind is p.KEYWORD_ONLY]
        close = difflib.get_close_matches(name, known, n=1)
        advice = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
        raise OptionError(f"check() has no option {name!r}; {advice}")

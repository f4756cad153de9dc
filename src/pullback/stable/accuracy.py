"""`pullback.accuracy`: errors of a function's values and derivatives against their exact values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pullback.errors import OptionError
from pullback.stable.formats import DTYPES, format_of
from pullback.stable.formula import Formula, Quantity
from pullback.stable.intervals import references
from pullback.stable.measure import Summary, measure, measure_sample
from pullback.stable.result import Accuracy, Coverage, Row
from pullback.stable.sampling import Domain, checked_domain, every_number
from pullback.stable.sweep import SweepTask, chunks_of, sweep
from pullback.stable.term import Term

Progress = Callable[[int, int], None]
"""Takes how many steps are done and how many there are."""


def accuracy(
    function: Callable[..., Any],
    *,
    dtype: torch.dtype | Iterable[torch.dtype] | None = None,
    order: int = 1,
    args: Mapping[str, Any] | None = None,
    domain: Domain | None = None,
    exhaustive: bool = False,
    executor: Executor | None = None,
    resume: Path | str | None = None,
    seed: int = 0,
    on_progress: Progress | None = None,
) -> Accuracy:
    """Measure a pointwise function and its derivatives against their exact values, in ulp.

    What runs is the function itself, and autograd on it. Functions of one variable are measured at every finite
    number of bfloat16 and float16; in wider formats, and of several variables, on a sample.

    Args:
        function: a callable of one to three tensors, an op, or an `autograd.Function` class.
        dtype: dtype of the tensors, one or several; by default float64, float32, bfloat16 and float16.
        order: up to which derivatives are measured: 0, 1 or 2.
        args: values for parameters that are not to vary; others that have a default keep it.
        domain: for a variable the closed interval that it is taken from.
        exhaustive: measure functions of one variable at every float32 number too: minutes of all processors.
        executor: runs the parts of an exhaustive measurement; by default they run here, one after the other.
        resume: file in which an exhaustive measurement keeps its progress, for an interruption; by default in
            the user's cache directory, until it is complete.
        seed: seed of the sample.
        on_progress: called with how many steps are done and how many there are.

    Raises:
        FormulaError: if the function is not a pointwise formula of known ops.
        OptionError: if it does not take one to three tensors, or an option has a value that it cannot take.
        DerivativeError: if an op has no derivative to compare with.
    """
    return accuracy_of(
        functools.partial(_identity, function),
        dtype=dtype,
        order=order,
        args=args,
        domain=domain,
        exhaustive=exhaustive,
        executor=executor,
        resume=resume,
        seed=seed,
        on_progress=on_progress,
    )


def accuracy_of(
    load: Callable[[], Callable[..., Any]],
    *,
    dtype: torch.dtype | Iterable[torch.dtype] | None = None,
    order: int = 1,
    args: Mapping[str, Any] | None = None,
    domain: Domain | None = None,
    exhaustive: bool = False,
    executor: Executor | None = None,
    resume: Path | str | None = None,
    seed: int = 0,
    on_progress: Progress | None = None,
) -> Accuracy:
    """Measure the function that `load` returns, here and in the processes of the executor; else as `accuracy`."""
    formula, dtypes = Formula(load(), args), _dtypes(dtype)
    limits = checked_domain(formula.name, formula.variables, domain)
    if order not in (0, 1, 2):
        raise OptionError(f"order is 0, 1 or 2, not {order!r}")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise OptionError(f"seed must be an integer from 0 on, not {seed!r}")
    if exhaustive and len(formula.variables) > 1:
        raise OptionError(f"{formula.name} takes {len(formula.variables)} tensors: exhaustive is for functions of one")
    job = _Measurement(formula, load, dict(args or {}), limits, seed)
    chunks = chunks_of(job.interval) if exhaustive and torch.float32 in dtypes else []
    steps = _ProgressCounter(on_progress, len(dtypes) + len(chunks))
    rows: list[Row] = []
    missing: dict[str, str] = {}
    for chosen in dtypes:
        steps.report(0)
        terms = formula.terms(chosen, order)
        if (why := _cannot_run(formula, chosen, order)) is not None:
            missing[format_of(chosen).name] = why
        elif exhaustive and chosen == torch.float32:
            rows += job.swept(terms, executor, None if resume is None else Path(resume), steps.report)
            steps.done += len(chunks)
        else:
            rows += job.sampled(terms, chosen)
        steps.done += 1
    steps.report(0)
    return Accuracy(formula.name, formula.variables, limits, tuple(rows), missing, torch.__version__)


def _identity(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


class _ProgressCounter:
    """Progress over several measurements: each counts from 0; `done` is the number of steps before it."""

    def __init__(self, on_progress: Progress | None, total: int) -> None:
        self.done, self._total, self._on_progress = 0, total, on_progress

    def report(self, more: int, of: int = 0) -> None:
        if self._on_progress is not None:
            self._on_progress(self.done + more, self._total)


@dataclass(frozen=True, slots=True)
class _Measurement:
    """Inputs of a measurement that do not depend on the dtype."""

    formula: Formula
    load: Callable[[], Callable[..., Any]]
    args: dict[str, Any]
    domain: dict[str, tuple[float, float]]
    seed: int

    def sampled(self, terms: dict[Quantity, Term], dtype: torch.dtype) -> list[Row]:
        """Measure at every input of a 16-bit dtype if there is one variable, else on a sample."""
        if len(self.formula.variables) > 1 or dtype.itemsize > 2:
            found = measure_sample(self.formula, terms, dtype, self.seed, self.domain)
            return _rows(dtype, terms, "sample", found)
        low, high = self.interval
        x = every_number(dtype)
        found = measure(self.formula, terms, dtype, {self.formula.variables[0]: x[(x >= low) & (x <= high)]})
        return _rows(dtype, terms, "every input", found)

    def swept(
        self, terms: dict[Quantity, Term], executor: Executor | None, resume: Path | None, on_progress: Progress
    ) -> list[Row]:
        """Measure at every float32 number."""
        task = SweepTask(self.load, self.args, terms, references(self.load(), self.args, terms), self.interval)
        part = sweep(task, executor=executor, resume=resume, on_progress=on_progress)
        return _rows(torch.float32, terms, "every input", part.summaries, str(part.basis))

    @property
    def interval(self) -> tuple[float, float]:
        """The domain of the first variable."""
        return self.domain.get(self.formula.variables[0], (-torch.inf, torch.inf))


def _rows(
    dtype: torch.dtype,
    terms: Mapping[Quantity, Term],
    coverage: Coverage,
    found: Sequence[Summary],
    exact_by: str = "ball arithmetic",
) -> list[Row]:
    outputs = 1 + max(quantity.output for quantity in terms)
    labels = [quantity.label(outputs) for quantity in terms]
    return [Row(format_of(dtype).name, of, coverage, s, exact_by) for of, s in zip(labels, found, strict=True)]


def _cannot_run(formula: Formula, dtype: torch.dtype, order: int) -> str | None:
    """Reason why a function does not run in a dtype, if it does not: some of PyTorch's kernels support only a few."""
    try:
        formula.run([torch.ones(2, dtype=dtype) for _ in formula.variables], order)
    except RuntimeError as error:
        if "not implemented for" not in str(error):
            raise
        return next(iter(str(error).splitlines()))
    return None


def _dtypes(given: torch.dtype | Iterable[torch.dtype] | None) -> Sequence[torch.dtype]:
    dtypes = DTYPES if given is None else (given,) if isinstance(given, torch.dtype) else tuple(dict.fromkeys(given))
    for dtype in dtypes:
        format_of(dtype)
    if not dtypes:
        raise OptionError("give at least one dtype")
    return dtypes

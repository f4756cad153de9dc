"""`pullback.accuracy`: how far what a function computes, and its derivatives, are from the exact values."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from pullback.errors import OptionError
from pullback.numerics.formats import DTYPES, format_of
from pullback.numerics.formula import Formula
from pullback.numerics.measure import measure, measure_sample
from pullback.numerics.sampling import Domain, every
from pullback.numerics.summary import Summary

Coverage = Literal["every input", "sample"]


@dataclass(frozen=True, slots=True)
class Row:
    """The errors of one quantity in one dtype.

    Attributes:
        dtype: as in "float32".
        of: "value", or the derivative: "d/dx".
        coverage: whether they are of every finite input of the dtype, or of a sample.
        summary: the errors.
        exact_by: how the exact values were had.
    """

    dtype: str
    of: str
    coverage: Coverage
    summary: Summary
    exact_by: str = "the oracle"


@dataclass(frozen=True, slots=True)
class Accuracy:
    """What was measured of a function.

    Attributes:
        name: of the function.
        variables: the tensors that it takes.
        domain: where they were taken from; all finite numbers of the dtype for a variable that is not in it.
        rows: dtype by dtype, the value and then the derivatives.
        missing: dtypes in which it does not run, and why.
        torch: the version of PyTorch that ran it.
    """

    name: str
    variables: tuple[str, ...]
    domain: dict[str, tuple[float, float]]
    rows: tuple[Row, ...]
    missing: dict[str, str]
    torch: str

    def row(self, dtype: str, of: str = "value") -> Row:
        """Return the row of a dtype and quantity.

        Raises:
            OptionError: if there is none.
        """
        for row in self.rows:
            if (row.dtype, row.of) == (dtype, of):
                return row
        raise OptionError(f"{of!r} in {dtype} was not measured: {', '.join(f'{r.of} in {r.dtype}' for r in self.rows)}")

    def to_dict(self) -> dict[str, Any]:
        """Return what `json` can write: infinities and NaN as text."""
        written: dict[str, Any] = _finite(asdict(self))
        return written

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def __repr__(self) -> str:
        from pullback.report.accuracy import render_text

        return render_text(self)


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
    on_progress: Callable[[int, int], None] | None = None,
) -> Accuracy:
    """Measure a pointwise function and its derivatives against their exact values, in ulp.

    What runs is the function itself, and autograd on it. Functions of one variable are measured at every finite
    number of bfloat16 and float16; in wider formats, and of several variables, on a sample.

    Args:
        function: a callable of one to three tensors, an op, or an `autograd.Function` class.
        dtype: of the tensors, one or several; by default float64, float32, bfloat16 and float16.
        order: up to which derivatives are measured: 0, 1 or 2.
        args: values for parameters that are not to vary; others that have a default keep it.
        domain: for a variable the closed interval that it is taken from.
        exhaustive: measure functions of one variable at every float32 number too: minutes of all processors.
        executor: runs the parts of an exhaustive measurement; by default they run here, one after the other.
        resume: where an exhaustive measurement keeps what is done, to go on after an interruption; by default in
            the user's cache directory, until it is complete.
        seed: of the sample.
        on_progress: called with how many steps are done and how many there are.

    Raises:
        FormulaError: if the function is not a pointwise formula of known ops.
        OptionError: if it does not take one to three tensors, or an option has a value that it cannot take.
        DerivativeError: if an op has no derivative to compare with.
    """
    formula = Formula(function, args)
    dtypes = _dtypes(dtype)
    limits = _limits(formula, domain)
    if order not in (0, 1, 2):
        raise OptionError(f"order is 0, 1 or 2, not {order!r}")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise OptionError(f"seed must be an integer from 0 on, not {seed!r}")
    rows: list[Row] = []
    missing: dict[str, str] = {}
    for done, chosen in enumerate(dtypes):
        if on_progress is not None:
            on_progress(done, len(dtypes))
        if (why := _cannot_run(formula, chosen, order)) is not None:
            missing[format_of(chosen).name] = why
            continue
        rows += _rows(formula, chosen, order, limits, seed)
    return Accuracy(formula.name, formula.variables, limits, tuple(rows), missing, torch.__version__)


def _rows(
    formula: Formula, dtype: torch.dtype, order: int, domain: dict[str, tuple[float, float]], seed: int
) -> list[Row]:
    terms = formula.terms(dtype, order)
    outputs = 1 + max(quantity.output for quantity in terms)
    coverage: Coverage = "sample"
    if len(formula.variables) == 1 and dtype.itemsize == 2:
        (name,) = formula.variables
        x = every(dtype)
        low, high = domain.get(name, (-torch.inf, torch.inf))
        found = measure(formula, terms, dtype, {name: x[(x >= low) & (x <= high)]})
        coverage = "every input"
    else:
        found = measure_sample(formula, terms, dtype, seed, domain)
    labels = [quantity.label(outputs) for quantity in terms]
    return [Row(format_of(dtype).name, of, coverage, s) for of, s in zip(labels, found, strict=True)]


def _cannot_run(formula: Formula, dtype: torch.dtype, order: int) -> str | None:
    """Return why a function does not run in a dtype: some of PyTorch's kernels exist in few."""
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


def _limits(formula: Formula, domain: Domain | None) -> dict[str, tuple[float, float]]:
    limits = {}
    for name, (low, high) in (domain or {}).items():
        if name not in formula.variables:
            known = ", ".join(formula.variables)
            raise OptionError(f"{formula.name} has no variable {name!r} for the domain; it has {known}")
        if not low <= high:
            raise OptionError(f"the domain of {name} is empty: {low} to {high}")
        limits[name] = (float(low), float(high))
    return limits


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value if not isinstance(value, float) or abs(value) < float("inf") else str(value)

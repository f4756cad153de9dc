"""Rows of the composition table: ways to differentiate an op, and the expected verdict of each.

A context is a function that takes an op and returns its derivative at `X`. It is declared where its family is tested.
`docs/generate_composition.py` measures every row for every column; the tests measure the columns of Pullback.
"""

from __future__ import annotations

import os
import re
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.compose._ops import COLUMNS, OURS, Plain, X, derivative, value

FAMILIES = {
    "eager": "Eager",
    "transforms": "torch.func",
    "compile": "torch.compile",
    "compiled_transforms": "torch.compile of torch.func",
    "export": "torch.export and packages",
    "tracers": "Tracers",
    "memory": "Memory",
    "modes": "Modes and kinds of tensor",
    "objects": "Objects",
    "distributed": "Two processes",
}
"""Each has a file `test_NAME.py` that declares its rows."""

REMEDY = r"(?s)the derivative given for \w+ would be lost.*To keep it, "
"""Pattern of a refusal: it names the op and the remedy."""

OF_TORCH = (
    "<class 'torch.autograd.function.Function'> should not be instantiated",  # Dynamo does, for any Function
    "`torch.jit.script_method` is deprecated",  # Inductor's first use
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",  # run_decompositions
    "A model attribute `lifted_tensor_0` requires gradient",  # export of func.grad, of PyTorch's ops as well
    "Attempted to insert a get_attr Node with no underlying reference",  # linearize, of PyTorch's ops as well
)
"""Warnings of PyTorch's own code about itself, as regular expressions."""

HAS_COMPILER = shutil.which(os.environ.get("CXX", "g++")) is not None
"""Whether Inductor can compile C++."""


@dataclass(frozen=True)
class Context:
    """One row.

    Attributes:
        family: one of `FAMILIES`.
        name: of the row in the table.
        run: takes an op, returns its derivative at `X`, or its value and its derivative.
        order: of that derivative; 0 for a context with a value only.
        refused: for each column of Pullback that raises here, the name of the error ("A or B" where releases of PyTorch
            raise different ones).
        says: pattern of the message; by default the op's name and the remedy.
        tested: columns of Pullback that the tests measure (only some in a slow context).
        ignore: regular expressions of warnings that this context always gives.
        needs_compiler: whether Inductor compiles C++ here.
    """

    family: str
    name: str
    run: Callable[[Any], Any]
    order: int = 1
    refused: dict[str, str] = field(default_factory=dict)
    says: str = REMEDY
    tested: tuple[str, ...] = tuple(OURS)
    ignore: tuple[str, ...] = ()
    needs_compiler: bool = False

    def expected(self, column: str) -> str:
        return "refused" if column in self.refused else "kept"


@dataclass(frozen=True)
class Outcome:
    """One cell: its verdict, the name of the error if there was one, and its message or the value found."""

    verdict: str
    error: str = ""
    message: str = ""


CONTEXTS: dict[tuple[str, str], Context] = {}
"""Every row, by family and name, once the family's module has been imported."""


def context(family: str, name: str, **options: Any) -> Callable[[Any], Any]:
    """Declare a row."""
    assert family in FAMILIES

    def declare(run: Callable[[Any], Any]) -> Callable[[Any], Any]:
        CONTEXTS[family, name] = Context(family, name, run, **options)
        return run

    return declare


def measure(row: Context, column: str, op: Any = None) -> Outcome:
    """Differentiate one op in one context: kept, refused, silently wrong, or another error.

    The op is that of the column by default.
    """
    try:
        with warnings.catch_warnings():
            for message in (*OF_TORCH, *row.ignore):
                warnings.filterwarnings("ignore", message)
            found = row.run(op or COLUMNS[column])
    except Exception as error:
        verdict = "refused" if re.search(row.says, str(error)) else "error"
        return Outcome(verdict, type(error).__name__, str(error))
    values, derivatives = found if isinstance(found, tuple) else (value(column), found)
    kept = _equal(values, value(column)) and (not row.order or _equal(derivatives, derivative(row.order)))
    return Outcome("kept" if kept else "SILENTLY WRONG", message=str(found))


def _equal(found: Tensor | None, want: Tensor) -> bool:
    return found is not None and found.shape == want.shape and torch.equal(found.detach().to(want.dtype), want)


def cells(family: str) -> Any:
    """Parametrize a test over the rows of a family and the columns of Pullback."""
    chosen = [
        pytest.param(
            row,
            column,
            id=f"{row.name}-{column}".replace(" ", "_"),
            marks=[pytest.mark.slow] if row.needs_compiler else [],
        )
        for (of, _), row in CONTEXTS.items()
        if of == family
        for column in row.tested
    ]
    return pytest.mark.parametrize(("row", "column"), chosen)


def judge(row: Context, column: str, outcome: Outcome | None = None) -> None:
    """Assert the verdict that the row expects; skip a cell where PyTorch raises the same error for PyTorch's ops."""
    if row.needs_compiler and not HAS_COMPILER:
        pytest.skip("no C++ compiler")
    outcome = outcome or measure(row, column)
    if outcome.verdict == "error" and measure(row, "formula of x³", Plain()).error == outcome.error:
        pytest.skip(f"PyTorch itself: {outcome.error}: {' '.join(outcome.message.split())[:120]}")
    assert outcome.verdict == row.expected(column), outcome
    assert outcome.error in row.refused.get(column, "").split(" or "), outcome


def leaf(dtype: torch.dtype = torch.float64) -> Tensor:
    """Return a point that requires grad."""
    return X.to(dtype, copy=True).requires_grad_()


def gradient(function: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Return the value of an elementwise function and its derivative, by reverse mode."""
    x = leaf()
    y = function(x)
    return y, torch.autograd.grad(y.sum(), x)[0]

"""Bounds in float64, against the oracle."""

import numpy as np
import pytest
import torch

from pullback import FormulaError
from pullback.ops.registry import CONDITIONS, OPS
from pullback.stable.enclose import enclose
from pullback.stable.oracle import exact
from pullback.stable.sampling import points
from pullback.stable.term import Term, parse, var

SAMPLE = {name: x[::41] for name, x in points(["x", "y"], torch.float32).items()}
TENSORS = {name: torch.from_numpy(x) for name, x in SAMPLE.items()}
TWO = {"add", "sub", "mul", "div", "hypot", "pow", "atan2", "maximum", "minimum", "gt", "ge", "lt", "le", "eq", "ne"}
LOGICAL = {"logical_and", "logical_or", "logical_not"}
OPERANDS = {"exact": (var("x"), var("y")), "wide": (parse("x*1.3"), parse("y - 0.7"))}


def of_op(op, a, b):
    """Return a number with an op in it."""
    if op == "where":
        return Term(op, (parse("x > y"), a, b))
    if op in LOGICAL:
        conditions = (Term("gt", (a, b)), Term("lt", (b, parse("2"))))
        return Term("where", (Term(op, conditions[: 1 if op == "logical_not" else 2]), parse("x"), parse("y + 1")))
    term = Term(op, (a, b) if op in TWO else (a,))
    return Term("where", (term, parse("x"), parse("y + 1"))) if op in CONDITIONS else term


def holds(term):
    """Assert that intervals hold what the oracle says; return which points are bounded to 2⁻³²."""
    (interval,), (truth,) = enclose([term], TENSORS), exact([term], SAMPLE)
    low, high = interval.low.numpy(), interval.high.numpy()
    undefined = np.zeros(len(low), bool) if interval.undefined is None else interval.undefined.numpy()
    known = ~np.isnan(truth.high)
    assert (low <= high).all()
    assert ((low <= truth.high) & (truth.high <= high))[known].all()
    assert not undefined[known | truth.undecided].any()
    with np.errstate(over="ignore", invalid="ignore"):
        return (high - low <= np.abs(truth.high) * 2.0**-32)[known]


@pytest.mark.parametrize("operands", OPERANDS)
@pytest.mark.parametrize("op", OPS)
def test_the_bounds_of_an_op_hold_its_values(op, operands):
    settled = holds(of_op(op, *OPERANDS[operands]))
    assert settled.mean() > 0.35 or op == "trigamma"


@pytest.mark.parametrize(
    "text",
    ["1/(1 + exp(-x))", "x*sigmoid(x)*sigmoid(-x)", "where(x > 0, log(x), y/x)", "pow(x, 3)", "pow(x, -2)", "1/3"],
)
def test_the_bounds_of_a_formula_hold_its_values(text):
    assert holds(parse(text)).mean() > 0.7


def test_what_cancels_is_not_bounded():
    (interval,) = enclose([parse("exp(x) - 1 - x")], {"x": torch.tensor([1e-12, 1.0], dtype=torch.float64)})
    small, large = (interval.high - interval.low).tolist()
    assert small > 1e-24
    assert large < 1e-13


def test_conditions_have_no_bounds():
    with pytest.raises(FormulaError, match="condition"):
        enclose([parse("x > 0")], TENSORS)

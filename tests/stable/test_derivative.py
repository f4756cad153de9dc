"""Derivatives of terms against mpmath's differences, and at kinks against PyTorch's autograd."""

import itertools

import numpy as np
import pytest
import torch
from mpmath import mp

from pullback.errors import DerivativeError
from pullback.ops.registry import OPS
from pullback.stable.derivative import add, derivative, exact_derivative, multiply
from pullback.stable.oracle.values import exact
from pullback.stable.term import Term, const, parse, var
from tests.stable import reference

INSIDE = (-2.3, -0.7, 0.4, 0.85, 1.6, 3.2)
KINKED = {"relu": [0.0, -1.0, 2.0], "abs": [0.0, -1.0, 2.0], "sgn": [-1.0, 2.0], "floor": [0.5], "ceil": [0.5]}


def operation(op):
    return Term(op, tuple(map(var, "abc"[: len(OPS[op].partials)])))


def values(term, **points):
    (found,) = exact([term], {name: np.array(p) for name, p in points.items()})
    return found


@pytest.mark.parametrize("op", sorted(op for op in OPS if OPS[op].partials))
def test_partials_match_mpmath(op):
    root = operation(op)
    names = "abc"[: len(root.args)]
    with mp.workdps(60):
        for name, point in itertools.product(names, itertools.product(INSIDE, repeat=len(names))):
            at = dict(zip(names, point, strict=True))
            if reference.value(root, **at) is None or len(set(point)) < len(point):
                continue
            expected = mp.diff(lambda t, at=at, name=name: reference.value(root, **{**at, name: t}), at[name])
            if isinstance(expected, mp.mpc):
                continue  # a negative base with a varying exponent
            found = values(derivative(root, name), **{n: [x] for n, x in at.items()})
            assert abs(found.high.item() - expected) <= 1e-15 * abs(expected) + 1e-40, (name, at)


@pytest.mark.parametrize("op", sorted(KINKED))
def test_derivatives_at_kinks_match_autograd(op):
    x = torch.tensor(KINKED[op], dtype=torch.float64, requires_grad=True)
    (native,) = torch.autograd.grad(OPS[op].value(x).sum(), x)
    assert values(derivative(operation(op), "a"), a=KINKED[op]).high.tolist() == (native + 0).tolist()


@pytest.mark.parametrize("op", ["maximum", "minimum"])
@pytest.mark.parametrize("name", "ab")
def test_derivatives_at_ties_match_autograd(op, name):
    points = {"a": [1.0, 1.0, -2.0], "b": [1.0, -3.0, 5.0]}
    leaves = {n: torch.tensor(p, dtype=torch.float64, requires_grad=True) for n, p in points.items()}
    (native,) = torch.autograd.grad(OPS[op].value(*leaves.values()).sum(), leaves[name])
    assert values(derivative(operation(op), name), **points).high.tolist() == native.tolist()


@pytest.mark.parametrize(
    "text", ["where(x > 0, x*x, -x)", "abs(x)*relu(x - 1)", "maximum(x, x*x)", "minimum(sin(x), x)/2", "x/(1 + abs(x))"]
)
def test_derivatives_at_composed_kinks_match_autograd(text):
    points = [-2.0, 0.0, 1.0, 2.5]
    x = torch.tensor(points, dtype=torch.float64, requires_grad=True)
    names = {op: row.value for op, row in OPS.items()}
    (native,) = torch.autograd.grad(eval(text, names, {"x": x}).sum(), x)
    assert np.allclose(values(derivative(parse(text), "x"), x=points).high, native, rtol=1e-15)


def test_op_without_derivative_raises():
    with pytest.raises(DerivativeError, match="trigamma"):
        derivative(parse("x*trigamma(x)"), "x")


def test_derivative_by_an_absent_variable_is_0():
    assert derivative(parse("trigamma(y)*PI"), "x") is const(0)
    assert derivative(parse("where(x > 0, y, y)"), "x") is const(0)


def test_add_and_multiply_simplify():
    x, zero, one = var("x"), const(0), const(1)
    assert add(zero, x) is add(x, zero) is x
    assert multiply(x, one) is multiply(one, x) is x
    assert multiply(x, zero) is zero
    assert multiply(const(-1), x) is parse("-x")
    assert multiply(x, parse("1/y")) is parse("x/y")
    assert add(x, parse("-y")) is parse("x - y")


FILLED = {
    "where(x == 0, 1, sin(x)/x)": (0.0, lambda x: mp.sinc(x)),
    "where(0 == x, 1, expm1(x)/x)": (0.0, lambda x: mp.hyp1f1(1, 2, x)),
    "where(x == 1, 1, log(x)/(x - 1))": (1.0, lambda x: mp.hyp2f1(1, 1, 2, 1 - x)),
    "3*where(x == 0, 1, sin(x)/x) + exp(x)": (0.0, lambda x: 3 * mp.sinc(x) + mp.exp(x)),
}


def at(term, x):
    (found,) = exact([term], {"x": np.array([x])})
    return found.high.item()


@pytest.mark.parametrize("formula", FILLED)
def test_derivatives_at_a_filled_singularity_are_those_of_the_function(formula):
    place, function = FILLED[formula]
    first = exact_derivative(parse(formula), "x")
    second = exact_derivative(first, "x")
    with mp.workdps(60):
        series = mp.taylor(function, place, 2)
    assert at(first, place) == pytest.approx(float(series[1]), rel=1e-15, abs=1e-30)
    assert at(second, place) == pytest.approx(float(2 * series[2]), rel=1e-15)


@pytest.mark.parametrize(
    "formula",
    [
        "where(x == 0, 1, x)",  # a jump: not differentiable, and the constant's derivative is 0
        "where(x == 0, 0, log(x))",
        "where(x == 0, 0, 1/x)",
        "where(x > 0, 1, exp(x))",  # not a single point
        "where(x == 0, y, x)",
        "where(y == 0, 1, x*y)",  # for a derivative by x, a condition on y selects a formula
    ],
)
def test_other_where_terms_are_differentiated_as_written(formula):
    assert exact_derivative(parse(formula), "x") == derivative(parse(formula), "x")

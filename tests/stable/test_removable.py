"""Derivatives where a number fills a hole, against mpmath's Taylor series and the series of the functions."""

import numpy as np
import pytest
from mpmath import mp

from pullback.stable.derive import derivative
from pullback.stable.oracle import exact
from pullback.stable.removable import exact_derivative
from pullback.stable.term import parse

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
def test_derivatives_where_a_hole_is_filled_are_those_of_the_function(formula):
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
        "where(x == 0, 1, x)",  # it jumps there: no derivative, and the number's is 0
        "where(x == 0, 0, log(x))",
        "where(x == 0, 0, 1/x)",
        "where(x > 0, 1, exp(x))",  # not one place
        "where(x == 0, y, x)",
        "where(y == 0, 1, x*y)",  # by x a condition on y is a choice of formula
    ],
)
def test_other_choices_are_differentiated_as_written(formula):
    assert exact_derivative(parse(formula), "x") == derivative(parse(formula), "x")

"""Choices that a domain settles."""

import numpy as np
import pytest

from pullback.stable.choices import settled
from pullback.stable.term import parse

RIGHT = {"x": np.array([0.5, 1.0, 7.0, 1e30])}
LEFT = {"x": -RIGHT["x"]}
BOTH = {"x": np.array([-2.0, 0.0, 3.0])}


@pytest.mark.parametrize(
    ("text", "right", "left"),
    [
        ("abs(x + 0.25)", "x + 0.25", "-(x + 0.25)"),
        ("sgn(2*x)", "1", "-1"),
        ("relu(x)", "x", "0"),
        ("maximum(x, 0)", "x", "0"),
        ("minimum(x, 0)", "0", "x"),
        ("where(x > 0, log(x), exp(x))", "log(x)", "exp(x)"),
        ("abs(where(x < 0, x, sqrt(x)))", "sqrt(x)", "-x"),
        ("exp(x)", "exp(x)", "exp(x)"),
    ],
)
def test_a_choice_that_falls_one_way_goes(text, right, left):
    assert settled(parse(text), RIGHT) is parse(right)
    assert settled(parse(text), LEFT) is parse(left)


@pytest.mark.parametrize("text", ["abs(x)", "sgn(x)", "relu(x)", "maximum(x, 0)", "where(x > 0, x, 1)", "abs(log(x))"])
def test_a_choice_that_falls_both_ways_stays(text):
    assert settled(parse(text), BOTH) is parse(text)


def test_the_sign_of_zero_is_neither():
    assert settled(parse("sgn(x)"), {"x": np.array([0.0, 1.0])}) is parse("sgn(x)")

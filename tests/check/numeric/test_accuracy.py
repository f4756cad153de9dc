"""Curves of gradients and ulp errors of an elementwise function: their values and their size."""

import importlib.util
import math

import pytest
import torch

from pullback.check.numeric.accuracy import slopes, ulp_errors

from ..making import audit_of, function, normal


def slopes_of(target, *inputs):
    return list(slopes(audit_of(target, *(inputs or (normal(3),))).numbers.elementwise))


def agreeing(slope):
    """Return for each point whether the gradient lies within the numeric derivatives."""
    slack = 1e-6
    known = zip(slope.got, slope.low, slope.high, strict=True)
    return [low - slack <= got <= high + slack for got, low, high in known]


def test_autograd_agrees_with_the_numeric_derivative():
    first, second = slopes_of(lambda x, y: x.sin() * y.exp(), normal(3), normal(3, seed=1))
    assert (first.by, second.by) == ("x", "y")
    assert (first.at[0], first.at[-1]) == (-4, 4)
    assert all(agreeing(first))
    assert all(agreeing(second))


def test_wrong_gradient_leaves_the_band():
    (slope,) = slopes_of(function(torch.sin, lambda g, x: g * x.sin()))
    assert sum(agreeing(slope)) < 6


def test_band_is_wide_at_a_kink():
    (slope,) = slopes_of(lambda x: x.clamp(min=0) + 0 * x)
    at_zero = slope.at.index(0)
    assert slope.low[at_zero] <= 0
    assert slope.high[at_zero] >= 1
    assert slope.high[at_zero + 1] - slope.low[at_zero + 1] < 1e-6


def test_function_of_positive_numbers_is_sampled_there():
    def only_positive(x):
        if bool((x < 0).any()):
            raise ValueError("x is negative")
        return x * x

    (slope,) = slopes_of(only_positive, normal(3).abs() + 1)
    assert (slope.at[0], slope.at[-1]) == (1 / 16, 4)
    assert all(agreeing(slope))


def test_jump_has_no_derivative():
    (slope,) = slopes_of(lambda x: torch.where(x > 0, x + 1, x))
    unknown = [at for at, low in zip(slope.at, slope.low, strict=True) if low is None]
    assert unknown == [0]


def test_nonfinite_values_are_none():
    (slope,) = slopes_of(lambda x: x.log(), normal(3).abs())
    assert slope.low[0] is None
    assert slope.low[-1] is not None
    assert all(x is None or math.isfinite(x) for x in (*slope.got, *slope.low, *slope.high))


@pytest.fixture(scope="module")
def naive():
    audit = audit_of(lambda x: torch.log(torch.sigmoid(x)), normal(3))
    return list(ulp_errors(torch.float32, audit.numbers.sweep(torch.float32)))


def test_ulp_errors_over_the_range(naive):
    value, gradient = naive
    assert (value.of, gradient.of, value.dtype) == ("value", "gradient of x", "float32")
    assert value.exact == (importlib.util.find_spec("flint") is not None)
    near_one = [ulp for at, ulp in zip(value.at, value.ulp, strict=True) if 0.25 < abs(at) < 2]
    assert near_one
    assert max(near_one) < 4
    beyond = [ulp for at, ulp in zip(value.at, value.ulp, strict=True) if 20 < at < 80]
    assert beyond
    assert all(ulp is None for ulp in beyond)  # the value is 0, which is wrong


def test_ulp_errors_are_few_and_sorted(naive):
    for found in naive:
        assert len(found.at) < 60
        assert list(found.at) == sorted(found.at)


@pytest.mark.filterwarnings("ignore:invalid value")  # as in an audit
def test_function_of_two_inputs_has_no_ulp_errors():
    audit = audit_of(lambda x, y: x * y.exp(), normal(3), normal(3, seed=1))
    assert list(ulp_errors(torch.float32, audit.numbers.sweep(torch.float32))) == []

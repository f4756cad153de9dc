"""Fitted polynomials, against the oracle."""

import numpy as np
import pytest
import torch

from pullback.stable.evaluate import evaluate
from pullback.stable.oracle.values import exact, root_between
from pullback.stable.search.polynomials import fits
from pullback.stable.term import parse

TOLERANCE = {torch.float32: 2.0**-26, torch.float64: 2.0**-32}


def relative(term, target, x):
    """Return the relative errors of a polynomial, evaluated in float64."""
    wanted = exact([parse(target)], {"x": x})[0].high
    return np.abs(evaluate(term, {"x": torch.from_numpy(x)}).numpy() / wanted - 1)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    ("target", "power", "even"),
    [
        ("x - sin(x)", 3, True),
        ("1 - cos(x)", 2, True),
        ("exp(x) - 1 - x", 2, False),
        ("cos(x)", 0, True),
        ("(exp(x) - 1)/x", 0, False),
        ("exp(x) - 1 - x - x*x/2", 3, False),
    ],
)
def test_fit_at_0_is_accurate(target, power, even, dtype):
    found = list(fits(parse(target), "x", (0.0, 0.0), [0.1, 0.5], dtype))
    assert len(found) == 2
    for term, radius in zip(found, (0.1, 0.5), strict=True):
        assert (term.value.power, term.value.even) == (power, even)
        x = np.random.default_rng(0).uniform(-radius, radius, 200)
        assert relative(term, target, x).max() < 2 * TOLERANCE[dtype]


def test_fit_is_shorter_for_a_smaller_radius():
    near, far = fits(parse("x - sin(x)"), "x", (0.0, 0.0), [0.01, 1.0], torch.float64)
    assert len(near.value.coefficients) < len(far.value.coefficients)


@pytest.mark.parametrize(
    ("target", "between"), [("x*x - 2", (1.0, 2.0)), ("cos(x)", (1.0, 2.0)), ("log(x)", (0.5, 1.7))]
)
def test_fit_at_a_root_is_accurate_in_float32(target, between):
    centre = root_between(parse(target), "x", *between)
    (term,) = fits(parse(target), "x", centre, [0.1], torch.float32)
    assert term.value.power == 1
    steps = np.arange(-50, 51) * 2.0**-23
    x = (np.concatenate([centre[0] + steps, np.linspace(-0.09, 0.09, 99) + centre[0]])).astype(np.float32)
    wanted = exact([parse(target)], {"x": x.astype(float)})[0].high
    got = evaluate(term, {"x": torch.from_numpy(x)}).double().numpy()
    some = wanted != 0
    assert (np.abs(got[some] / wanted[some] - 1) < 3 * 2.0**-23).all()


@pytest.mark.parametrize("target", ["abs(x)", "sqrt(x)", "where(x > 0, x, 2*x)", "floor(x) + 1", "0*x"])
def test_function_without_power_series_has_no_fit(target):
    assert list(fits(parse(target), "x", (0.0, 0.0), [0.25], torch.float32)) == []


def test_function_of_too_high_degree_has_no_fit():
    assert list(fits(parse("sin(100*x)/x"), "x", (0.0, 0.0), [3.0], torch.float64)) == []

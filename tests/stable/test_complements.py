"""Differences that vanish: the identities, and values that balls alone do not give."""

import numpy as np
import pytest
from mpmath import mp

from pullback.stable.complements import IDENTITIES, resolved
from pullback.stable.oracle import exact
from pullback.stable.term import parse
from tests.stable import reference


@pytest.mark.parametrize("difference", IDENTITIES, ids=str)
def test_identity_holds(difference):
    with mp.workdps(200):
        for a in (-40.0, -1.5, -1e-9, 0.0, 0.3, 2.0, 40.0):
            before, after = (reference.value(t, a=a) for t in (difference, IDENTITIES[difference]))
            if before is None:  # outside of the domain
                assert after is None
                continue
            assert abs(before - after) <= abs(before) * mp.mpf(10) ** -100 + mp.mpf(10) ** -190


@pytest.mark.parametrize("x", [-3e38, -6000.0, 0.5, 6000.0, 3e38])
@pytest.mark.parametrize(
    ("difference", "stable"),
    [
        ("log(1 - sigmoid(x))", "-softplus(x)"),
        ("log(1 - 1/(1 + exp(-x)))", "-softplus(x)"),
        ("log1p(-(exp(x)/(1 + exp(x))))", "-softplus(x)"),
        ("log(1 - tanh(x))", "LN2 - softplus(2*x)"),
        ("log(1 - tanh(x)*tanh(x))", "2*LN2 - softplus(2*x) - softplus(-2*x)"),
    ],
)
def test_vanishing_difference_has_its_logarithm(difference, stable, x):
    ours, theirs = exact([parse(difference), parse(stable)], {"x": np.array([x])})
    assert ours.high == theirs.high
    assert abs(ours.low - theirs.low) <= 1e-20 * abs(ours.high)


def test_logarithm_of_a_far_tail():
    (found,) = exact([parse("log(0.5*erfc(-(x*SQRT1_2)))")], {"x": np.array([-1e19, -1e38, -6e153])})
    assert found.high.tolist() == [-(x**2) / 2 for x in (1e19, 1e38, 6e153)]


def test_the_rest_stays_as_it_is():
    roots = [parse("2 - sigmoid(x)"), parse("1 - sigmoid(x)*y"), parse("1 - tanh(x)*tanh(y)")]
    assert resolved(roots) == roots

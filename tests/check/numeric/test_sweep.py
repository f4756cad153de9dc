"""Reference values: exact ones that agree with a float64 run, and stable float64 runs."""

import mpmath
import numpy as np
import pytest
import torch

from pullback.check.numeric.elementwise import elementwise, slope_at
from pullback.check.numeric.sweep import Sweeper, Wider, terms, traps, usual

from ..making import audit_of, function, normal


def of(target, *inputs):
    audit = audit_of(target, *(inputs or (normal(5),)))
    return elementwise(audit.subject, audit.base)


def quantities(target, *inputs):
    """Return for value and gradient whether the reference is exact."""
    sweeper = Sweeper(of(target, *inputs))
    return [quantity.exact for quantity in sweeper.measure(torch.float32, {"x": np.array([0.5, 3.0])})]


def test_terms_of_a_function_class():
    value, slope = terms(of(function(lambda x: x * torch.exp(x), lambda g, x: g)))
    assert str(value) == "x * exp(x)"
    assert "exp(x)" in str(slope)


def test_forward_that_is_no_formula_has_no_terms():
    assert terms(of(lambda x: torch.special.bessel_j0(x))) is None
    assert terms(of(lambda x: torch.from_numpy(np.sin(x.detach().numpy())) + 0 * x)) is None


@pytest.mark.parametrize(
    ("gradient", "exact"),
    [
        (lambda g, x: g * x.cos(), [True, True]),
        (lambda g, x: g * x.cos() * 1.001, [True, False]),  # wrong, which is for PB101
        (lambda g, x: g, [True, False]),  # straight-through
    ],
)
def test_exact_derivatives_are_used_if_the_backward_agrees(gradient, exact):
    assert quantities(function(torch.sin, gradient)) == exact


def test_exact_values_and_derivatives():
    sweeper = Sweeper(of(lambda x: torch.log(1 + torch.exp(x))))
    x = np.array([-30.0, 1e-3, 88.8, 3e38])
    value, slope = sweeper.measure(torch.float32, {"x": x})
    with mpmath.workdps(60):
        right = [float(mpmath.log1p(mpmath.exp(v)) if v < 1e3 else v) for v in x]
        slopes = [float(1 / (1 + mpmath.exp(-v))) for v in x]
    np.testing.assert_allclose(value.truth.high, right, rtol=1e-15)
    np.testing.assert_allclose(slope.truth.high, slopes, rtol=1e-15)
    assert value.errors.inf.tolist() == [False, False, True, True]
    assert slope.errors.nan.tolist() == [False, False, True, True]


def test_unsteady_float64_run_is_undecided():
    function = of(lambda x: (1 - torch.cos(x)) / x**2)
    truth, _ = Wider(function).truths({"x": np.array([1.0, 1e-7, 0.0])}, torch.float32)
    assert truth.undecided.tolist() == [False, True, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_only_rows_with_a_result_that_is_not_the_float64_one_are_run_beside_it(dtype):
    sizes = []

    def bessel(x):
        sizes.append(x.numel())
        return torch.special.bessel_j0(x)

    subject = of(function(bessel, lambda g, x: -g * torch.special.bessel_j1(x)), normal(2, 3))
    at = {"x": np.linspace(0.5, 2.0, 9)}
    computed = [t.to(torch.float64).to(dtype) for t in subject.run(torch.float64, at)]
    sizes.clear()
    agreeing = Wider(subject).truths(at, dtype, computed)
    assert sizes == [9]
    computed[1][4] = np.inf
    doubted = Wider(subject).truths(at, dtype, computed)
    assert sizes[2:] == [3 * 10]  # four beside and six around each point of the second row
    for truth, before in zip(doubted, agreeing, strict=True):
        assert not truth.undecided.any()
        np.testing.assert_array_equal(truth.high, before.high)


def test_points_of_a_run_meet_the_weights_of_their_place_in_a_row():
    weight = torch.tensor([1.0, 10.0, 100.0])
    j0, j1 = torch.special.bessel_j0, torch.special.bessel_j1
    weighted = of(function(lambda x: j0(x) * weight, lambda g, x: -g * j1(x) * weight), normal(2, 3))
    at = {"x": np.linspace(0.5, 2.0, 7)}  # not a whole number of rows
    usual_weights = np.resize(weight.numpy(), 7)
    value, slope = Wider(weighted).truths(at, torch.float32)
    with mpmath.workdps(30):
        right = [float(mpmath.besselj(0, x)) for x in at["x"]] * usual_weights
        slopes = [float(-mpmath.besselj(1, x)) for x in at["x"]] * usual_weights
    np.testing.assert_allclose(value.high, right, rtol=1e-12)
    np.testing.assert_allclose(slope.high, slopes, rtol=1e-12)
    ulp = np.spacing(at["x"].astype(np.float32)).astype(float)
    spread = Sweeper(weighted).spread(torch.float32, at)[0]
    np.testing.assert_allclose(spread, np.abs(slopes) * ulp, rtol=1e-5)


def test_unselected_branch_is_named():
    value, _ = terms(of(lambda x: torch.where(x > 0, x.sqrt(), x)))
    at = {"x": np.array([-2.0, 0.0, 2.0])}
    ((branch, where),) = traps(value, "x", at, torch.float32)
    assert str(branch) == "sqrt(x)"
    assert where.tolist() == [True, True, False]


def test_one_sided_slopes_at_a_kink():
    kink = slope_at(of(lambda x: (x - 0.3).abs()), "x", {"x": 0.3})
    assert (kink.kink, kink.low, kink.high) == (True, pytest.approx(-1), pytest.approx(1))
    assert (kink.nearest(0.7), kink.nearest(3.0)) == (0.7, kink.high)
    assert kink.accepts(0.7)
    assert not kink.accepts(1.1)
    smooth = slope_at(of(lambda x: x.sin()), "x", {"x": 2.0})
    assert not smooth.kink
    assert smooth.nearest(5.0) == pytest.approx(float(mpmath.cos(2)), abs=10 * smooth.bar)
    assert slope_at(of(lambda x: torch.floor(x) + 0 * x), "x", {"x": 2.0}) is None


def test_usual_size_is_that_at_ordinary_points():
    x = np.array([1e-9, 0.5, 1.0, 2.0, 1e20])
    assert usual(x**2, {"x": x}) == 1.0

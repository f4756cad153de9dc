"""Calibration of the numeric derivative against 40 digits: small errors, and error bars that hold."""

import mpmath
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from pullback.check.derivative.oracle import (
    differentiate,
    differentiate_briefly,
    refine_by_complex_step,
    working_epsilon,
)

from ..making import uniform

mp = mpmath.mp.clone()
mp.dps = 40


def noisy(x, size):
    """Noise that is uncorrelated at every step of the differences."""
    return size * torch.frac(torch.sin(x * 1e7) * 43758.5453)


def single(x):
    return x.to(torch.float32).to(torch.float64)


# name: (function, derivative, lowest and highest point, median of the relative bar)
CALIBRATION = {
    "sin": (torch.sin, mp.cos, (-3, 3), 1e-12),
    "exp": (torch.exp, mp.exp, (-5, 5), 1e-12),
    "cube": (lambda x: x**3, lambda x: 3 * x**2, (-2, 2), 1e-12),
    "rational": (lambda x: x / (1 + 25 * x**2), lambda x: (1 - 25 * x**2) / (1 + 25 * x**2) ** 2, (-2, 2), 1e-11),
    "reciprocal": (lambda x: 1 / x, lambda x: -1 / x**2, (0.1, 2), 1e-11),
    "log": (torch.log, lambda x: 1 / x, (0.1, 3), 1e-11),
    "gelu": (F.gelu, lambda x: mp.ncdf(x) + x * mp.npdf(x), (-5, 5), 1e-11),
    "softplus": (F.softplus, lambda x: 1 / (1 + mp.exp(-x)), (-5, 15), 1e-11),
    "steep": (lambda x: torch.tanh(50 * x), lambda x: 50 * mp.sech(50 * x) ** 2, (-0.1, 0.1), 1e-6),
    "narrow": (lambda x: torch.exp(-1000 * x**2), lambda x: -2000 * x * mp.exp(-1000 * x**2), (-0.1, 0.1), 1e-6),
    "oscillating": (lambda x: torch.sin(40 * x), lambda x: 40 * mp.cos(40 * x), (-3, 3), 1e-8),
    "fast": (lambda x: torch.sin(200 * x), lambda x: 200 * mp.cos(200 * x), (-3, 3), 1e-4),
    "offset": (lambda x: torch.sin(x) + 1e6, mp.cos, (-3, 3), 1e-6),
    "flat to third order": (lambda x: x**4, lambda x: 4 * x**3, (-0.01, 0.01), 1e-9),
    "float32 out": (lambda x: single(torch.exp(x)), mp.exp, (-3, 3), 1e-3),
    "float32 in": (lambda x: torch.exp(single(x)), mp.exp, (-3, 3), 1e-3),
    "float32 inside": (lambda x: single(3 * x) + x * x, lambda x: 3 + 2 * x, (-3, 3), 1e-3),
    "bfloat16 out": (lambda x: torch.sin(x).to(torch.bfloat16).to(torch.float64), mp.cos, (-3, 3), 30),
    "float16 out": (lambda x: torch.exp(x).to(torch.float16).to(torch.float64), mp.exp, (-3, 3), 1),
    "noise": (lambda x: torch.sin(x) + noisy(x, 1e-6), mp.cos, (-3, 3), 1e-3),
    "more noise": (lambda x: torch.sin(x) + noisy(x, 1e-2), mp.cos, (-3, 3), 30),
    "relative noise": (lambda x: torch.exp(x) * (1 + noisy(x, 1e-9)), mp.exp, (-3, 3), 1e-6),
}  # fmt: skip


def along(f, x):
    """Estimate the derivative of an elementwise function at each of the points `x`."""
    return differentiate(lambda t: f(x + t).to(torch.float64))


def exact(derivative, x):
    return torch.tensor([float(derivative(mp.mpf(float(v)))) for v in x], dtype=torch.float64)


@pytest.mark.parametrize("name", CALIBRATION)
def test_error_is_within_the_bar(name):
    f, derivative, (low, high), sharpness = CALIBRATION[name]
    x = uniform(300, low=low, high=high, seed=1)
    estimate, true = along(f, x), exact(derivative, x)
    bars = ((estimate.low - true).abs() / estimate.bar)[estimate.valid]
    assert estimate.valid.double().mean() > 0.9
    assert not (estimate.kink & estimate.valid).any()
    assert (bars <= 1).double().mean() >= 0.99
    assert bars.max() <= 10
    assert (estimate.bar / true.abs())[estimate.valid].median() <= sharpness


@pytest.mark.parametrize("name", [name for name, (_, _, _, sharpness) in CALIBRATION.items() if sharpness <= 1e-8])
def test_few_samples_of_a_noiseless_curve_are_accurate(name):
    f, derivative, (low, high), sharpness = CALIBRATION[name]
    x = uniform(300, low=low, high=high, seed=1)
    estimate, true = differentiate_briefly(lambda t: f(x + t).to(torch.float64)), exact(derivative, x)
    bars = ((estimate.low - true).abs() / estimate.bar)[estimate.valid]
    assert estimate.valid.double().mean() > 0.9
    assert (bars <= 10).double().mean() >= 0.99  # noise beyond the rounding of values is not measured
    assert (estimate.bar / true.abs())[estimate.valid].median() <= 30 * sharpness


@given(st.floats(-2, 2), st.floats(0.1, 30), st.floats(-1e3, 1e3), st.floats(-3, 3))
def test_smooth_function_is_never_ten_bars_off(x, frequency, offset, slope):
    def f(t):
        return torch.sin(frequency * t) + slope * t + offset

    estimate = along(f, torch.tensor([x], dtype=torch.float64))
    true = frequency * mp.cos(mp.mpf(frequency) * mp.mpf(x)) + mp.mpf(slope)
    assert not estimate.valid or abs(float(estimate.low) - true) <= 10 * float(estimate.bar) + 1e-13


@pytest.mark.parametrize("frequency", [300, 500, 800])
def test_aliased_ripple_is_detected_or_widens_the_bar(frequency):
    """The coarse steps alias it; the fine steps must detect it, or the error bar must cover it."""
    x = uniform(300, low=-3, high=3, seed=2)
    estimate = along(lambda x: torch.sin(frequency * x), x)
    error = (estimate.low - frequency * torch.cos(frequency * x)).abs()
    assert ((error > 10 * estimate.bar) & estimate.valid).sum() <= 1


def test_peak_between_the_coarse_steps_is_detected():
    """Both ends of each coarse step are 0, so the coarse differences agree; only finer steps see the peak."""
    x = uniform(300, low=-0.01, high=0.01, seed=3)
    estimate = along(lambda x: torch.exp(-((300 * x) ** 2)), x)
    true = -2 * 300**2 * x * torch.exp(-((300 * x) ** 2))
    wrong = ((estimate.low - true).abs() > 10 * estimate.bar) & estimate.valid
    assert wrong.sum() <= 3


KINKS = {
    "relu": (torch.relu, (0.0, 1.0)),
    "abs": (torch.abs, (-1.0, 1.0)),
    "hard sigmoid": (lambda x: F.hardsigmoid(x + 3), (0.0, 1 / 6)),
    "max with a slope": (lambda x: torch.maximum(2 * x, torch.sin(x)), (1.0, 2.0)),
    "min": (lambda x: torch.minimum(x.exp() - 1, -3 * x), (-3.0, 1.0)),
    "leaky, large": (lambda x: 1e4 * F.leaky_relu(x, 0.25), (2.5e3, 1e4)),
}


@pytest.mark.parametrize("name", KINKS)
def test_kink_gives_the_one_sided_derivatives(name):
    f, (low, high) = KINKS[name]
    estimate = along(f, torch.zeros(1, dtype=torch.float64))
    assert estimate.valid
    assert estimate.kink
    assert abs(float(estimate.low) - low) <= 10 * float(estimate.bar) <= 1e-6 * max(abs(low), high)
    assert abs(float(estimate.high) - high) <= 10 * float(estimate.bar)


def test_no_kink_is_reported_beside_one():
    x = torch.tensor([-0.5, -0.1, -0.02, 0.02, 0.1, 0.5], dtype=torch.float64)
    estimate = along(torch.relu, x)
    assert estimate.valid.all()
    assert not estimate.kink.any()
    assert torch.allclose(estimate.low, (x > 0).double(), atol=1e-9)


NO_DERIVATIVE = {
    "jump": lambda x: torch.where(x >= 0, 1.0, 0.0) + x,
    "jump of a sawtooth": lambda x: torch.remainder(x, 0.7),
    "cusp": lambda x: x.abs().sqrt(),
    "vertical": lambda x: x.sign() * x.abs().sqrt(),
    "spike": lambda x: torch.where(x == 0, 1.0, 0.0) + x,
    "edge of log": torch.log,
    "edge of sqrt": torch.sqrt,
    "edge of a square root plus one": lambda x: 1 + x.sqrt(),
    "pole": lambda x: 1 / x,
    "not a number": lambda x: x * torch.nan,
    "infinite": lambda x: x + torch.inf,
}


@pytest.mark.parametrize("name", NO_DERIVATIVE)
def test_point_without_derivative_is_invalid(name):
    estimate = along(NO_DERIVATIVE[name], torch.zeros(1, dtype=torch.float64))
    assert not estimate.valid


def test_elements_are_estimated_independently():
    x = torch.tensor([0.0, 0.5, 2.0], dtype=torch.float64)
    estimate = along(lambda x: torch.where(x < 1, x.abs(), torch.nan), x)
    assert estimate.valid.tolist() == [True, True, False]
    assert estimate.kink.tolist()[:2] == [True, False]


FLAT = {
    "round": (torch.round, 0.3),
    "sign": (torch.sign, -0.4),
    "constant": (lambda x: torch.full_like(x, 7.0), 0.0),
    "a step further off": (lambda x: (x > 0).double(), 0.02),
}


@pytest.mark.parametrize("name", FLAT)
def test_flat_function_is_flat(name):
    f, point = FLAT[name]
    estimate = along(f, torch.tensor([point], dtype=torch.float64))
    assert estimate.flat
    assert estimate.valid
    assert estimate.low == 0


def test_stationary_point_is_not_flat():
    assert not along(lambda x: x * x, torch.zeros(1, dtype=torch.float64)).flat
    assert not along(torch.relu, torch.zeros(1, dtype=torch.float64)).flat


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (torch.tensor([0.1, 0.7, 3.3], dtype=torch.float64), torch.float64),
        (torch.tensor([0.1, 0.7, 3.3]), torch.float32),
        (torch.tensor([0.1, 0.7, 3.3], dtype=torch.float16), torch.float16),
        (torch.tensor([0.1, 0.7, 3.3], dtype=torch.bfloat16), torch.bfloat16),
        (torch.tensor([1.0, -2.0, 4096.0]), torch.float64),
        (torch.tensor([1.0, torch.nan, 0.1, torch.inf]), torch.float32),
        (torch.tensor([]), torch.float64),
    ],
)
def test_working_epsilon(values, dtype):
    assert working_epsilon(values.to(torch.float64)) == torch.finfo(dtype).eps


def complex_step(f, x):
    return f(torch.complex(x, torch.full_like(x, 1e-20))).imag / 1e-20


def test_complex_step_sharpens_an_analytic_function():
    x = uniform(50, low=-2, high=2)
    estimate = along(lambda x: torch.sin(40 * x), x)
    refined = refine_by_complex_step(estimate, complex_step(lambda z: torch.sin(40 * z), x))
    true = 40 * torch.cos(40 * x)
    assert refined.bar.median() < 1e-3 * estimate.bar.median()
    assert ((refined.low - true).abs() <= 10 * refined.bar + 1e-12).all()


IMPOSTORS = {
    "conjugates": (lambda z: z.real**2 if not z.is_complex() else z * z.conj()),
    "drops the imaginary part": (lambda z: torch.sin(z) if not z.is_complex() else torch.sin(z.real) + 0j * z),
    "analytic elsewhere": (lambda z: torch.exp(z) if not z.is_complex() else torch.exp(z) + z),
}


@pytest.mark.parametrize("name", IMPOSTORS)
def test_complex_step_of_a_nonanalytic_function_is_rejected(name):
    f, x = IMPOSTORS[name], uniform(20, low=0.5, high=2)
    estimate = along(f, x)
    assert refine_by_complex_step(estimate, complex_step(f, x)) is estimate


def test_complex_step_through_float32_is_rejected():
    x = uniform(20, low=0.5, high=2)
    estimate = along(lambda x: single(torch.exp(x)), x)
    assert refine_by_complex_step(estimate, 1.01 * torch.exp(x)) is estimate


def test_missing_complex_step_changes_nothing():
    estimate = along(torch.sin, torch.ones(2, dtype=torch.float64))
    assert refine_by_complex_step(estimate, None) is estimate
    assert refine_by_complex_step(estimate, torch.ones(3, dtype=torch.float64)) is estimate


def test_differentiate_uses_forty_one_evaluations():
    points = []
    differentiate(lambda t: points.append(t) or torch.full((1,), 2.0 * t, dtype=torch.float64))
    assert len(points) == len(set(points)) == 41
    assert max(abs(t) for t in points) < 0.1

"""Surrogate spikes: the value is a hard step, the derivative a surrogate of given steepness and area."""

import math

import mpmath
import pytest
import torch
from tests.catalog.reference import DTYPES, assert_close, bits, exact, extremes, orders

from pullback import catalog
from pullback.catalog import surrogates

SPIKES = {
    "arctan": (catalog.spike_arctan, surrogates.arctan_step),
    "fast_sigmoid": (catalog.spike_fast_sigmoid, surrogates.fast_sigmoid_step),
    "triangle": (catalog.spike_triangle, surrogates.triangle_step),
    "sigmoid": (catalog.spike_sigmoid, surrogates.sigmoid_step),
}
SURROGATE = {
    "arctan": lambda u, a: a / 2 / (1 + (mpmath.pi * a * u / 2) ** 2),
    "fast_sigmoid": lambda u, a: a / 2 / (1 + a * abs(u)) ** 2,
    "triangle": lambda u, a: a * max(0, 1 - a * abs(u)),
    "sigmoid": lambda u, a: a / (1 + mpmath.exp(a * u)) / (1 + mpmath.exp(-a * u)),
}
"""As the docstrings give them, with area 1."""
POINTS = [-40.0, -3.0, -0.9, -0.26, -1e-3, -1e-9, 1e-9, 1e-3, 0.1, 0.49, 0.7, 2.1, 11.0]
every = pytest.mark.parametrize("name", SPIKES)


@every
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_value_is_0_or_1_in_every_dtype(name, dtype):
    u = extremes(dtype)
    expected = (u >= 0).to(dtype)
    for given in (u, u.clone().requires_grad_()):
        got = SPIKES[name][0](given).detach()
        assert got.dtype == dtype
        assert torch.equal(bits(got), bits(expected))


@every
@pytest.mark.parametrize("alpha", [0.5, 2.0, 25.0])
def test_derivative_is_the_surrogate(name, alpha):
    op, _ = SPIKES[name]
    u = torch.tensor(POINTS, dtype=torch.float64)
    _, first, second = orders(lambda u: op(u, alpha, 3.0), u)
    exact_surrogate = lambda x: 3 * SURROGATE[name](x, mpmath.mpf(alpha))  # noqa: E731
    assert_close(first, exact(exact_surrogate, POINTS), rtol=1e-13)
    # Near 0 and far out it is a difference of two larger numbers: exact to digits of its largest value.
    assert_close(second, exact(exact_surrogate, POINTS, 1), rtol=1e-12, atol=1e-14 * alpha**2)


@every
def test_backward_is_the_derivative_of_the_primitive(name):
    op, step = SPIKES[name]
    u = torch.tensor(POINTS, dtype=torch.float64)
    h = 1e-6
    slope = (step(u + h) - step(u - h)) / (2 * h)
    assert_close(orders(op, u)[1], slope, rtol=0, atol=1e-5)  # the kink of the triangle at ±1e-9 costs α² h / 2


@every
@pytest.mark.parametrize("area", [1.0, 0.3])
@pytest.mark.parametrize("alpha", [0.5, 25.0])
def test_surrogate_integrates_to_its_area(name, alpha, area):
    op, step = SPIKES[name]
    ends = torch.tensor([-torch.inf, torch.inf], dtype=torch.float64)
    low, high = step(ends, alpha, area)
    assert_close(high - low, torch.tensor(area, dtype=torch.float64), rtol=1e-15)
    # The integral of the backward itself, with u = tan(t) / α.
    t = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000 * math.pi - math.pi / 2
    surrogate = orders(lambda u: op(u, alpha, area), torch.tan(t) / alpha)[1]
    integral = (surrogate / torch.cos(t).square()).sum() / alpha * math.pi / 20_000
    assert_close(integral, torch.tensor(area, dtype=torch.float64), rtol=1e-4)


@every
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_derivatives_are_finite_everywhere_and_0_at_infinity(name, dtype):
    u = extremes(dtype)
    for derivative in orders(SPIKES[name][0], u)[1:]:
        assert derivative.isfinite().all()
        assert not derivative[~u.isfinite()].any()


@every
def test_surrogate_is_maximal_at_the_threshold(name):
    _, first, second = orders(lambda u: SPIKES[name][0](u, 2.0), torch.tensor([0.0, -0.0], dtype=torch.float64))
    assert_close(first, exact(lambda u: SURROGATE[name](u, 2), [0.0, 0.0]), rtol=1e-15)
    assert second.tolist() == [0.0, 0.0]


def test_triangle_has_derivative_0_at_its_corners():
    _, first, second = orders(catalog.spike_triangle, torch.tensor([-1.0, 1.0]))
    assert first.tolist() == [0.0, 0.0]
    assert second.tolist() == [0.0, 0.0]


@every
def test_gradients_by_steepness_and_area_match_finite_differences(name):
    op, step = SPIKES[name]
    u = torch.tensor(POINTS, dtype=torch.float64)
    alpha, area = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (0.7, 2.0))
    g_alpha, g_area = torch.autograd.grad(op(u, alpha, area).sum(), (alpha, area))
    h = 1e-6
    slope = (step(u, 0.7 + h, 2.0) - step(u, 0.7 - h, 2.0)).sum() / (2 * h)
    assert_close(g_alpha, slope, rtol=1e-7)
    assert_close(g_area, step(u, 0.7, 1.0).sum(), rtol=1e-13)


@every
def test_forward_mode_and_vmap_agree_with_backward(name):
    op, _ = SPIKES[name]
    u = torch.tensor(POINTS, dtype=torch.float64)
    expected = orders(op, u)[1]
    assert_close(torch.func.jvp(op, (u,), (torch.ones_like(u),))[1], expected, rtol=1e-14)
    assert_close(torch.func.vmap(torch.func.grad(op))(u), expected, rtol=1e-14)


def test_compiled_backward_is_the_surrogate():
    u = torch.tensor(POINTS).requires_grad_()
    compiled = torch.compile(catalog.spike_arctan, backend="aot_eager", fullgraph=True)
    (g,) = torch.autograd.grad(compiled(u).sum(), u)
    assert_close(g, orders(catalog.spike_arctan, u)[1], rtol=1e-6)

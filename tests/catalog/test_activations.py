"""Activations are as accurate as their certificates say, at fresh points and where PyTorch's gradient is 0."""

from pathlib import Path

import mpmath
import pytest
import torch
from torch.func import grad, vmap

import pullback
from pullback import catalog
from pullback.catalog import activations
from pullback.stable.certificate import load, path_beside
from pullback.stable.derivative import derivative
from pullback.stable.measure import errors
from pullback.stable.oracle.values import exact
from pullback.stable.sampling import sample_target
from pullback.stable.term import parse

CERTIFICATES = load(path_beside(activations.__file__))
NAMES = ["erfcx", "expm1", "gelu", "log_ndtr", "logit", "mish", "sigmoid", "silu", "sinc", "softsign", "tanh"]
NAMES += ["tanhshrink"]
IN_16_BITS = sorted(set(NAMES) - {"erfcx", "log_ndtr"})
"""PyTorch has no 16-bit kernels for the others."""
SEED = 20261120


@pytest.fixture(autouse=True)
def no_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_every_op_has_a_float32_certificate():
    assert Path(path_beside(activations.__file__)).exists()
    assert {c.name for c in CERTIFICATES if c.dtype == "float32"} == set(NAMES)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_16_bit_op_has_16_bit_certificates(dtype):
    assert [c.name for c in CERTIFICATES if c.dtype == dtype] == IN_16_BITS


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", IN_16_BITS)
@pytest.mark.few(2)
def test_value_and_derivatives_are_within_051_ulp_at_every_16_bit_input(name, dtype):
    measured = pullback.accuracy(getattr(activations, name), dtype=dtype, order=2)
    assert [row.of for row in measured.rows] == ["value", "d/dx", "d²/dx²"]
    for row in measured.rows:
        assert row.coverage == "every input"
        assert row.summary.max_ulp <= 0.51
        assert row.summary.max_subnormal <= 0.51
        assert row.summary.clean


@pytest.mark.parametrize("found", CERTIFICATES, ids=lambda c: f"{c.name}-{c.dtype}")
@pytest.mark.few(7)
def test_value_and_gradient_are_within_certified_ulps_at_fresh_points(found):
    op, dtype = getattr(activations, found.name), getattr(torch, found.dtype)
    target = derivative(parse(found.formula), "x")
    fresh = sample_target(target, ("x",), dtype, SEED, {}).thinned(4000)
    x = fresh.tensors(dtype)["x"].requires_grad_()
    value = op(x)
    (slope,) = torch.autograd.grad(value.sum(), x)
    assert [c.dtype for c in op.certificates] == [found.dtype] or found.dtype in {c.dtype for c in op.certificates}
    for computed, term in ((value.detach(), parse(found.formula)), (slope, target)):
        (truth,) = exact([term], fresh.points)
        found_errors = errors(computed, truth)
        assert not found_errors.spurious.any()
        normal = found_errors.ulp[~found_errors.subnormal]
        assert normal.max() <= (1.5 if dtype == torch.float32 else 0.52)


@pytest.mark.parametrize(
    ("name", "x", "exact_slope"),
    [
        ("sigmoid", 20.0, 2.0611536e-09),  # PyTorch: 0
        ("tanh", 10.0, 8.2446145e-09),  # PyTorch: 0
        ("gelu", -7.0, -6.2637e-11),  # PyTorch: 0
        ("softsign", 1e8, 1e-16),  # PyTorch: 0
        ("tanhshrink", 1e-4, 1e-8),  # PyTorch: 0
    ],
)
def test_gradient_is_nonzero_where_pytorch_gives_0(name, x, exact_slope):
    at = torch.tensor([x], requires_grad=True)
    (slope,) = torch.autograd.grad(getattr(catalog, name)(at).sum(), at)
    assert slope.item() == pytest.approx(exact_slope, rel=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_float64_op_equals_its_formula(name):
    x = torch.linspace(0.05, 0.95, 9, dtype=torch.float64)
    op = getattr(activations, name)
    assert torch.equal(op(x), op.__wrapped__(x))
    assert torch.autograd.gradcheck(op, x.clone().requires_grad_())


def test_sinc_has_accurate_derivatives_at_and_near_zero():
    points = [0.0, 1e-12, 1e-5, 0.01, -0.3, 0.4999, 0.5, 0.7, -2.2]
    f = catalog.sinc
    for order in range(4):
        found = vmap(f)(torch.tensor(points, dtype=torch.float64)).tolist()
        for x, y in zip(points, found, strict=True):
            cancelled = 2e-15 if abs(x) >= 0.5 else 0  # of terms of size 1
            assert y == pytest.approx(sinc_derivative(order, x), rel=2e-15, abs=cancelled)
        f = grad(f)


def sinc_derivative(order, x):
    """Derivative of sinc(x) = ∫₀¹ cos(πxt) dt, under the integral, by mpmath's quadrature."""
    with mpmath.workdps(40):
        turn = [mpmath.cos, lambda t: -mpmath.sin(t), lambda t: -mpmath.cos(t), mpmath.sin][order]
        return float(mpmath.quad(lambda t: (mpmath.pi * t) ** order * turn(mpmath.pi * mpmath.mpf(x) * t), [0, 1]))

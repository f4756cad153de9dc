"""Ops from tutorials against native PyTorch and finite differences."""

import mpmath
import pytest
import torch
from tests.catalog.reference import DTYPES, assert_close, exact, orders

from pullback.catalog import tutorial

MASK = torch.tensor([True, False, True])
CALLS = {
    tutorial.exp: (torch.exp, 1),
    tutorial.sum_of_squares_and_product: (lambda x, y: (x**2 + y**2, y * x), 2),
    tutorial.masked_sum: (lambda x: x[MASK].sum(), 1),
    tutorial.gated_rsqrt: (lambda x: torch.sigmoid(x) * torch.rsqrt(1 + torch.exp(x)), 1),
    tutorial.x_exp_minus_y: (lambda x, y: x / torch.exp(y), 2),
    tutorial.sin_squared: (lambda x: 1 - torch.cos(x) ** 2, 1),
    tutorial.relu: (lambda x: torch.clamp(x, min=0), 1),
    tutorial.double: (lambda x: x + x, 1),
}
"""Each op with another way to write it, and how many tensors it takes."""
every = pytest.mark.parametrize("op", CALLS, ids=lambda op: op.__name__)


def called(op):
    return (lambda x: op(x, MASK)) if op is tutorial.masked_sum else op


def inputs(op, dtype=torch.float64):
    return tuple(torch.randn(3, dtype=torch.float64).to(dtype).requires_grad_() for _ in range(CALLS[op][1]))


def flat(outputs):
    return torch.stack([out.sum() for out in (outputs if isinstance(outputs, tuple) else (outputs,))])


@every
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_value_and_gradient_match_native_ops(op, dtype):
    native, _ = CALLS[op]
    xs = inputs(op, dtype)
    wide = [x.detach().double().requires_grad_() for x in xs]
    ours, expected = called(op)(*xs), native(*wide)
    eps = torch.finfo(dtype).eps
    for out, reference in zip(*((o if isinstance(o, tuple) else (o,)) for o in (ours, expected)), strict=True):
        assert out.dtype == dtype
        assert_close(out.double(), reference, rtol=8 * eps, atol=8 * eps)
    ones = torch.autograd.grad(flat(ours).sum(), xs)
    for g, reference in zip(ones, torch.autograd.grad(flat(expected).sum(), wide), strict=True):
        assert_close(g.double(), reference, rtol=8 * eps, atol=8 * eps)


@every
def test_derivatives_agree_in_every_mode_and_order(op):
    xs = inputs(op)
    assert torch.autograd.gradcheck(called(op), xs, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(called(op), xs)


def test_gated_rsqrt_is_accurate_at_large_inputs():
    points = [-700.0, -30.0, 0.0, 30.0, 100.0, 700.0, 800.0]
    value, first, _ = orders(tutorial.gated_rsqrt, torch.tensor(points, dtype=torch.float64))

    def exactly(x):
        return 1 / (1 + mpmath.exp(-x)) / mpmath.sqrt(1 + mpmath.exp(x))

    assert_close(value, exact(exactly, points), rtol=2e-13)
    assert_close(first, exact(exactly, points, 1), rtol=2e-13)
    ends = orders(tutorial.gated_rsqrt, torch.tensor([-torch.inf, torch.inf]))
    assert all(t.tolist() == [0.0, 0.0] for t in ends)


def test_relu_derivative_is_0_at_the_kink():
    assert orders(tutorial.relu, torch.tensor([-1.0, 0.0, -0.0, 2.0]))[1].tolist() == [0.0, 0.0, 0.0, 1.0]


def test_masked_sum_ignores_nan_in_masked_entries():
    x = torch.tensor([1.0, torch.nan, 2.0], requires_grad=True)
    out = tutorial.masked_sum(x, MASK)
    assert out.item() == 3.0
    assert torch.autograd.grad(out, x)[0].tolist() == [1.0, 0.0, 1.0]


def test_complex_inputs_pass_gradcheck():
    z = torch.randn(3, dtype=torch.complex128, requires_grad=True)
    for op in (tutorial.exp, tutorial.sin_squared, tutorial.double):
        assert torch.autograd.gradcheck(op, z)

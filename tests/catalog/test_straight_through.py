"""Straight-through estimators: the value of the hard step bit for bit, the derivative of the relaxation."""

import functools

import pytest
import torch
from tests.catalog.reference import DTYPES, bits, extremes, orders

from pullback import catalog


def binary_sign(x):
    return torch.where(x.isnan(), x, torch.where(x < 0, -1.0, 1.0).to(x.dtype))


IDENTITY = {
    catalog.round_ste: torch.round,
    catalog.floor_ste: torch.floor,
    catalog.sign_ste: torch.sign,
    catalog.binary_sign_ste: binary_sign,
}
CLIPPED = {
    functools.partial(catalog.clipped_round_ste, low=-1.5, high=2.0): (lambda x: x.clamp(-1.5, 2).round(), -1.5, 2.0),
    functools.partial(catalog.clipped_floor_ste, low=-1.5, high=2.0): (lambda x: x.clamp(-1.5, 2).floor(), -1.5, 2.0),
    catalog.clipped_sign_ste: (torch.sign, -1.0, 1.0),
    functools.partial(catalog.clipped_sign_ste, bound=0.25): (torch.sign, -0.25, 0.25),
    catalog.clipped_binary_sign_ste: (binary_sign, -1.0, 1.0),
}
STEPS = IDENTITY | {op: clipped[0] for op, clipped in CLIPPED.items()}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", STEPS, ids=str)
def test_value_equals_the_hard_step_bitwise(op, dtype):
    x, hard = extremes(dtype), STEPS[op]
    for given in (x, x.clone().requires_grad_()):
        got, expected = op(given).detach(), hard(x)
        number = ~expected.isnan()
        assert torch.equal(got.isnan(), ~number)
        assert torch.equal(bits(got)[number], bits(expected)[number])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", IDENTITY, ids=str)
def test_derivative_is_1_where_x_is_finite(op, dtype):
    x = extremes(dtype)
    _, first, second = orders(op, x)
    assert torch.equal(first, x.isfinite().to(dtype))
    assert not second.any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", CLIPPED, ids=str)
def test_clipped_derivative_is_1_on_the_closed_interval_and_0_outside(op, dtype):
    _, low, high = CLIPPED[op]
    low, high = torch.tensor([low, high], dtype=dtype)
    inf = torch.tensor(torch.inf, dtype=dtype)
    outside = torch.stack([torch.nextafter(low, -inf), torch.nextafter(high, inf), inf, -inf])
    inside = torch.stack([low, high, torch.zeros_like(low), torch.nextafter(low, inf), torch.nextafter(high, -inf)])
    _, first, second = orders(op, torch.cat([inside, outside]))
    assert first.tolist() == [1.0] * 5 + [0.0] * 4
    assert not second.any()


def test_clip_mask_compares_the_unrounded_input():
    x = torch.tensor([2.25, 2.0])  # 2.25 rounds to the bound
    assert orders(lambda t: catalog.clipped_round_ste(t, -2.0, 2.0), x)[1].tolist() == [0.0, 1.0]


def test_forward_mode_vmap_and_compile_use_the_relaxation():
    x, t = torch.tensor([-2.0, 0.3, 1.0]), torch.tensor([5.0, 6.0, 7.0])
    pushed = torch.func.jvp(catalog.clipped_sign_ste, (x,), (t,))[1]
    assert pushed.tolist() == [0.0, 6.0, 7.0]
    pulled = torch.func.vmap(torch.func.grad(catalog.clipped_sign_ste))(x)
    assert pulled.tolist() == [0.0, 1.0, 1.0]
    compiled = torch.compile(lambda x: catalog.clipped_sign_ste(x) * x, backend="aot_eager", fullgraph=True)
    z = x.clone().requires_grad_()
    (g,) = torch.autograd.grad(compiled(z).sum(), z)
    assert torch.equal(g, torch.sign(x) + torch.tensor([0.0, 0.3, 1.0]))

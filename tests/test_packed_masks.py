"""Ops that save masks as packed bits: plans, hooks, transforms, sizes."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import grad, gradcheck, gradgradcheck
from torch.autograd.graph import saved_tensors_hooks

import pullback
from pullback.graph import bits
from pullback.kernels.backend import packs_bits
from tests.kernels.test_bit_packing import grads, kept_in_bits

pytestmark = pytest.mark.usefixtures("native")
BITS = "truth values, one bit each"


def clipped(x, w):
    return (x @ w).clamp(-1, 1)


def residual(x, w, a):
    return F.relu(x @ w) + a


def layers(x, w, v):
    return F.relu(x @ w) @ v


def smooth(x, w, a):
    z = x @ w
    return torch.where(z > 0.1, a * a, a.sin()) + x.mean() + w.mean()


def mask_too(x, w, a):
    held = (x @ w) > 0
    return torch.where(held, a, 0.0), held


def live(*shapes, dtype=torch.float32):
    return [torch.randn(s, dtype=dtype).requires_grad_() for s in shapes]


def told(op, *inputs):
    return [(s.name, s.bytes) for s in op.saved(*inputs) if not s.alive]


def test_packed_mask_is_saved_where_it_is_smallest():
    x, w, a, v = live((64, 32), (32, 128), (64, 128), (128, 16))
    n = 64 * 128
    assert told(pullback.function(clipped), x, w) == [(BITS, n // 8)]
    assert told(pullback.function(residual), x, w, a) == [(BITS, n // 8)]
    assert told(pullback.function(smooth), x, w, a) == [(BITS, n // 8)]
    assert "Saved for backward: 1024 extra bytes" in pullback.function(clipped).explain(x, w)
    assert f"{BITS}: uint8 [1024], 1024 bytes" in pullback.function(clipped).explain(x, w)
    assert told(pullback.function(layers), x, w, v) == [("computed", 4 * n)]  # the product reads it as well
    assert told(pullback.function(torch.matmul), x, w) == []


def test_mask_recomputable_from_live_tensors_is_not_saved():
    x, w, a = live((64, 32), (32, 128), (64, 128))
    assert told(pullback.function(lambda x, w: F.relu(x @ w)), x, w) == []
    assert told(pullback.function(lambda a, w: F.relu(a) @ w.T), a, w) == []
    assert told(pullback.function(mask_too), x, w, a) == []


def test_bytes_are_saved_where_packing_does_not_pay():
    small, large = live((8, 4), (4, 8), (8, 8)), live((64, 32), (32, 128), (64, 128))
    assert told(pullback.function(residual), *small) == [("computed", 64)]
    assert told(pullback.function(residual, save="fast"), *large) == [("computed", 4 * 64 * 128)]
    assert told(pullback.function(smooth, save="fast"), *large) == [("computed", 64 * 128)]
    assert told(pullback.function(smooth, backend="eager", save="min"), *large) == [("computed", 64 * 128)]
    assert not packs_bits("inductor")


@pytest.mark.parametrize("formula", [clipped, residual, smooth])
def test_batched_compiled_and_func_backwards_read_packed_masks(formula):
    from torch._dynamo import compiled_autograd

    inputs = live((64, 32), (32, 128), (64, 128))[: formula.__code__.co_argcount]
    op = pullback.function(formula)
    right = grads(formula(*inputs), inputs, torch.ones(64, 128))
    batch = grad(op(*inputs), inputs, torch.ones(2, 64, 128), is_grads_batched=True)
    with compiled_autograd._enable(torch.compile(backend="aot_eager")):
        compiled = grads(op(*inputs), inputs, torch.ones(64, 128))
    torch._dynamo.reset()
    vjp = torch.func.vjp(op, *inputs)[1](torch.ones(64, 128))
    for one, of_batch, of_graph, of_vjp in zip(right, batch, compiled, vjp, strict=True):
        for mine in (of_batch[0], of_batch[1], of_graph, of_vjp):
            assert torch.allclose(mine, one, atol=1e-5)


@pytest.mark.parametrize("formula", [clipped, residual, smooth])
@pytest.mark.few(1)
def test_derivatives_with_packed_masks_pass_gradcheck(formula, monkeypatch):
    monkeypatch.setattr(bits, "FEWEST", 0)
    inputs = live((5, 4), (4, 3), (5, 3), dtype=torch.float64)[: formula.__code__.co_argcount]
    op = pullback.function(formula)
    assert kept_in_bits(op(*inputs)) == 2
    assert gradcheck(op, inputs)
    assert gradgradcheck(op, inputs)


def test_packed_masks_pass_through_saved_tensor_hooks():
    inputs = live((64, 32), (32, 128), (64, 128))
    op = pullback.function(residual)
    with saved_tensors_hooks(lambda t: t.numpy(force=True), torch.from_numpy):
        out = op(*inputs)
    right = grads(residual(*inputs), inputs, torch.ones(64, 128))
    for _ in range(2):
        for mine, one in zip(grad(out.sum(), inputs, retain_graph=True), right, strict=True):
            assert torch.allclose(mine, one, atol=1e-5)


def test_packed_masks_with_pytorchs_kernels():
    x, w, a = live((64, 32), (32, 128), (64, 128))
    with pullback.backend("auto"):
        for formula in (clipped, residual, smooth):
            inputs = [x, w, a][: formula.__code__.co_argcount]
            op = pullback.function(formula, stable=False)
            assert told(op, *inputs) == [(BITS, 1024)]
            g = torch.randn(64, 128)
            for mine, one in zip(grads(op(*inputs), inputs, g), grads(formula(*inputs), inputs, g), strict=True):
                assert torch.equal(mine, one)


@pytest.mark.parametrize("formula", [clipped, residual, smooth])
def test_packed_masks_of_many_sizes_share_one_plan(formula, monkeypatch):
    monkeypatch.setattr(bits, "FEWEST", 0)
    op = pullback.function(formula)
    made = []
    monkeypatch.setattr(pullback.plans, "make_plan", _counting(pullback.plans.make_plan, made))
    for k in range(20):
        rows, columns = 11 + 3 * k, 20 + k
        inputs = live((rows, 5), (5, columns), (rows, columns))[: formula.__code__.co_argcount]
        out = op(*inputs)
        assert kept_in_bits(out) == (rows * columns + 7) // 8
        g = torch.randn(rows, columns)
        for mine, one in zip(grads(out, inputs, g), grads(formula(*inputs), inputs, g), strict=True):
            assert torch.allclose(mine, one, atol=1e-4)
        for mine, one in zip(
            grad(op(*inputs), inputs, g[None], is_grads_batched=True),
            grads(formula(*inputs), inputs, g),
            strict=True,
        ):
            assert torch.allclose(mine[0], one, atol=1e-4)
    assert len(made) < 12


def _counting(function, made):
    def counted(*args, **kwargs):
        made.append(1)
        return function(*args, **kwargs)

    return counted

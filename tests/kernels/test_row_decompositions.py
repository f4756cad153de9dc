"""log_softmax over rows, and losses of it, against PyTorch's kernels and float64."""

import pytest
import torch
import torch.nn.functional as F

import pullback
from pullback.kernels.native import lowered
from pullback.kernels.row_kernel import RowKernel

from .test_memory import graph_of

aten = torch.ops.aten
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def mean(x, k, w):
    return F.cross_entropy(x, k)


def weighted(x, k, w):
    return F.cross_entropy(x, k, weight=w)


def summed(x, k, w):
    return F.cross_entropy(x, k, weight=w, reduction="sum")


def each(x, k, w):
    return F.cross_entropy(x, k, weight=w, reduction="none")


def ignoring_a_class(x, k, w):
    return F.cross_entropy(x, k, ignore_index=3)


def alone(x, k, w):
    return F.log_softmax(x, -1)


def scored(x, k, w):
    y = F.log_softmax(x, -1)
    return F.nll_loss(y, k) + y.mean()


LOSSES = [mean, weighted, summed, each, ignoring_a_class, alone, scored]


def inputs(dtype, rows=70, columns=37):
    k = torch.randint(columns, (rows,))
    k[::9], k[1::11] = 3, -100
    if rows > 20:
        k[20] = columns - 1
    return (torch.randn(rows, columns).mul(4).to(dtype).requires_grad_(), k, torch.rand(columns).to(dtype))


def value_and_gradient(function, x, k, w):
    y = function(x, k.clamp(min=0) if function is ignoring_a_class else k, w)
    return y.detach(), *torch.autograd.grad(y, x, torch.linspace(0.5, 1, max(y.numel(), 1)).view(y.shape).to(y.dtype))


def error(computed, truth):
    return float((computed.double() - truth).abs().max()) / float(truth.abs().max())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("loss", LOSSES, ids=lambda f: f.__name__)
@pytest.mark.few(9)
def test_losses_are_as_accurate_as_pytorchs(native, loss, dtype):
    x, k, w = inputs(dtype)
    op = pullback.function(stable=False, backend="native")(loss)
    ours, theirs = value_and_gradient(op, x, k.clamp(min=0), w), value_and_gradient(loss, x, k.clamp(min=0), w)
    truth = value_and_gradient(loss, x.detach().double().requires_grad_(), k.clamp(min=0), w.double())
    for mine, native_one, exact in zip(ours, theirs, truth, strict=True):
        assert mine.dtype == dtype
        assert error(mine, exact) <= 2 * error(native_one, exact) + 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize("loss", [mean, weighted, ignoring_a_class], ids=lambda f: f.__name__)
def test_uint8_class_indices(native, loss):
    """`weight[k]` takes a uint8 index for a mask, and 156 is -100 in 8 bits."""
    x, _, w = inputs(torch.float32, columns=200)
    k = torch.randint(150, 160, (len(x),))
    op = pullback.function(stable=False, backend="native")(loss)
    torch.testing.assert_close(value_and_gradient(op, x, k.byte(), w), value_and_gradient(loss, x, k, w))


@pytest.mark.parametrize("loss", [mean, weighted, summed, each], ids=lambda f: f.__name__)
def test_ignored_rows_have_zero_gradient(native, loss):
    x, k, w = inputs(torch.float32)
    op = pullback.function(stable=False, backend="native")(loss)
    ours, theirs = value_and_gradient(op, x, k, w), value_and_gradient(loss, x, k, w)
    assert torch.allclose(ours[0], theirs[0])
    assert torch.allclose(ours[1], theirs[1], atol=1e-7)
    assert not ours[1][k == -100].any()


def test_loss_of_ignored_rows_alone_is_nan(native):
    x, k, w = inputs(torch.float32)
    op = pullback.function(stable=False, backend="native")(mean)
    y, g = value_and_gradient(op, x, torch.full_like(k, -100), w)
    assert y.isnan()
    assert not g.any()


@pytest.mark.parametrize("special", [float("-inf"), float("inf"), float("nan"), 3e38, -3e38])
def test_infinite_and_nan_logits_match_pytorch(native, special):
    x, k, w = inputs(torch.float32)
    k = k.clamp(min=0)
    with torch.no_grad():
        x[2, 5], x[4] = special, special
        x[6, :30] = special
    op = pullback.function(stable=False, backend="native")(each)
    ours, theirs = value_and_gradient(op, x, k, w), value_and_gradient(each, x, k, w)
    for mine, native_one in zip(ours, theirs, strict=True):
        assert torch.allclose(mine, native_one, equal_nan=True, rtol=1e-5, atol=1e-6)


def test_second_derivatives_pass_gradgradcheck(native):
    op = pullback.function(stable=False, backend="native")(mean)
    x, k, w = inputs(torch.float64, 9, 16)
    assert torch.autograd.gradgradcheck(lambda x: op(x, k.clamp(min=0), w), x)


def test_loss_gradient_is_not_materialised(native):
    """The backward graph has neither of PyTorch's two ops, but a row kernel."""
    x, k, _ = inputs(torch.float32)
    x = x.detach()

    def backward(x, k):
        y = F.log_softmax(x, -1)
        _, total = aten.nll_loss_forward(y, k, None, 1, -100)
        g = aten.nll_loss_backward(torch.ones(()), y, k, None, 1, -100, total)
        return [aten._log_softmax_backward_data(g, y, 1, x.dtype)]

    module = lowered([graph_of(backward, x, k)], [False])[0]
    targets = [node.target for node in module.graph.nodes]
    assert not {aten.nll_loss_backward.default, aten._log_softmax_backward_data.default}.intersection(targets)
    assert any(isinstance(getattr(target, "kernel", None), RowKernel) for target in targets)


@pytest.mark.parametrize("dim", [0, 1])
def test_softmax_over_another_dimension_is_left_to_pytorch(native, dim):
    x = torch.randn(20, 30, 40)
    module = lowered([graph_of(lambda x: [F.log_softmax(x, dim)], x)], [False])[0]
    assert aten._log_softmax.default in [node.target for node in module.graph.nodes]

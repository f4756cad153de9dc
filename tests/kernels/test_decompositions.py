"""Decompositions into ops that share common subexpressions."""

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

import pullback
from pullback.kernels.decompositions import decompose
from pullback.kernels.eager import lower
from pullback.kernels.native import is_kernel, lowered

aten = torch.ops.aten


def focal(x, y):
    p = torch.sigmoid(x)
    return -y * (1 - p).square() * F.logsigmoid(x) - (1 - y) * p.square() * F.logsigmoid(-x)


def graph_of(function, *given):
    return make_fx(lambda *xs: [function(*xs)], tracing_mode="fake")(*given)


def test_log_sigmoids_of_both_signs_share_one_exponential(native):
    x, y = torch.randn(300), torch.rand(300)
    module = lowered([graph_of(focal, x, y)], [False])[0]
    (kernel,) = [node.target.kernel for node in module.graph.nodes if is_kernel(node.target)]
    assert kernel.source.count("exp(") == kernel.source.count("log1p(") == 1
    assert torch.allclose(lower(module)(x, y)[0], focal(x, y))


def test_loss_with_log_sigmoids_saves_only_its_inputs(native):
    op = pullback.function(stable=False, backend="native")(focal)
    x = torch.randn(40, requires_grad=True)
    assert [kept.name for kept in op.saved(x, torch.rand(40))] == ["x", "y"]


@pytest.mark.parametrize("function", [F.logsigmoid, F.softplus, F.mish, lambda x: torch.tanh(F.softplus(x))])
@pytest.mark.few(2)
def test_decomposed_derivatives_match_pytorch(native, function):
    @pullback.function(stable=False, backend="native")
    def op(x):
        return function(x) * 2

    x = torch.randn(600, dtype=torch.float64) * 9
    x = torch.cat([x, torch.tensor([0.0, 20.5, 40.0, -800.0], dtype=torch.float64)]).requires_grad_()
    for f, g in zip(orders(op, x), orders(lambda x: function(x) * 2, x), strict=True):
        assert torch.allclose(f, g, rtol=1e-12, atol=1e-14)


def orders(function, x):
    """Return a value and its first two derivatives."""
    y = function(x)
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return y, first, *torch.autograd.grad(first.sum(), x)


def test_tanh_of_softplus_is_as_accurate_as_written(native):
    bits = torch.arange(-(2**31), 2**31, 40_009).to(torch.int32)
    x = torch.cat([bits.view(torch.float32), torch.linspace(-12, 12, 50_001)])
    x = x[x.isfinite()]
    got = lower(lowered([graph_of(lambda x: torch.tanh(F.softplus(x)), x)], [False])[0])(x)[0]
    exact = torch.tanh(x.double().clamp_min(0) + torch.log1p(torch.exp(-x.double().abs())))
    normal = exact > 1e-37
    spacing = 2.0 ** (torch.frexp(exact[normal].float()).exponent.double() - 24)
    ours, written = (
        ((y[normal].double() - exact[normal]).abs() / spacing).max() for y in (got, torch.tanh(F.softplus(x)))
    )
    assert ours <= min(2.0, written)


@pytest.mark.parametrize(("beta", "threshold"), [(2.0, 20.0), (1.0, 3.0)])
def test_tanh_of_softplus_with_other_beta_or_threshold(native, beta, threshold):
    x = torch.linspace(-5, 5, 101)
    got = lower(lowered([graph_of(lambda x: torch.tanh(F.softplus(x, beta, threshold)), x)], [False])[0])(x)[0]
    assert torch.allclose(got, torch.tanh(F.softplus(x, beta, threshold)), rtol=1e-6)


def test_empty_log_sigmoid_is_not_decomposed():
    graph = graph_of(F.logsigmoid, torch.randn(0))
    assert [node.target for node in decompose(graph).graph.nodes if node.op == "call_function"][:1] == [
        aten.log_sigmoid_forward.default
    ]

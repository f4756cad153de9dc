"""Row kernels: reductions over the last dimension fused with pointwise ops, against float64 and PyTorch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pullback
from pullback.kernels.eager import lower
from pullback.kernels.native import lowered
from pullback.kernels.row_kernel import RowKernel
from pullback.kernels.rows import row_regions_of

from .test_native import graph_of, native_for_hypothesis, tensors_like  # noqa: F401


def rms_norm(x, w):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w


def layer_norm(x, w, b):
    d = x - x.mean(-1, keepdim=True)
    return d * torch.rsqrt((d * d).mean(-1, keepdim=True) + 1e-5) * w + b


def softmax(x):
    e = torch.exp(x - x.amax(-1, keepdim=True).detach())
    return e / e.sum(-1, keepdim=True)


def log_sum_exp(x):
    top = x.amax(-1).detach()
    return torch.log(torch.exp(x - top.unsqueeze(-1)).sum(-1)) + top


def spread(x):
    return (x - x.amin(-1, keepdim=True).detach()).sum(-1) * x[..., 0]


FORMULAS = [(rms_norm, 2), (layer_norm, 3), (softmax, 1), (log_sum_exp, 1), (spread, 1)]
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def row_kernels_in(module):
    return [n.target.kernel for n in module.graph.nodes if isinstance(getattr(n.target, "kernel", None), RowKernel)]


def value_and_gradients(function, tensors):
    leaves = [t.clone().requires_grad_() for t in tensors]
    y = function(*leaves)
    g = torch.linspace(-1, 1, y.numel()).view(y.shape).to(y.dtype)
    return [y.detach(), *torch.autograd.grad(y, leaves, g)]


def error(computed, truth):
    return float((computed.double() - truth).abs().max()) / float(truth.abs().max())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("formula", "count"), FORMULAS, ids=lambda f: getattr(f, "__name__", ""))
@pytest.mark.few(3)
def test_value_and_gradients_are_as_accurate_as_the_formula(native, formula, count, dtype):
    tensors = [t.to(dtype) for t in (torch.randn(3, 5, 37), torch.randn(37), torch.randn(37))[:count]]
    ours = value_and_gradients(pullback.function(formula), tensors)
    theirs = value_and_gradients(formula, tensors)
    truth = value_and_gradients(formula, [t.double() for t in tensors])
    for mine, native_one, exact in zip(ours, theirs, truth, strict=True):
        assert mine.dtype == dtype
        slack = 64 if dtype == torch.float64 else 4  # float64 is its own truth
        assert error(mine, exact) <= 2 * error(native_one, exact) + slack * torch.finfo(dtype).eps


@pytest.mark.slow
def test_second_derivatives_pass_gradgradcheck(native):
    op = pullback.function(rms_norm)
    x, w = torch.randn(8, 16, dtype=torch.float64), torch.randn(16, dtype=torch.float64)
    assert torch.autograd.gradgradcheck(op, (x.requires_grad_(), w.requires_grad_()))


@pytest.mark.parametrize(("formula", "count"), FORMULAS, ids=lambda f: getattr(f, "__name__", ""))
def test_row_formula_is_one_kernel(native, formula, count):
    tensors = [torch.randn(3, 5, 37), torch.randn(37), torch.randn(37)][:count]
    module = lowered([graph_of(lambda *xs: [formula(*xs)], *tensors)], [False])[0]
    (kernel,) = row_kernels_in(module)
    calls = [node for node in module.graph.nodes if node.op == "call_function" and node.target is not kernel.call]
    assert {str(node.target) for node in calls} <= {"aten.select.int", "aten.mul.Tensor"}


def test_exact_graph_has_no_row_kernels(native):
    graph = graph_of(lambda x: [softmax(x)], torch.randn(16, 16))
    assert row_kernels_in(lowered([graph], [True])[0]) == []


@pytest.mark.parametrize("size", [(4, 64), (64, 8), (0, 64), (64,)])
def test_few_or_short_rows_are_left_to_pytorch(native, size):
    op = pullback.function(lambda x: x.exp() / x.exp().sum(-1, keepdim=True))
    x = torch.randn(size, requires_grad=True)
    assert row_regions_of(graph_of(lambda x: [x.exp().sum(-1, keepdim=True) + 1], x.detach()).graph) == []
    torch.testing.assert_close(op(x), x.exp() / x.exp().sum(-1, keepdim=True))


def test_nan_and_infinity_propagate_as_in_pytorch(native):
    """Through sums, means and extremes."""
    rows = torch.randn(8, 35)
    rows[0, 3], rows[1, 34], rows[2, 7], rows[3, 0] = torch.nan, torch.inf, -torch.inf, torch.nan
    rows[3, 20], rows[4, 1], rows[4, 33] = torch.inf, torch.inf, -torch.inf

    def some(x):
        y = x * 2
        return [y.sum(-1), y.mean(-1, keepdim=True), y.amax(-1), y.amin(-1, keepdim=True)]

    module = lowered([graph_of(some, rows)], [False])[0]
    assert len(row_kernels_in(module)) == 1
    for ours, theirs in zip(lower(module)(rows), some(rows), strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True)


def test_per_row_and_per_column_operands_are_distinguished(native):
    """In a square matrix their sizes are the same."""

    def square(x, b):
        s = x.sum(-1)
        return [s * b, x + b, x + s, x + s[:, None], s.view(1, 16).expand(16, 16) + x]

    x, b = torch.randn(16, 16), torch.randn(16)
    module = lowered([graph_of(square, x, b)], [False])[0]
    assert row_kernels_in(module)
    for ours, theirs in zip(lower(module)(x, b), square(x, b), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_row_and_pointwise_regions_do_not_depend_on_each_other(native):
    def crossed(x, y):
        a, b = torch.exp(x) + 1, torch.exp(y) + 1
        s = (a * 2).sum(-1, keepdim=True)
        c = torch.linalg.norm(s + b[:, :1])
        return [(b * c).sum(-1), a * c + s, (x * b.amax(-1, keepdim=True)).sum(-1)]

    x, y = torch.randn(16, 16), torch.randn(16, 16)
    module = lowered([graph_of(crossed, x, y)], [False])[0]
    for ours, theirs in zip(lower(module)(x, y), crossed(x, y), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_regions_of_different_shapes(native):
    def two(x, y):
        return [torch.exp(x).sum(-1) * 2, torch.exp(y).mean(-1, keepdim=True) + y, x.sum(-1)[:8] + y.sum(-1)]

    x, y = torch.randn(9, 20), torch.randn(8, 30)
    module = lowered([graph_of(two, x, y)], [False])[0]
    assert len(row_kernels_in(module)) == 2
    for ours, theirs in zip(lower(module)(x, y), two(x, y), strict=True):
        torch.testing.assert_close(ours, theirs)


@settings(max_examples=8)
@given(data=st.data())
@pytest.mark.slow
def test_drawn_layouts_match_pytorch(native_for_hypothesis, data):  # noqa: F811
    is_read_right(data)


@pytest.mark.slow
@settings(max_examples=150)
@given(data=st.data())
def test_many_drawn_layouts_match_pytorch(native_for_hypothesis, data):  # noqa: F811
    is_read_right(data)


def is_read_right(data):
    """Assert that a row kernel agrees with PyTorch on tensors of drawn layouts and broadcast shapes."""
    shape = [*data.draw(st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=3)), 8]
    shape = [*shape, data.draw(st.sampled_from([16, 17, 33]))]
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))

    def mixed(x, y, z):
        s = (x * y).sum(-1, keepdim=True)
        return [s + z, x * s + y, (y - s).amax(-1)]

    made_of = [torch.randn(shape, dtype=dtype) for _ in range(3)]
    run = lower(lowered([graph_of(mixed, *made_of)], [False])[0])
    # drawn strides, with the sizes of the example
    given_ = [data.draw(tensors_like(shape, dtype)).expand(shape) for _ in range(3)]
    for tensors in (made_of, given_):
        for ours, theirs in zip(run(*tensors), mixed(*(t.double() for t in tensors)), strict=True):
            scale = float(theirs.abs().max())
            assert float((ours.double() - theirs).abs().max()) <= (1e-6 if dtype == torch.float32 else 1e-13) * scale
    # broadcast sizes
    small = [torch.randn(shape, dtype=dtype), *(data.draw(tensors_like(shape, dtype)) for _ in range(2))]
    run = lower(lowered([graph_of(mixed, *small)], [False])[0])
    for ours, theirs in zip(run(*small), mixed(*(t.double() for t in small)), strict=True):
        assert ours.shape == theirs.shape
        assert float((ours.double() - theirs).abs().max()) <= 1e-6 * float(theirs.abs().max())


def test_sum_of_an_efficient_zero_tensor_is_in_no_region(native):
    """The derivative of `floor` is an efficient zero tensor, which has no memory."""
    x = torch.randn(64, 32, dtype=torch.float64).requires_grad_()
    op = pullback.function(lambda x: x.log_softmax(-1).floor())
    (g,) = torch.autograd.grad(op(x).sum(), x)
    assert torch.equal(g, torch.zeros_like(x))


def test_zeros_like_does_not_end_a_region(native):
    def function(x):
        half = x - x.sum(-1, keepdim=True)
        whole = half.exp() + torch.zeros_like(half)
        return [whole - whole.sum(-1, keepdim=True)]

    regions = row_regions_of(graph_of(function, torch.randn(40, 20)).graph)
    assert len(regions) == 1
    assert sum(node.target is torch.ops.aten.sum.dim_IntList for node in regions[0].nodes) == 2

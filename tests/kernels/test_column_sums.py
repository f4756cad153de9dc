"""Sums over rows, one for each column, are fused into the loop that computes or reads their terms."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pullback
from pullback.kernels.eager import lower
from pullback.kernels.native import lowered as made_of

from .test_native import graph_of, native_for_hypothesis, tensors_like  # noqa: F401
from .test_rows import layer_norm, rms_norm, row_kernels_in, value_and_gradients
from .test_sums import left, lowered, normal

NORMS = pytest.mark.parametrize(("formula", "count"), [(rms_norm, 2), (layer_norm, 3)], ids=["rms", "layer"])
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def require_near(got, exact, terms, dtype):
    """Close up to a few roundings of the terms and one of the sum, relative to the sum of magnitudes."""
    assert got.shape == exact.shape
    assert got.dtype == dtype
    narrow = torch.finfo(dtype).eps * (0.51 if dtype.itemsize == 2 else 0)  # and the arithmetic is that of float32
    wide = 4 * torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    assert bool(((got.double() - exact).abs() <= narrow * exact.abs() + wide * terms + 1e-30).all())


FUNCTIONS = {
    "sum": lambda x, y: [(x * y + x).sum(0)],
    "mean, kept": lambda x, y: [(x * y - y).mean(0, keepdim=True)],
    "two, what they sum and the sum of all": lambda x, y: [(z := x * y), z.sum(0), (z * x).sum(0), z.sum()],
    "of an input": lambda x, y: [x.sum(0), x * y + x, y.sum()],
}
OVER_ROWS = {
    "beside reductions over columns": lambda x, y: [(x * y).sum(1), (x * y * y).sum(0), y.sum(0), x * y.amax(1, True)],
    "after one": lambda x, y: [((x - x.mean(1, keepdim=True)) * y).sum(0)],
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *((name, shape) for name in FUNCTIONS for shape in [(200, 1), (1000, 3)]),
        *((name, shape) for name in FUNCTIONS | OVER_ROWS for shape in [(64, 16), (65, 37), (70, 1001), (97, 4500)]),
    ],
    ids=str,
)
@pytest.mark.few(32)
def test_column_sums_match_float64(native, name, shape, dtype):
    x, y = normal(*shape, dtype=dtype), normal(*shape, dtype=dtype, seed=1)
    function = (FUNCTIONS | OVER_ROWS)[name]
    graph, run = lowered(function, x, y)
    assert not left(graph)
    sizes = FUNCTIONS["sum"](x.double().abs() + 1, y.double().abs() + 1)[0]
    for got, exact in zip(run(x, y), function(x.double(), y.double()), strict=True):
        if exact.numel() == shape[1]:
            require_near(got, exact, 8 * sizes.view(exact.shape), dtype)
        else:
            assert (got.double() - exact).abs().max() <= 8 * torch.finfo(dtype).eps * exact.abs().max() + 1e-2


@pytest.mark.parametrize(
    ("shape", "dims"),
    [((8, 9, 20), (0, 1)), ((80, 4, 5), 0), ((70, 1, 6), (0, 1)), ((1, 80, 3, 1), (0, 1)), ((2, 3, 64, 18), (2, 0, 1))],
    ids=str,
)
@pytest.mark.parametrize("keepdim", [True, False])
def test_column_sums_over_several_dimensions(native, shape, dims, keepdim):
    x = normal(*shape)
    graph, run = lowered(lambda x: [(x * x + 1).sum(dims, keepdim=keepdim)], x)
    assert not left(graph)
    exact = (x.double().square() + 1).sum(dims, keepdim=keepdim)
    require_near(run(x)[0], exact, exact, torch.float32)


def test_column_sums_of_channels_last_tensors(native):
    x = normal(4, 7, 5, 6).contiguous(memory_format=torch.channels_last)
    graph, run = lowered(lambda x: [x * x + 1, (x * x + 1).sum((0, 2, 3), keepdim=True)], x)
    assert not left(graph)
    y, s = run(x)
    assert y.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(s, (x * x + 1).sum((0, 2, 3), keepdim=True))


@pytest.mark.parametrize(
    ("shape", "dims"), [((1, 500), (0,)), ((8, 500), (0,)), ((100, 30, 4), (1,)), ((100, 30, 4), (0, 2))], ids=str
)
def test_sums_of_few_rows_and_inner_dimensions_are_left_to_pytorch(native, shape, dims):
    x = normal(*shape)
    graph, run = lowered(lambda x: [(x * x + 1).sum(dims)], x)
    assert left(graph)
    torch.testing.assert_close(run(x)[0], (x * x + 1).sum(dims))


def test_exact_graph_leaves_sums_to_pytorch(native):
    x = normal(100, 20)
    graph, run = lowered(lambda x: [(x * x + x).sum(0)], x, exact=True)
    assert left(graph)
    assert torch.equal(run(x)[0], (x * x + x).sum(0))


@pytest.mark.parametrize(
    ("formula", "count"), [(rms_norm, 2), (layer_norm, 3)], ids=lambda f: getattr(f, "__name__", "")
)
def test_backward_of_a_norm_is_one_kernel(native, formula, count):
    tensors = [normal(100, 40), normal(40, seed=1), normal(40, seed=2)][:count]

    def gradients(g, *tensors):
        return list(torch.func.vjp(formula, *tensors)[1](g))

    module = made_of([graph_of(gradients, normal(100, 40, seed=3), *tensors)], [False])[0]
    assert len(row_kernels_in(module)) == 1
    assert not left(module.graph)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("formula", "count"), [(rms_norm, 2), (layer_norm, 3)], ids=lambda f: getattr(f, "__name__", "")
)
@pytest.mark.few(2)
def test_norm_gradients_are_as_accurate_as_pytorchs(native, formula, count, dtype):
    tensors = [normal(*size, dtype=dtype) for size in ((20, 30, 37), (37,), (37,))[:count]]
    ours = value_and_gradients(pullback.function(formula), tensors)
    theirs = value_and_gradients(formula, tensors)
    truth = value_and_gradients(formula, [t.double() for t in tensors])
    for mine, native_one, exact in zip(ours, theirs, truth, strict=True):
        errors = [float((a.double() - exact).abs().max()) for a in (mine, native_one)]
        assert errors[0] <= 2 * errors[1] + 64 * torch.finfo(torch.float64).eps * float(exact.abs().max())


def test_gradients_of_per_column_scale_and_bias(native):
    def scaled(x, scale, bias):
        return torch.tanh(x * scale + bias)

    tensors = normal(30, 50, 7), normal(7), normal(50, 7)
    exact = value_and_gradients(scaled, [t.double() for t in tensors])
    for ours, theirs in zip(value_and_gradients(pullback.function(scaled), tensors), exact, strict=True):
        assert ours.shape == theirs.shape
        assert float((ours.double() - theirs).abs().max()) <= 1e-5 * float(theirs.abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(2**16, 20), (2**16, 3)], ids=str)
def test_sum_of_many_rows_is_as_accurate_as_pytorchs(native, shape, dtype):
    """Of numbers of one sign, where a running sum in their own dtype is off by hundreds of ulps."""
    x = normal(*shape, dtype=dtype).abs() + 1
    exact = torch.tensor([math.fsum(column) for column in x.t().tolist()], dtype=torch.float64)
    graph, run = lowered(lambda x: [(x * 1).sum(0), x + 1], x)
    assert not left(graph)
    ours = run(x)[0]

    def worst(s):
        return float(((s.double() - exact) / exact).abs().max())

    assert worst(ours) <= max(worst(x.sum(0)), torch.finfo(dtype).eps)


def test_results_do_not_depend_on_the_number_of_threads(native):
    def both(x, y):
        return [(x * y).sum(0), (x * x.sum(1, keepdim=True)).sum(0), y.exp().add(1).sum(0)]

    x, y = normal(3000, 50), normal(3000, 50, seed=1)
    _, run = lowered(both, x, y)
    first, before = run(x, y), torch.get_num_threads()
    try:
        for threads in (1, 2, 3, 3):
            torch.set_num_threads(threads)
            assert all(map(torch.equal, run(x, y), first))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("rows", [False, True])
def test_non_finite_values_stay_in_their_column(native, value, rows):
    x = normal(100, 21)
    x[37, 20] = value
    got = lowered(lambda x: [(x * 2).sum(0), *([x.sum(1) * 2] if rows else [])], x)[1](x)[0]
    torch.testing.assert_close(got, (x * 2).sum(0), equal_nan=True)


def test_reader_of_a_sum_and_its_terms_runs_after_the_sum(native):
    def crossed(x, y):
        s = x.sum(0)
        t = (x * s + y).sum(0)
        return [x * y + 1, (x * t).exp().sum(0), s, (y * (x * y).sum(1, keepdim=True) * t).sum(0)]

    x, y = normal(100, 20), normal(100, 20, seed=1) / 100
    for inputs in ((x / 100, y), (y, x / 100)):
        exact = crossed(*(t.double() for t in inputs))
        for ours, theirs in zip(lowered(crossed, *inputs)[1](*inputs), exact, strict=True):
            torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@settings(max_examples=150)
@given(data=st.data())
def test_column_sums_of_drawn_layouts_match_pytorch(native_for_hypothesis, data):  # noqa: F811
    shape = [
        *data.draw(st.sampled_from([[64], [5, 13], [2, 1, 40], [4, 5, 6]])),
        data.draw(st.sampled_from([1, 3, 16, 33])),
    ]
    kept = data.draw(st.integers(1, len(shape) - 1))
    dims = list(range(len(shape) - kept))
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    with_rows = data.draw(st.booleans())

    def mixed(x, y, z):
        p = x * y + z
        return [
            p.sum(dims),
            (p * x).mean(dims, keepdim=True),
            *([p.sum(-1), p * p.amax(-1, True)] if with_rows else [p]),
        ]

    made = [torch.randn(shape, dtype=dtype) for _ in range(3)]
    small = [torch.randn(shape, dtype=dtype), *(data.draw(tensors_like(shape, dtype)) for _ in range(2))]
    strided = [data.draw(tensors_like(shape, dtype)).expand(shape) for _ in range(3)]
    for traced, tensors in ((made, made), (made, strided), (small, small)):
        run = lower(made_of([graph_of(mixed, *traced)], [False])[0])
        for ours, theirs in zip(run(*tensors), mixed(*(t.double() for t in tensors)), strict=True):
            assert ours.shape == theirs.shape
            worst = float((ours.double() - theirs).abs().max())
            assert worst <= (1e-5 if dtype == torch.float32 else 1e-13) * (1 + float(theirs.abs().max()))


@pytest.mark.parametrize(
    "formula",
    [
        lambda x: x.exp().sum(-1) * x,
        lambda x: x.exp().mean(0) * x,
        lambda x: torch.softmax(x * x, -1) * x,
        lambda x: torch.log_softmax(x * x, -1) * x,
        lambda x: (x * x).sum((), keepdim=True) * x,
        lambda x: (x * x).amax(-1) * x,
        lambda x: torch.linalg.vector_norm(x * x, dim=-1) * x,
        lambda x: (x * x).cumsum(-1) * x,
    ],
)
@pytest.mark.few(3)
def test_scalar_is_reduced_over_its_last_dimension(native, formula):
    """PyTorch accepts dimension 0 or -1 of a scalar."""
    op, found = pullback.function(formula), []
    for function in (op, formula):
        x = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
        y = function(x)
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        found.append(torch.stack([y, g, torch.autograd.grad(g, x)[0]]))
    torch.testing.assert_close(*found, rtol=1e-12, atol=0)

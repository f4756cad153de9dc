"""Full reductions are fused into the loop that computes their terms."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from pullback._torch import trace_ops
from pullback.kernels import native
from pullback.kernels.eager import lower

aten = torch.ops.aten
SUMS = (aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim)


def lowered(function, *inputs, exact=False):
    """The graph with kernels, and a function that runs it."""
    graph = make_fx(lambda *xs: list(function(*xs)), tracing_mode="fake")(*inputs)
    (module,) = native.lowered([graph], [exact])
    return module.graph, lower(module)


def left(graph):
    """Sums left to PyTorch's kernels."""
    return [node for node in graph.nodes if node.target in SUMS]


def normal(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


FUNCTIONS = {
    "sum": lambda x, y: [(x * y.exp()).sum()],
    "mean": lambda x, y: [(x - y).square().mean()],
    "all dimensions, kept": lambda x, y: [(x * y + 1).sum((0, 1), keepdim=True)],
    "two, and what is summed": lambda x, y: [(z := x * y.exp()), z.sum(), (z + x).mean()],
    "of another region": lambda x, y: [(z := x * y).sum(), (z / z.sum() + x).exp().sum()],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(3, 5), (1, 1000), (70, 1001)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_fused_sums_match_float64(name, shape, dtype):
    x, y = normal(*shape, dtype=dtype), normal(*shape, dtype=dtype, seed=1)
    graph, run = lowered(FUNCTIONS[name], x, y)
    assert not left(graph)
    for got, exact in zip(run(x, y), FUNCTIONS[name](x.double(), y.double()), strict=True):
        assert got.shape == exact.shape
        assert got.dtype == dtype
        scale = 8 * torch.finfo(dtype).eps * (x.double().abs() * y.double().exp() + 3).sum().clamp_min(1)
        assert (got.double() - exact).abs().max() <= scale


@pytest.mark.parametrize("size", [17, 256, 4096, 2**16, 2**20])
def test_at_most_16_terms_are_summed_in_float32(size):
    x = normal(size).abs()
    run = lowered(lambda x: [(x * x * x + x).sum()], x)[1]
    terms = (x * x * x + x).double()
    assert (run(x)[0].double() - terms.sum()).abs() <= 2.0**-24 * (
        0.5 + 1.5
    ) * terms.sum()  # half an ulp for the result, and the rounding of 16 terms


@pytest.mark.parametrize(
    "make",
    [
        lambda: (normal(40, 30).t(), normal(30, 40)),
        lambda: (normal(30, 40)[:, ::2], normal(30, 20)),
        lambda: (normal(30, 40), normal(40)),
        lambda: (normal(30, 40), normal(30, 1)),
        lambda: (normal(30, 1).expand(30, 40), normal()),
    ],
    ids=["transposed", "strided", "by column", "by row", "expanded and a number"],
)
def test_fused_sums_of_strided_inputs(make):
    x, y = make()
    graph, run = lowered(lambda x, y: [(x * y.exp()).sum()], x, y)
    assert not left(graph)
    exact = (x.double() * y.double().exp()).sum()
    assert run(x, y)[0].item() == pytest.approx(exact.item(), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("n", [2, 15, 17, 4095, 4097])
def test_padding_of_the_last_vector_is_not_summed(n):
    x = normal(n).abs() + 1
    (got,) = lowered(lambda x: [(1 / x).log().neg().reciprocal().add(1 / x).sum()], x)[1](x)
    assert got.item() == pytest.approx((1 / x.double().log() + 1 / x.double()).sum().item(), rel=1e-4)


def test_sum_does_not_depend_on_the_number_of_threads():
    x = normal(300_001)
    _, run = lowered(lambda x: [(x.exp() * x).sum()], x)
    before = torch.get_num_threads()
    try:
        found = set()
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found |= {run(x)[0].item() for _ in range(3)}
    finally:
        torch.set_num_threads(before)
    assert len(found) == 1


def test_large_float32_sum_is_as_accurate_as_in_float64():
    x = normal(1_000_003) + 1000
    (got,) = lowered(lambda x: [(x + 0.5).mean()], x)[1](x)
    assert got.item() == pytest.approx((x + 0.5).double().mean().item(), rel=6e-8)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_terms_propagate(value):
    x = normal(100)
    x[37] = value
    (got,) = lowered(lambda x: [(x * 2).sum()], x)[1](x)
    torch.testing.assert_close(got, torch.tensor(value), equal_nan=True)


def test_exact_graph_leaves_sums_to_pytorch():
    x = normal(1000)
    graph, run = lowered(lambda x: [(x * x + x).sum()], x, exact=True)
    assert left(graph)
    assert torch.equal(run(x)[0], (x * x + x).sum())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_of_16_bit_values_round_once(dtype):
    x = normal(2000, dtype=dtype)
    (got,) = lowered(lambda x: [(x * x).mean()], x)[1](x)
    exact = x.double().square().mean()
    assert got.dtype == dtype
    assert abs(got.item() - exact.item()) <= 0.51 * torch.finfo(dtype).eps * abs(exact.item())


def test_integer_and_casting_sums_are_left_to_pytorch():
    x, k = normal(4, 50), torch.arange(200).view(4, 50)
    assert left(lowered(lambda x, k: [(x * x).exp().sum(0), (k + k).sum()], x, k)[0])
    assert left(lowered(lambda x: [(x * x).sum(dtype=torch.float64)], x)[0])


def test_data_dependent_sizes_are_not_read():
    """Such as the size of `x[x > 0]`."""
    x = normal(50)
    graph = trace_ops(lambda x: [x[x > 0].sum(), (x * x + x).sum()], x)
    (module,) = native.lowered([graph], [False])
    got = lower(module)(x)
    torch.testing.assert_close(got, [x[x > 0].sum(), (x * x + x).sum()])

"""Discontinuous ops (extremes, comparisons, clipping) of computed values in compiled kernels, against PyTorch."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import grad

import pullback

pytestmark = pytest.mark.usefixtures("native")
T = torch.tanh


def less_largest(v):
    return v - v.amax(-1, keepdim=True)


def over_largest_size(v):
    return v / v.abs().amax(-1, keepdim=True)


def where_largest(v):
    return torch.where(v == v.amax(-1, keepdim=True), v, 0.1 * v)


def in_range(v):
    return (v - v.amin()) / (v.amax() - v.amin() + 1)


def polynomial(x):
    return x * x + x


EXTREMES = {
    f"{choice.__name__} of {function.__name__}": lambda x, choice=choice, function=function: choice(function(x))
    for function in (F.gelu, F.silu, torch.erf, polynomial, F.softplus)
    for choice in (less_largest, over_largest_size, where_largest, in_range)
}
OTHERS = {
    "amax": lambda x: F.gelu(x).amax(-1),
    "amin": lambda x: torch.erf(x).amin(-1),
    "amax of a polynomial": lambda x: (x * x + x).amax(-1),
    "amax of a cube": lambda x: (x**3 - x).amax(-1),
    "max": lambda x: T(x).max(),
    "max and index": lambda x: T(x).max(-1)[0],
    "first dimension": lambda x: F.silu(x).amax(0),
    "infinite norm": lambda x: T(x).norm(math.inf, dim=-1),
    "norm of 1": lambda x: T(x).norm(1, dim=-1),
    "log of sums": lambda x: less_largest(x * x + x).exp().sum(-1).log(),
    "mean taken off": lambda x: (x - x.mean(-1, keepdim=True)).abs().amax(-1),
    "product of rows": lambda x: F.gelu(x).square().amax(-1) * x.sum(-1),
    "relu6": lambda x: F.relu6(x * x * 3 + x),
    "hardtanh": lambda x: F.hardtanh(torch.sinh(x)),
    "leaky relu": lambda x: F.leaky_relu(T(x) - 0.1),
    "threshold": lambda x: F.threshold(T(x), 0.2, 0.1),
    "where": lambda x: torch.where(T(x) > 0.3, x * 2, x.exp()),
    "masked": lambda x: x.masked_fill(T(x) < 0.2, 0.0),
    "clamp": lambda x: T(x).clamp(-0.5, 0.5),
    "sorted": lambda x: T(x).sort(-1)[0] * torch.arange(x.shape[-1], dtype=x.dtype),
    "median": lambda x: T(x).median(-1)[0],
    "smallest": lambda x: T(x).kthvalue(1, -1)[0],
    "top": lambda x: T(x).topk(1, -1)[0],
    "running": lambda x: T(x).cummax(-1)[0],
    "sign": lambda x: torch.sign(T(x) - 0.1) * x,
    "rounded": lambda x: (x * 3.3).round() * x,
    "remainder": lambda x: torch.remainder(T(x) * 4, 1.0),
    "maximum": lambda x: torch.maximum(T(x), torch.sigmoid(x)),
    "ties": lambda x: torch.minimum(F.relu(T(x)), F.relu(x.sin())),
    "product": lambda x: F.relu(T(x)).prod(-1),
    "prelu": lambda x: F.prelu(T(x), x.new_tensor(0.3)),
    "drawn by values": lambda x: x * ((x * 7 + 3).frac().abs() > 0.5),
    "largest distance": lambda x: torch.cdist(T(x), x.sin(), p=math.inf),
    "pooled": lambda x: F.max_pool1d(T(x)[None], x.shape[-1])[0],
}
FORMULAS = EXTREMES | OTHERS
SHAPES = [(4, 5), (3, 7), (33, 10), (7, 13), (64, 64), (5, 1), (1, 17), (80, 128)]


def errors(mine, right):
    """Errors in ulps of the value, or of a hundredth of the largest value if that is more."""
    wide = right.double()
    size = wide.abs().clamp_min(wide.abs().max() / 100).clamp_min(torch.finfo(mine.dtype).tiny)
    return (mine.double() - wide).abs() / (size * torch.finfo(mine.dtype).eps)


def values(formula, x):
    x = x.clone().requires_grad_()
    out = formula(x)
    g = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(x.dtype)
    return out.detach(), grad(out, x, g)[0]


def check(name, shape, dtype):
    formula = FORMULAS[name]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    try:
        right, theirs = values(formula, x.double()), values(formula, x)
    except NotImplementedError:  # PyTorch has no such kernel
        return
    ours = values(pullback.function(formula), x)
    for mine, native, exact in zip(ours, theirs, right, strict=True):
        assert not (mine.isnan() & ~native.isnan()).any()
        # cancellation amplifies rounding; a decision that differs from both references is entirely wrong
        worse = errors(mine, exact) > 4 * errors(native, exact).max() + 8
        # float64 has no more exact reference: 1 − tanh² may differ by its cancellation, a decision by everything
        alike = 64 if dtype != torch.float64 else 2**16
        assert not (worse & (errors(mine, native) > alike)).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("amax", (7, 13)),
        ("amax of a polynomial", (33, 10)),
        ("amax of a polynomial", (16, 40)),
        ("over_largest_size of silu", (3, 7)),
        ("where_largest of polynomial", (16, 40)),
        ("infinite norm", (4, 5)),
    ],
)
@pytest.mark.few(5)
def test_extremes_of_computed_values_match_pytorch(name, shape, dtype):
    check(name, shape, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", FORMULAS)
def test_discontinuous_ops_match_pytorch(name, dtype):
    for shape in SHAPES:
        check(name, shape, dtype)


@pytest.mark.parametrize("shape", [(5, 7), (16, 40)])
def test_bfloat16_amax_selects_the_same_element_as_pytorch(shape):
    def largest(x):
        return (x * x * 3 + x).amax(-1)

    x = (torch.randn(shape, generator=torch.Generator().manual_seed(3)) * 4).bfloat16()
    (mine, gradient), (native, theirs) = values(pullback.function(largest), x), values(largest, x)
    assert torch.equal(mine, native)
    assert torch.equal(gradient == 0, theirs == 0)
    with torch.no_grad():
        assert torch.equal(pullback.function(largest)(x), native)  # the same value without grad


PROMOTED = {
    "difference": lambda x, z: x * x - z,
    "over the largest": lambda x, z: (x * 60000) * z,
    "chosen": lambda x, z: torch.where(z > 0, x * x * x, z),
    "quotient": lambda x, z: z / (x * x * x),
    "of a sum": lambda x, z: z - (x * x * x).sum(-1, keepdim=True),
    "fused": lambda x, z: torch.addcmul(z, x * x, x * x),
    "summed": lambda x, z: (x * x * x).cumsum(-1, dtype=torch.float32) - z,
    "complex": lambda x, z: ((x * x * x) * torch.complex(z, z)).real,
    "number of no dimension": lambda x, z: x * x * x - z.double(),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PROMOTED)
def test_16_bit_results_are_rounded_before_promotion(name, dtype):
    formula, random = PROMOTED[name], torch.Generator().manual_seed(2)
    x, z = torch.randn(7, 33, generator=random).to(dtype), torch.randn(7, 1, generator=random)
    mine, native = pullback.function(formula)(x.requires_grad_(), z), formula(x, z)
    assert (native.detach() != native.detach().to(dtype)).any()  # the result is not representable in 16 bits
    torch.testing.assert_close(mine, native, rtol=1e-5, atol=1e-6)


def test_filled_scalar_is_rounded_to_the_tensor_dtype():
    def chosen(x):
        return (x.masked_fill(x > 0, 0.3) * 3).abs()

    x = torch.randn(64).bfloat16()
    assert torch.equal(pullback.function(chosen)(x.requires_grad_()), chosen(x))

"""Reduced-precision functions of doubles: errors, where they apply, and vectors that are recomputed in full."""

import mpmath
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from pullback.kernels import build, source
from pullback.kernels.eager import lower
from pullback.kernels.native import lowered
from pullback.kernels.reduced_precision import ERRORS, reduced_region_of
from pullback.kernels.regions import regions_of

aten = torch.ops.aten

ROOTS = {"gelu": -0.7517915246935645, "gate": 0.6931471805599453, "swish": -1.2784645427610738}
"""Roots of the functions below."""


@pytest.fixture(autouse=True)
def _with_avx512(native):
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("short functions are written for AVX-512")


def gelu(x):
    z = x.double()
    return 0.5 * torch.erfc(-z * 0.5**0.5) + z * torch.exp(-z * z * 0.5) * 0.3989422804014327


def gate(x):
    s, t = torch.sigmoid(x.double()), torch.sigmoid(-x.double())
    return t.sqrt() * (s * t) - s * (s * 0.5 * t.sqrt())


def swish(x):
    s, t = torch.sigmoid(x.double()), torch.sigmoid(-x.double())
    return s + x.double() * (s * t)


FUNCTIONS = {"gelu": gelu, "gate": gate, "swish": swish}


def exact(name, x):
    """Return the value at a number in 60 digits."""
    with mpmath.workdps(60):
        x = mpmath.mpf(x)
        s, t = 1 / (1 + mpmath.exp(-x)), 1 / (1 + mpmath.exp(x))
        if name == "gelu":
            return mpmath.ncdf(x) + x * mpmath.npdf(x)
        return mpmath.sqrt(t) * (s * t - s * s / 2) if name == "gate" else s + x * s * t


def graph_of(function, *given):
    return make_fx(lambda *xs: [function(*xs)], tracing_mode="fake")(*given)


def region_of(function, *given):
    (region,) = regions_of(graph_of(function, *given).graph)
    return region


def kernel_of(function, *given):
    return lower(lowered([graph_of(function, *given)], [False])[0])


def around(number, count):
    """Return the floats next to a number, on both sides."""
    bits = torch.tensor(number).view(torch.int32) + torch.arange(-count, count, dtype=torch.int32)
    return bits.view(torch.float32)


def ulps(got, name, x):
    spacing = [2.0 ** (int(torch.frexp(torch.tensor(float(exact(name, a)))).exponent) - 24) for a in x.tolist()]
    errors = [abs(float(mpmath.mpf(g) - exact(name, a))) for g, a in zip(got.tolist(), x.tolist(), strict=True)]
    return torch.tensor(errors) / torch.tensor(spacing)


HEAD = '#include "types.h"\n#include "avx512.h"\n#include "functions.h"\n#include "short.h"\n'
LOOP = "  for (int64_t i = 0; i < n * m; i += LANES) store(y + i, short_{}(load(x + i)));\n"


@pytest.mark.parametrize("name", ["exp", "sigmoid", "mirrored_sigmoid", "erfc"])
def test_reduced_functions_are_within_their_error_bounds(name):
    text = f'{HEAD}extern "C" void run(const double* x, double* y, int64_t n, int64_t m) {{\n{LOOP.format(name)}}}\n'
    run = build.function_of(text, 2)
    generator = torch.Generator().manual_seed(0)
    scales = torch.tensor([1e-300, 1e-3, 1.0, 10.0, 30.0, 300.0, 700.0], dtype=torch.float64)
    x = torch.randn(7, 20_000, generator=generator, dtype=torch.float64).mul(scales[:, None]).reshape(-1)
    y = torch.empty_like(x)
    run(x.data_ptr(), y.data_ptr(), len(x), 1)
    right = torch.sigmoid(-x) if name == "mirrored_sigmoid" else getattr(torch, name)(x)
    if "sigmoid" in name:  # PyTorch's is zero where e^-x overflows
        right = torch.where(right > 0, right, torch.exp(-x.abs()))
    normal = right.isfinite() & (right > 1e-300)
    error = ((y - right) / right).abs()[normal].max()
    bound = ERRORS[getattr(aten, name.removeprefix("mirrored_")).default] * 2.0**-44
    assert bound / 64 < error <= bound
    assert torch.equal(y.isinf(), right.isinf())
    assert bool((y[right <= 1e-300] < 2e-300).all())
    special = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, 800.0, -800.0, 1e300, -1e300] * 2).double()
    run(special.data_ptr(), y.data_ptr(), 16, 1)
    right = torch.sigmoid(-special) if name == "mirrored_sigmoid" else getattr(torch, name)(special)
    assert torch.allclose(y[:16], right, rtol=1e-12, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_float32_results_are_rounded_as_well_as_from_float64(name):
    x = torch.cat([around(ROOTS[name], 160), torch.linspace(-12, 12, 320), torch.randn(384)])
    got = kernel_of(lambda x: FUNCTIONS[name](x).float(), x)(x)[0]
    assert reduced_region_of(region_of(lambda x: FUNCTIONS[name](x).float(), x)) is not None
    assert ulps(got, name, x).max() <= 0.6  # next to a root float64 itself has lost 24 bits


@pytest.mark.parametrize("name", FUNCTIONS)
def test_random_floats_match_the_full_functions(name, monkeypatch):
    generator = torch.Generator().manual_seed(1)
    bits = torch.randint(-(2**31), 2**31, (2**16,), generator=generator).to(torch.int32).view(torch.float32)
    x = torch.cat([bits, torch.randn(2**16, generator=generator) * 4, around(ROOTS[name], 2**12)])
    short = kernel_of(lambda x: FUNCTIONS[name](x).float(), x)(x)[0]
    monkeypatch.setattr(source, "reduced_region_of", lambda region: None)
    full = kernel_of(lambda x: FUNCTIONS[name](x).float(), x)(x)[0]
    differ = (short != full) & ~(short.isnan() & full.isnan())
    assert int(differ.sum()) <= 2**-9 * len(x)  # one in some thousands is that close to a tie
    close = torch.isclose(short[differ], full[differ], rtol=2.0**-23, atol=0)
    assert bool(close.all())


def test_cancellation_guard_is_needed_near_a_root():
    x = around(ROOTS["gelu"], 256)
    region = region_of(lambda x: gelu(x).float(), x)
    text = source.source_of(region, build.header()).text
    unguarded = text.replace("doubtful[k] = lost(", "doubtful[k] = M{}; lost(")
    assert unguarded != text
    y = torch.empty_like(x)
    build.function_of(unguarded, 3)(x.data_ptr(), y.data_ptr(), None, 1, len(x))
    assert ulps(y, "gelu", x).max() > 2


@pytest.mark.parametrize("size", [1, 15, 16, 17, 255, 256, 257, 4097])
def test_tails_strides_and_fully_doubtful_vectors(size):
    near, g = around(ROOTS["gelu"], size), torch.randn(size)
    function = kernel_of(lambda x, g: g * gelu(x).float(), near[::2], g)
    got = function(near[::2], g)[0]
    right = g * gelu(near[::2]).float()
    assert torch.allclose(got, right, rtol=3e-7, atol=0)


def test_overwritten_input_is_read_before_recomputation():
    x = around(ROOTS["gelu"], 2048)
    g = torch.randn(4096)
    run = lowered([graph_of(lambda x, g: g * gelu(x).float(), x, g)], [False])[0]
    (kernel,) = [node.target for node in run.graph.nodes if hasattr(node.target, "kernel")]
    assert (0, 0) in kernel.kernel.over
    right = g * gelu(x).float()
    own = x.clone()
    got = kernel.kernel.writing_over({0: 0})(own, g)
    assert got.data_ptr() == own.data_ptr()
    assert torch.allclose(got, right, rtol=3e-7, atol=0)


def refused(function, *given):
    return reduced_region_of(region_of(function, *given)) is None


def test_regions_that_admit_reduced_functions():
    x = torch.randn(32)
    one = reduced_region_of(region_of(lambda x: (x.double().exp() + 1).sqrt().float(), x))
    assert one is not None
    assert not one.guards  # terms of one sign
    two = reduced_region_of(region_of(lambda x: (1 - x.double().sigmoid()).float(), x))
    assert two is not None
    assert len(two.guards) == 1
    assert refused(lambda x: x.double().exp() * 2, x)  # the result is a double
    assert refused(lambda x: x.exp() * 2, x.double())
    assert refused(lambda x: x.exp() * 2, x)  # no doubles
    assert refused(lambda x: (x.double().exp() * 3).exp().float(), x)  # an error amplified by an unknown factor
    assert refused(lambda x: torch.where(x.double().exp() > 2, x, -x), x)  # a comparison
    assert refused(
        lambda x: (x.double().exp().float().double() - 1).float(), x
    )  # a float32 result that is widened again
    assert refused(lambda x: x.double().exp().float() - 1, x)  # a float32 result, possibly off by an ulp, in a sum
    assert refused(
        lambda x: ((x.double().exp() - 2) * x.double() - 3 - x.double()).float(), x
    )  # cancellation may lose too much

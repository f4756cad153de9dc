"""Elementary functions of the kernels: errors in ulp and special values, on AVX-512 and AVX2."""

import math

import flint
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from pullback.kernels import native
from pullback.kernels.eager import lower

NAMES = "exp expm1 log log1p sin cos sinh cosh tanh atan erf erfc sigmoid"
FUNCTIONS = {name: getattr(torch, name) for name in NAMES.split()}
BOUNDS = {"sin": 1.1, "cos": 1.1, "atan": 1.4, "sinh": 1.1, "erf": 1.1, "erfc": 1.4, "sigmoid": 2.0}
SPECIAL = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, -2.0, 1e-300, -1e-300, 5e-324, -5e-324, 1e300, -1e300]
SPECIAL += [1e-45, -1e-45, 3e38, -3e38, 1e17, -1e17, 1e-17, -1e-17, 88.8, -88.8, -104.0, -745.1, -745.2, 89.3, 709.7]


def ours(x):
    """Return the results of one kernel with all functions, by name."""
    graph = make_fx(lambda x: [function(x) for function in FUNCTIONS.values()], tracing_mode="fake")(x)
    return dict(zip(FUNCTIONS, lower(native.lowered([graph], [False])[0])(x), strict=True))


def assert_special(name, got, right, x):
    """Require exact infinities, NaN and signed zeros, and subnormal results to one step."""
    special = ~right.isfinite() | (right == 0)
    small = (right.abs() < torch.finfo(x.dtype).smallest_normal) & (x != 0)  # PyTorch's log1p is zero there, for one
    same = (got == right) & (got.signbit() == right.signbit()) | got.isnan() & right.isnan()
    assert bool((same | ~special | small).all()), (name, x[special & ~same])
    step = torch.finfo(x.dtype).smallest_normal * torch.finfo(x.dtype).eps
    if name != "sigmoid":  # 1 / (1 + e^-x), as PyTorch computes it, is zero where e^-x is infinite
        assert bool(((got.double() - right.double()).abs()[small] <= step).all()), name


def test_float32_functions_are_within_their_ulp_bounds(native, vectors):
    bits = torch.cat([torch.arange(-(2**31), 2**31, 40_009), torch.tensor(SPECIAL).view(torch.int32)])
    x = bits.to(torch.int32).view(torch.float32)
    for name, got in ours(x).items():
        exact = FUNCTIONS[name](x.double())
        right = exact.float()
        assert_special(name, got, right, x)
        normal = right.isfinite() & (right.abs() > 1e-37)
        spacing = 2.0 ** (torch.frexp(right[normal]).exponent.double() - 24)
        error = (got[normal].double() - exact[normal]).abs() / spacing
        assert error.max() <= BOUNDS.get(name, 1.0), (name, x[normal][error.argmax()])


def exact_of(name, x):
    """Return the value of a function in Arb."""
    return 1 / (1 + (-x).exp()) if name == "sigmoid" else getattr(x, name)()


def test_float64_functions_are_within_their_ulp_bounds(native, vectors):
    random = torch.Generator().manual_seed(1)
    bits = torch.randint(-(2**63), 2**63 - 1, (500,), generator=random).view(torch.float64)
    usual = torch.randn(3000, dtype=torch.float64, generator=random) * 2 ** torch.linspace(-60, 9, 3000).double()
    near = 1 + 0.5 * torch.randn(3000, dtype=torch.float64, generator=random)
    x = torch.cat([torch.tensor(SPECIAL, dtype=torch.float64), bits, usual, near])
    precision, flint.ctx.prec = flint.ctx.prec, 140
    try:
        for name, got in ours(x).items():
            right = FUNCTIONS[name](x)
            assert_special(name, got, right, x)
            normal = x.isfinite() & right.isfinite() & (right.abs() > 1e-307)
            for at, y in zip(x[normal].tolist(), got[normal].tolist(), strict=True):
                error = abs(float((exact_of(name, flint.arb(at)) - y) / math.ulp(y)))
                assert error <= BOUNDS.get(name, 1.0), (name, at, error)
    finally:
        flint.ctx.prec = precision

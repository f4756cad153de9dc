"""Each lowered op against PyTorch's kernel: bit for bit where IEEE 754 fixes the result, in ulp elsewhere."""

import functools
import math

import mpmath
import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from pullback.kernels import lowerings, native, regions
from pullback.kernels.decompositions import decompose
from pullback.kernels.eager import lower

aten = torch.ops.aten
SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    2.0,
    3.0,
    -3.0,
    20.0,
    -20.0,
    88.8,
    -88.8,
    -104.0,
    1e-5,
    -1e-30,
    1e-40,
    1e30,
    -1e37,
]
SPECIAL += [3e38, -3e38, 1e300, -1e308, math.inf, -math.inf, math.nan]

UNARY = {
    name: getattr(torch, name)
    for name in [
        "abs",
        "neg",
        "exp",
        "exp2",
        "expm1",
        "log",
        "log1p",
        "log2",
        "log10",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "asinh",
        "acosh",
        "atanh",
        "erf",
        "erfc",
        "lgamma",
        "floor",
        "ceil",
        "trunc",
        "frac",
        "sign",
        "round",
        "relu",
        "sigmoid",
        "square",
        "logit",
    ]
} | {
    "sgn": torch.sgn,
    "i0": torch.special.i0,
    "i0e": torch.special.i0e,
    "i1": torch.special.i1,
    "i1e": torch.special.i1e,
    "silu": F.silu,
    "mish": F.mish,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "elu": lambda x: F.elu(x, 0.7),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.7),
    "softplus": lambda x: F.softplus(x, 2.0, 15.0),
    "tanh of softplus": lambda x: torch.tanh(F.softplus(x)),
    "logsigmoid": F.logsigmoid,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1),
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 2.0),
    "threshold": lambda x: F.threshold(x, 0.3, 7.0),
    **{f"power {e}": (lambda x, e=e: x**e) for e in (0.5, 1, 2, 3, -0.5, -1, -2, 1.7, 4)},
    "to a power": lambda x: 2.0**x,
    "rsub": lambda x: 3 - x,
    "clamp": lambda x: x.clamp(-1.0, 2.0),
    "clamp from below": lambda x: x.clamp(min=0.1),
    "clamp_min": lambda x: torch.clamp_min(x, 0.1),
    "clamp_max": lambda x: torch.clamp_max(x, 0.1),
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "masked_fill": lambda x: x.masked_fill(x > 1, 7.0),
    "where": lambda x: torch.where(x > 0, x, -2 * x),
    "not": lambda x: ~(x > 0),
    "logical_not": lambda x: torch.logical_not(x > 0),
    "to float64": lambda x: x.double() + 1,
    "to float32": lambda x: x.float() + 1,
    "to bfloat16": lambda x: x.bfloat16(),
    "to float16": lambda x: x.half(),
    "truth": lambda x: (x > 0) * x,
    "full_like": lambda x: x + torch.full_like(x, 0.1),
    "ones_like": lambda x: x + torch.ones_like(x),
}
BINARY = {
    **{
        name: getattr(torch, name)
        for name in [
            "add",
            "sub",
            "mul",
            "div",
            "maximum",
            "minimum",
            "atan2",
            "hypot",
            "logaddexp",
            "xlogy",
            "lt",
            "le",
            "gt",
            "ge",
            "eq",
            "ne",
        ]
    },
    "pow": torch.pow,
    "xlog1py": torch.special.xlog1py,
    "alpha": lambda x, y: torch.add(x, y, alpha=3),
    "less alpha": lambda x, y: torch.sub(x, y, alpha=0.3),
    "addcmul": lambda x, y: torch.addcmul(x, y, y, value=0.3),
    "addcdiv": lambda x, y: torch.addcdiv(x, y, x, value=0.3),
    "and": lambda x, y: (x > 0) & (y > 0),
    "or": lambda x, y: torch.logical_or(x > 0, y > 0),
    "xor": lambda x, y: (x > 0) ^ (y > 0),
    "logical_xor": lambda x, y: torch.logical_xor(x > 0, y > 0),
    "logical_and": lambda x, y: torch.logical_and(x > 0, y > 0),
    "bitwise_or": lambda x, y: (x > 0) | (y > 0),
    "where of truths": lambda x, y: torch.where(x > y, x > 0, y > 0),
    "sigmoid_backward": aten.sigmoid_backward,
    "tanh_backward": aten.tanh_backward,
    "silu_backward": aten.silu_backward,
    "mish_backward": aten.mish_backward,
    "gelu_backward": aten.gelu_backward,
    "gelu_backward tanh": lambda g, x: aten.gelu_backward(g, x, approximate="tanh"),
    "logsigmoid_backward": lambda g, x: aten.log_sigmoid_backward(g, x, torch.exp(-x.abs())),
    "softplus_backward": lambda g, x: aten.softplus_backward(g, x, 2.0, 15.0),
    "leaky_relu_backward": lambda g, x: aten.leaky_relu_backward(g, x, 0.1, False),
    "threshold_backward": lambda g, x: aten.threshold_backward(g, x, 0.5),
    "hardtanh_backward": lambda g, x: aten.hardtanh_backward(g, x, -0.5, 2.0),
    "elu_backward": lambda g, x: aten.elu_backward(g, 0.7, 1.1, 0.9, False, x),
    "elu_backward of the result": lambda g, x: aten.elu_backward(g, 0.7, 1.1, 0.9, True, x),
    "logit_backward": lambda g, x: aten.logit_backward(g, x),
}
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def inputs(dtype, count):
    random = torch.Generator().manual_seed(1)
    usual = torch.randn(200, dtype=torch.float64, generator=random) * 3
    x = torch.cat([torch.tensor(SPECIAL, dtype=torch.float64), usual]).to(dtype)
    return [x, x[torch.randperm(len(x), generator=random)]][:count]


@functools.cache
def both(dtype, exact=False):
    """Return the results of our kernels, run as one graph, and of PyTorch's for every op, by name."""
    x, y = inputs(dtype, 2)
    names = [name for name in (*UNARY, *BINARY) if not exact or name in EXACT]
    calls = {name: (UNARY[name], (x,)) if name in UNARY else (BINARY[name], (x, y)) for name in names}

    def every(x, y):
        return [UNARY[name](x) if name in UNARY else BINARY[name](x, y) for name in names]

    graph = make_fx(every, tracing_mode="fake")(x, y)
    graph = graph if exact else decompose(graph)
    found = regions.regions_of(graph.graph, exact)
    inside = {node for region in found for node in region.nodes}
    outside = [node for node in graph.graph.nodes if node.op == "call_function" and node not in inside]
    assert all(lowerings.constant_of(node) is not None for node in outside), outside
    ours = lower(native.lowered([graph], [exact])[0])(x, y)
    return {name: (o, function(*given)) for name, o, (function, given) in zip(names, ours, calls.values(), strict=True)}


def bessel(order, is_scaled):
    """Return the modified Bessel function by mpmath: PyTorch's is off by up to 4 ulp in float64 next to |x| = 8."""

    def value(x):
        if not math.isfinite(x):
            return x if math.isnan(x) else 0.0 if is_scaled else math.inf if order == 0 else x
        with mpmath.workdps(40):
            return float(mpmath.besseli(order, x) * (mpmath.exp(-abs(mpmath.mpf(x))) if is_scaled else 1))

    return lambda x: torch.tensor([value(v) for v in x.tolist()], dtype=torch.float64)


RIGHT = {
    "softplus_backward": lambda g, x: torch.where(2 * x > 15, g, g * torch.sigmoid(2 * x)),
    **{f"i{k}": bessel(k, False) for k in (0, 1)},
    **{f"i{k}e": bessel(k, True) for k in (0, 1)},
}
"""References where PyTorch's formula overflows float64, g · exp(2 x), or loses digits."""
CANCELS = {"mish_backward", "silu_backward", "gelu_backward", "gelu_backward tanh"}
"""Near their roots the error of an intermediate dominates: errors are measured relative to the cotangent."""


def assert_as_good(ours, theirs, right, size):
    """Require PyTorch's result, or an error of at most 4 ulp or twice PyTorch's error."""
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    info = torch.finfo(ours.dtype)
    ulp = (torch.maximum(right.abs(), size) * info.eps).clamp_min(info.smallest_normal * info.eps)
    error, allowed = ((value.double() - right).abs() / ulp for value in (ours, theirs))
    same = (ours == theirs) | (ours.isnan() & theirs.isnan()) | (ours.double() == right)
    same |= ours.isnan() & right.isnan()
    assert bool((same | (error <= (2 * allowed).clamp_min(4.0))).all())


def right_and_size(name, dtype, result):
    """Return the reference value of an op, and the magnitude that errors are relative to where the result cancels."""
    function = RIGHT.get(name) or UNARY.get(name) or BINARY[name]
    given = inputs(dtype, 1 if name in UNARY else 2)
    right = function(*[x.double() for x in given]).to(result).double()
    cancels = name in CANCELS or (name, dtype) == ("gelu", torch.float64)  # 1 + erf, with PyTorch's result as the truth
    size = given[0].double().abs() if cancels else torch.zeros(())
    if dtype == torch.float16 and name in {"power 0.5", "power -0.5"}:
        right[given[0] == -math.inf] = math.nan  # as it is in float32, where PyTorch takes the root
    return right, size


@pytest.mark.parametrize("name", [*UNARY, *BINARY])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.few(193)
def test_op_is_as_accurate_as_pytorch(name, dtype):
    ours, theirs = both(dtype)[name]
    if theirs.dtype == torch.bool:
        assert torch.equal(ours, theirs)
        return
    assert_as_good(ours, theirs, *right_and_size(name, dtype, theirs.dtype))


EXACT = [
    "abs",
    "neg",
    "reciprocal",
    "floor",
    "ceil",
    "trunc",
    "sign",
    "sgn",
    "round",
    "relu",
    "hardtanh",
    "threshold",
    "rsub",
    "clamp",
    "clamp_min",
    "clamp_max",
]
EXACT += ["clamp from below", "masked_fill", "where", "to float64", "to float32", "to bfloat16", "to float16", "truth"]
EXACT += ["add", "sub", "mul", "div", "maximum", "minimum", "threshold_backward", "hardtanh_backward"]


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.few(65)
def test_exact_op_equals_pytorch_bitwise(name, dtype):
    ours, theirs = both(dtype, exact=True)[name]
    same = (ours == theirs) & (ours.signbit() == theirs.signbit())
    assert bool((same | (ours.isnan() & theirs.isnan())).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_exact_16_bit_graph_rounds_each_result(dtype):
    def quantised(x):
        return [torch.round(x * 0.3 + 0.7) / 3 - x]

    given = inputs(dtype, 1)
    graph = make_fx(quantised, tracing_mode="fake")(*given)
    (theirs,) = quantised(*given)
    (ours,), (fused,) = (lower(native.lowered([graph], [exact])[0])(*given) for exact in (True, False))
    assert bool(((ours == theirs) | (ours.isnan() & theirs.isnan())).all())
    assert not torch.equal(fused.nan_to_num(), theirs.nan_to_num())  # the fused kernel rounds once


WITH_NUMBERS = {
    "x + c": lambda x, s: x + 0.7,
    "x − c": lambda x, s: x - 0.7,
    "c − x": lambda x, s: 0.7 - x,
    "x c": lambda x, s: x * 0.7,
    "x / c": lambda x, s: x / 0.7,
    "x + s": lambda x, s: x + s,
    "s + x": lambda x, s: s + x,
    "s − x": lambda x, s: s - x,
    "x s": lambda x, s: x * s,
    "s x": lambda x, s: s * x,
    "s / x": lambda x, s: s / x,
    "s or x": lambda x, s: torch.where(x > 0, s, x),
    "x ≥ s": lambda x, s: torch.where(x >= s, x, 0.0),
    "x + constant": lambda x, s: x + torch.full((), 0.7),
}


def scaled(function, x, s):
    return [function(x, s) * x]  # two ops, since a single op makes no kernel


@pytest.mark.parametrize("number", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_exact_16_bit_graph_rounds_scalars_as_pytorch_does(dtype, number):
    """PyTorch rounds 0.7 to 16 bits to add it, but not to multiply; and rounds a 0-d tensor that comes first."""
    x = torch.arange(-3, 3, 1 / 64).to(dtype)
    s = torch.tensor(0.7, dtype=number)
    for name, function in WITH_NUMBERS.items():
        graph = make_fx(functools.partial(scaled, function), tracing_mode="fake")(x, s)
        ours = lower(native.lowered([graph], [True])[0])(x, s)[0]
        assert torch.equal(ours.nan_to_num(), scaled(function, x, s)[0].nan_to_num()), name


def test_every_lowered_op_is_tested():
    tried = set()
    for table, count in ((UNARY, 1), (BINARY, 2)):
        for function in table.values():
            graph = make_fx(lambda *xs, call=function: [call(*xs)], tracing_mode="fake")(*inputs(torch.float64, count))
            tried |= {node.target for node in decompose(graph).graph.nodes if node.op == "call_function"}
    known = {*lowerings.FLOATING, *lowerings.COMPARING, *lowerings.LOGICAL, *lowerings.SELECTING}
    of_no_16_bits = {aten.special_erfcx.default, aten.special_log_ndtr.default, aten.special_ndtri.default}
    plain = {aten.clone.default, aten.alias.default, aten.detach.default, aten.pow.Tensor_Tensor}
    scalars = {op for op in known if str(op).endswith(".Scalar")}
    assert known - tried - plain - scalars - of_no_16_bits == set()  # `test_special_functions` tries these

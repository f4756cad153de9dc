"""Conversion between graphs and terms, against PyTorch's ops."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import special

import pullback
from pullback import DerivativeError, FormulaError, _torch
from pullback.stable.derivative import derivative
from pullback.stable.evaluate import evaluate, evaluate_all
from pullback.stable.formula import Formula, Quantity
from pullback.stable.graphs import constant
from pullback.stable.term import const, parse

LINE = [
    -80.0,
    -7.0,
    -6.0,
    -3.0,
    -2.0,
    -1.3,
    -1.0,
    -0.5,
    -0.1,
    -1e-3,
    0.0,
    1e-3,
    0.1,
    0.25,
    0.5,
    0.9,
    1.0,
    2.5,
    3.0,
    6.0,
]
LINE += [19.0, 30.0, 80.0]
UNIT = [0.001, 0.01, 0.3, 0.5, 0.7, 0.999]
POSITIVE = [1e-3, 0.1, 0.5, 1.0, 1.7, 30.0]
THIRD = 1 / 3

ONE = {
    "gelu": (F.gelu, LINE),
    "gelu of tanh": (lambda x: F.gelu(x, approximate="tanh"), LINE),
    "silu": (F.silu, LINE),
    "mish": (F.mish, LINE),
    "elu": (lambda x: F.elu(x, 0.7), LINE),
    "selu": (F.selu, LINE),
    "celu": (lambda x: F.celu(x, 0.5), LINE),
    "leaky_relu": (F.leaky_relu, LINE),
    "hardtanh": (F.hardtanh, LINE),
    "relu6": (F.relu6, LINE),
    "hardswish": (F.hardswish, LINE),
    "softshrink": (F.softshrink, LINE),
    "hardshrink": (F.hardshrink, LINE),
    "threshold": (lambda x: F.threshold(x, 0.1, 0.2), LINE),
    "clamp": (lambda x: x.clamp(-1, 2.5), LINE),
    "clamp below": (lambda x: x.clamp(min=-1), LINE),
    "clamp_max": (lambda x: x.clamp_max(0.5), LINE),
    "softplus": (lambda x: F.softplus(x, beta=2.0), LINE[:-3]),
    "softplus with a threshold": (lambda x: F.softplus(x, threshold=2.0), LINE),
    "logsigmoid": (F.logsigmoid, LINE),
    "logit": (torch.logit, UNIT),
    "logit with eps": (lambda x: torch.logit(x, 0.01), [*UNIT, -1.0, 2.0]),
    "tanhshrink": (F.tanhshrink, LINE),
    "softsign": (F.softsign, LINE),
    "square": (torch.square, LINE),
    "reciprocal": (torch.reciprocal, POSITIVE),
    "rsub": (lambda x: torch.rsub(x, 2.0, alpha=3), LINE),
    "a power": (lambda x: x**2.5, POSITIVE),
    "a root": (lambda x: x**0.5 + x**-0.5, POSITIVE),
    "the power 0": (lambda x: x**0, LINE),
    "a power of 2": (lambda x: 2**x, LINE),
    "another": (lambda x: 0.3**x, LINE),
    "addcmul": (lambda x: torch.addcmul(x, x, x.exp(), value=0.5), LINE),
    "addcdiv": (lambda x: torch.addcdiv(x, x, x.exp(), value=0.5), LINE),
    "lerp": (lambda x: torch.lerp(x, x.sin(), 0.3), LINE),
    "xlogy": (lambda x: torch.xlogy(x, x + 1), POSITIVE),
    "xlog1py": (lambda x: special.xlog1py(x, x), POSITIVE),
    "entr": (special.entr, POSITIVE),
    "erfcx": (special.erfcx, LINE[6:]),
    "ndtr": (special.ndtr, LINE),
    "log_ndtr": (special.log_ndtr, [-20.0, -3.0, 0.0, 3.0]),
    "sinc": (torch.sinc, LINE),
    "logarithms": (lambda x: torch.log2(x) + torch.log10(x) + torch.log1p(x), POSITIVE),
    "where": (lambda x: torch.where(x > 0, x, 0.1 * x), LINE),
    "masked_fill": (lambda x: x.masked_fill((x < -1) | ~(x < 2), 0.5), LINE),
    "a mask as a number": (lambda x: (x > 0) * x + (x != 0).to(x.dtype), LINE),
    "xor": (lambda x: torch.where(torch.logical_xor(x > 0, x < 1), x, -x), LINE),
    "nan_to_num": (lambda x: torch.where(x.isnan(), 0.0, torch.nan_to_num(x)), LINE),
    "remainder": (lambda x: x % 0.7, [0.1, -3.3, 5.6]),
    "fmod": (lambda x: torch.fmod(x, 0.7), [0.1, -3.3, 5.6]),
    "round": (torch.round, [-2.5, -1.5, -0.5, -0.2, 0.5, 0.7, 1.5, 2.5, 3.2]),
    "a power of e": (lambda x: math.e**x, LINE),
    "trunc": (lambda x: torch.trunc(x) + torch.frac(x), [0.1, -3.3, 5.6]),
    "constants": (lambda x: x * torch.full_like(x, 3) + torch.ones_like(x) - torch.tensor(0.5), LINE),
    "digamma": (lambda x: torch.polygamma(0, x), POSITIVE),
    "degrees": (lambda x: torch.deg2rad(x), LINE),
    "a cast to more digits": (lambda x: x.double().exp().to(x.dtype), LINE),
    "division by a mode": (lambda x: torch.div(x, 0.3, rounding_mode="floor"), [0.1, -3.3]),
}


def compare(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("name", ONE)
def test_terms_of_one_variable_match_pytorch(name):
    function, line = ONE[name]
    x = torch.tensor(line, dtype=torch.float64)
    formula = Formula(function)
    terms, measured = formula.terms(torch.float64, 1), formula.run([x], 1)
    for quantity, term in terms.items():
        compare(evaluate(term, {formula.variables[0]: x}), measured[quantity])


def test_term_without_derivative_raises():
    with pytest.raises(DerivativeError, match="trigamma"):
        Formula(lambda x: torch.polygamma(1, x)).terms(torch.float64, 1)


TWO = {
    "logaddexp": torch.logaddexp,
    "logaddexp2": torch.logaddexp2,
    "hypot": torch.hypot,
    "atan2": torch.atan2,
    "maximum": torch.maximum,
    "fmin": torch.fmin,
    "smooth_l1": lambda x, y: F.smooth_l1_loss(x, y, reduction="none", beta=0.5),
    "huber": lambda x, y: F.huber_loss(x, y, reduction="none", delta=0.7),
    "mse": lambda x, y: F.mse_loss(x, y, reduction="none"),
    "BCE": lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="none"),
    "pow": lambda x, y: torch.pow(x.abs() + 0.5, y),
    "swiglu": lambda x, y: F.silu(x) * y,
}


@pytest.mark.parametrize("name", TWO)
def test_terms_of_two_variables_match_pytorch(name):
    grid = torch.tensor([-3.0, -1.0, -0.2, 0.3, 1.0, 2.5], dtype=torch.float64)
    x, y = torch.cartesian_prod(grid, grid).T.contiguous()
    formula = Formula(TWO[name])
    measured = formula.run([x, y], 1)
    for quantity, term in formula.terms(torch.float64, 1).items():
        compare(evaluate(term, dict(zip(formula.variables, (x, y), strict=True))), measured[quantity])


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (math.pi, "PI"),
        (-math.pi, "-PI"),
        (math.pi / 2, "0.5 * PI"),
        (math.sqrt(2 / math.pi), "SQRT_2_OVER_PI"),
        (1 / math.log(2), "1 / LN2"),
        (THIRD, "0.3333333333333333"),
        (0.1, "0.1"),
        (3, "3"),
    ],
)
def test_constants_are_recognised(number, text):
    assert repr(constant(number)) == text


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x.softmax(0), "_softmax is not in the table"),
        (lambda x: x - x.mean(), "mean is not in the table"),
        (lambda x: x.erfinv(), "erfinv is not in the table"),
        (lambda x: x.clone().add_(1), "add_ writes in place"),
        (lambda x: x[None] + x[:, None], "is not in the table"),
        (lambda x: x * torch.arange(x.numel()), "is not in the table"),
        (lambda x: x.half().to(x.dtype), "_to_copy rounds to float16"),
        (lambda x: x.to(torch.int32) * x, "_to_copy gives int32"),
        (lambda x: x * math.inf, "the constant inf"),
        (lambda x: x * torch.tensor([1.0, 2.0, 3.0])[0:1], "several values"),
        (lambda x: F.mse_loss(x, x), "mse_loss is not in the table"),
        (lambda x: x / x.shape[0], "depends on the shape"),
        (lambda x: x if x.sum() > 0 else -x, "decides by the values"),
        (lambda x: x + (x.sign() - x).detach(), "calls detach"),
        (lambda x: x > 0, "no floating-point tensor"),
    ],
)
def test_non_pointwise_formula_raises(function, message):
    with pytest.raises(FormulaError, match=message):
        Formula(function).terms(torch.float32, 1)


FORMULAS = [
    "x*sigmoid(x) - 1/3",
    "softplus(x)*gauss(y)/qgauss(x)",
    "where(x > y, maximum(x, 2*y), hypot(x, LN2))",
    "pow(abs(x) + 1, y) + PI*erfcx(y)",
    "where(logical_not(x == 0), log1p(abs(x)), 0)",
    "sgn(x)*floor(y)",
    "1 - 2",
]


def to_graph(roots, names, dtype):
    """Graph of ATen ops that computes terms as `evaluate` does."""
    example = [torch.zeros(2, dtype=dtype) for _ in names]
    return _torch.trace_ops(lambda *xs: evaluate_all(roots, dict(zip(names, xs, strict=True))), *example)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("text", FORMULAS)
def test_graph_of_terms_computes_the_terms(text, dtype):
    roots = [parse(text), derivative(parse(text), "x")] if "pow" not in text else [parse(text)]
    module = to_graph(roots, ["x", "y"], dtype)
    xs = [torch.linspace(-3, 3, 101, dtype=dtype), torch.linspace(5, -1, 101, dtype=dtype)]
    for ours, theirs in zip(module(*xs), evaluate_all(roots, dict(zip("xy", xs, strict=True))), strict=True):
        assert ours.dtype == dtype
        assert torch.equal(ours.nan_to_num(nan=7.0), theirs.nan_to_num(nan=7.0))
    targets = {node.target for node in module.graph.nodes if node.op == "call_function"}
    assert all(isinstance(target, torch._ops.OpOverload) and target.namespace == "aten" for target in targets)


def test_graph_of_terms_round_trips():
    formula = Formula(to_graph([parse("log1p(exp(-abs(x)))*0.1")], ["x"], torch.float32))
    assert formula.terms(torch.float32, 0)[Quantity(0, ())] == parse("log1p(exp(-abs(x)))*0.1")


def test_constant_is_expanded_to_the_input_size():
    assert evaluate(const(2), {"x": torch.zeros(4)}).tolist() == [2.0] * 4


def test_heaviside_has_its_value_at_the_kink():
    terms = Formula(lambda x: torch.heaviside(x, x + 0.5)).terms(torch.float64, 0)
    x = torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64)
    assert evaluate(terms[Quantity(0, ())], {"x": x}).tolist() == [0.0, 0.5, 1.0]


@pytest.mark.parametrize(
    "formula", [lambda x: torch.exp(x) + True, lambda x: torch.exp(x) * False, lambda x: x.exp() / True]
)
def test_bool_constant_is_a_number(formula):
    x = torch.tensor([-1.5, 0.0, 2.0], requires_grad=True)
    ours, theirs = pullback.function(formula)(x), formula(x)
    assert torch.equal(ours, theirs)
    assert torch.equal(*(torch.autograd.grad(out.sum(), x)[0] for out in (ours, theirs)))

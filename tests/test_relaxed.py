"""Relaxed ops: the value of the hard formula bit for bit, every derivative of the relaxation."""

import pytest
import torch

import pullback
from tests.compose._contexts import HAS_COMPILER
from tests.compose.test_compile import compiled

BITS = {torch.float64: torch.int64, torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}
DTYPES = pytest.mark.parametrize("dtype", BITS, ids=lambda dtype: str(dtype).removeprefix("torch."))
VALUES = [0.0, -0.0, 0.3, -0.5, 1.5, 2.5, 300.0, -300.5, 60000.0, 1e-7, float("inf"), float("-inf"), float("nan")]


@pullback.function(derivative_of=lambda x: x)
def sign(x):
    return torch.sign(x)


@pullback.function(derivative_of=lambda x: torch.sigmoid(4 * x))
def step(x):
    return (x > 0).to(x.dtype)


@pullback.function(derivative_of=lambda x: 1e4 * x.exp())
def rounded(x):
    return torch.round(x) * 1.0


OPS = pytest.mark.parametrize("op", [sign, step, rounded], ids=lambda op: op.__name__)


def points(dtype):
    """The values of the table, and a sweep over all magnitudes."""
    generator = torch.Generator().manual_seed(0)
    sweep = torch.randn(500, generator=generator, dtype=torch.float64) * 10 ** torch.linspace(-8, 4.5, 500).double()
    return torch.cat([torch.tensor(VALUES, dtype=torch.float64), sweep]).to(dtype)


def same_bits(a, b):
    """Compare bits; NaNs are equal whatever their payload."""
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(
        a.nan_to_num(7.0).view(BITS[a.dtype]), b.nan_to_num(7.0).view(BITS[b.dtype])
    )


WAYS = {
    "eager": lambda op: op,
    "vmap": torch.func.vmap,
    "inlined": lambda op: lambda x: torch.func.vjp(op, x)[0],
    "aot_eager": lambda op: compiled(lambda x: op(x)),
}


@OPS
@DTYPES
@pytest.mark.parametrize("way", WAYS)
def test_value_equals_the_formula_bitwise(op, dtype, way):
    x = points(dtype)
    assert same_bits(WAYS[way](op)(x.requires_grad_()).detach(), op._formula(x.detach()))


@pytest.mark.slow
@pytest.mark.skipif(not HAS_COMPILER, reason="no C++ compiler")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@OPS
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_value_equals_the_compiled_formula_bitwise_under_inductor(op, dynamic):
    """Compared with the formula under the same compiler; all dtypes in one graph, to save time."""
    xs = [points(dtype).requires_grad_() for dtype in BITS]
    ours = compiled(lambda xs: [op(x) for x in xs], backend="inductor", dynamic=dynamic)(xs)
    formula = compiled(lambda xs: [op._formula(x) for x in xs], backend="inductor", dynamic=dynamic)(xs)
    assert all(same_bits(a.detach(), b.detach()) for a, b in zip(ours, formula, strict=True))


@DTYPES
def test_derivative_equals_the_relaxations_bitwise(dtype):
    x = points(dtype)
    x = x[x.isfinite()].requires_grad_()
    relaxation = step.relaxation
    (ours,) = torch.autograd.grad(step(x).sum(), x, create_graph=True)
    (soft,) = torch.autograd.grad(relaxation(x).sum(), x, create_graph=True)
    assert same_bits(ours.detach(), soft.detach())
    (ours,) = torch.autograd.grad(ours.sum(), x)
    (soft,) = torch.autograd.grad(soft.sum(), x)
    assert same_bits(ours, soft)


def test_derivative_is_zero_where_the_relaxation_is_not_finite():
    x = torch.tensor([float("inf"), float("-inf"), float("nan"), 1.0], requires_grad=True)
    assert torch.autograd.grad(sign(x).sum(), x)[0].tolist() == [0, 0, 0, 1]


def test_relaxation_may_have_other_parameter_names():
    op = pullback.function(derivative_of=lambda y, k=1.0: torch.tanh(k * y))(lambda x, scale=1.0: torch.sign(x))
    for call in (lambda x: op(x=x, scale=2.0), torch.compile(lambda x: op(x=x, scale=2.0), backend="eager")):
        x = torch.tensor([0.3, -2.0], requires_grad=True)
        (gradient,) = torch.autograd.grad(call(x).sum(), x)
        torch.testing.assert_close(gradient, 2 / torch.cosh(2 * x.detach()) ** 2)


def test_integer_and_bool_outputs_do_not_require_grad():
    @pullback.function(derivative_of=lambda x: (x, x.long(), x > 0))
    def parts(x):
        return x.round(), x.round().long(), x > 1

    x = torch.tensor([0.6, 2.4], requires_grad=True)
    rounded_x, whole, above = parts(x)
    assert not whole.requires_grad
    assert not above.requires_grad
    assert above.tolist() == [False, True]
    assert torch.autograd.grad(rounded_x.sum(), x)[0].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("soft", "match"),
    [
        (lambda x: x.sum(), r"of shape \(2,\), that of its relaxation a float32 tensor of shape \(\)"),
        (lambda x: x.double(), "float64"),
        (lambda x: (x, x), r"returns tensor and its relaxation \(tensor, tensor\): they must be alike"),
    ],
)
def test_relaxation_with_other_shape_dtype_or_structure_raises(soft, match):
    op = pullback.function(derivative_of=soft)(lambda x: torch.round(x))
    with pytest.raises(pullback.FormulaError, match=match):
        op(torch.ones(2, requires_grad=True))
    with pytest.raises(pullback.FormulaError, match=match):
        torch.func.grad(lambda x: op(x).sum())(torch.ones(2))


def test_jagged_tensors_have_the_relaxations_derivative():
    op = pullback.function(derivative_of=lambda x: 3 * x**2)(torch.round)
    x = torch.nested.nested_tensor(
        [torch.tensor([[0.6, 1.2]]), torch.tensor([[-0.6, 2.0], [1.4, 0.0]])], layout=torch.jagged, requires_grad=True
    )
    out = op(x)
    assert out.values().tolist() == x.values().round().tolist()
    (g,) = torch.autograd.grad(out.values().sum(), x)
    torch.testing.assert_close(g.values(), 6 * x.values().detach())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_strided_nested_tensors_raise():
    op = pullback.function(derivative_of=lambda x: 3 * x)(lambda x: x * 1)
    x = torch.nested.nested_tensor([torch.ones(1, 2), torch.ones(2, 2)], requires_grad=True)
    with pytest.raises(pullback.FormulaError, match=r"make it with layout=torch\.jagged"):
        op(x)


@pytest.mark.parametrize("backend", ["eager", "auto"])
@pytest.mark.parametrize("hard", [lambda x: x, lambda x: x.view(-1), lambda x: x[:1]], ids=["input", "view", "part"])
def test_result_does_not_alias_the_input(hard, backend):
    op = pullback.function(derivative_of=lambda x: -hard(x), backend=backend)(hard)
    for _ in range(2):
        for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
            with mode():
                for x in (torch.ones(2), torch.ones(2, requires_grad=True) * 1):
                    op(x).mul_(3)
                    assert x.tolist() == [1, 1]

"""Piecewise programs, run and emitted: pieces, precision, NaN and infinity."""

import itertools

import pytest
import torch

from pullback.stable.evaluate import nan_inputs
from pullback.stable.piecewise import Piece, Piecewise, emit, parse_piecewise
from pullback.stable.term import parse, var, variables
from tests.test_relaxed import same_bits

NAN, INF = float("nan"), float("inf")
X, Y = var("x"), var("y")


def program(*pieces, branch=X):
    return Piecewise(branch, tuple(Piece(parse(p) if isinstance(p, str) else p, *rest) for p, *rest in pieces))


def both(made, *inputs):
    """Return the result of a program; run and emitted must agree bitwise."""
    names = ["x", "y"][: len(inputs)]
    result = made.run(dict(zip(names, inputs, strict=True)))
    emitted = emit(made, names, inputs[0].dtype, "made")(*inputs)
    torch.testing.assert_close(result, emitted, rtol=0, atol=0, equal_nan=True)
    assert result.dtype == inputs[0].dtype
    return result


def test_threshold_belongs_to_the_lower_piece():
    made = program(("0", -1.0), ("x", 2.0), ("10*x",))
    assert both(made, torch.tensor([-INF, -1.0, 2.0, 2.5, INF])).tolist() == [0.0, 0.0, 2.0, 25.0, INF]


def test_nested_pieces():
    inner = program(("x + y", 0.0), ("x - y",), branch=Y)
    made = program((inner, 1.0), ("x*y",), branch=parse("x*y"))
    assert both(made, torch.tensor([1.0, 1.0, 3.0]), torch.tensor([-2.0, 0.5, 4.0])).tolist() == [-1.0, 0.5, 12.0]


CONSTANT_ENDS = {
    "the last piece": program(("x", 1.0), ("1",)),
    "every piece": program(("0", 1.0), ("1",)),
    "the only piece": Piecewise.of(parse("0.5")),
    "a condition": Piecewise.of(parse("where(x > 0, 1, 0)")),
    "a sign": Piecewise.of(parse("sgn(x)")),
    "a part": program((program(("x", 0.0), ("2",)), 1.0), (program(("x", 5.0), ("3",)),)),
    "in float64": program(("expm1(x)", 1.0, True), ("1",)),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("made", CONSTANT_ENDS.values(), ids=CONSTANT_ENDS)
def test_nan_input_gives_nan_in_a_constant_piece(made, dtype):
    found = both(made, torch.tensor([NAN, 2.0, NAN], dtype=dtype))
    assert found.isnan().tolist() == [True, False, True]


@pytest.mark.parametrize(
    "made",
    [
        program(("x", 0.0), ("y",)),
        program(("x*y", 0.0), ("x",)),
        program(("x*y", 0.0), ("1",), branch=parse("x - y")),
        Piecewise.of(parse("hypot(x, y)")),
        Piecewise.of(parse("maximum(x, y) + where(y > x, 1, 0)")),
    ],
)
def test_nan_in_either_variable_gives_nan(made):
    x, y = torch.tensor([NAN, 1.0, NAN, INF, 1.0, -1.0]), torch.tensor([1.0, NAN, NAN, NAN, 1.0, 0.0])
    assert both(made, x, y).isnan().tolist() == [True] * 4 + [False] * 2


@pytest.mark.parametrize(
    "text", ["x*2 + 1", "log1p(exp(-abs(x)))", "1/hypot(1, x)", "pow(x, 3)", "x*gauss(x)", "softplus(x)"]
)
def test_propagating_nan_needs_no_check(text):
    assert nan_inputs(parse(text)) == {"x"}
    assert "!= x" not in emit(Piecewise.of(parse(text)), ["x"], torch.float32, "made").source


@pytest.mark.parametrize(
    "text", ["sgn(x)", "where(x > 0, 1, 0)", "where(x > 0, 1, x)", "hypot(x, y)", "pow(x, y)", "3"]
)
def test_nan_that_may_be_dropped_is_known(text):
    assert nan_inputs(parse(text)) < set(variables(parse(text))) or not nan_inputs(parse(text))


def test_16_bit_programs_run_in_float32_and_round_once():
    made = Piecewise.of(parse("(x + 0.001) - x"))
    assert both(made, torch.tensor([1.0], dtype=torch.bfloat16)).item() == pytest.approx(1e-3, rel=1e-2)


def test_float64_pieces_round_once():
    x = torch.tensor([1e-6, 1e-4])
    narrow, wide = (both(Piecewise.of(parse("(1 - cos(x))/x"), w), x) for w in (False, True))
    assert narrow[0].item() == 0.0
    torch.testing.assert_close(wide, x / 2)


def test_constant_program_is_expanded_to_the_input_size():
    assert both(Piecewise.of(parse("2")), torch.zeros(3)).tolist() == [2.0, 2.0, 2.0]


DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
VALUES = [0.0, -0.0, 0.3, -0.5, 1.0, 2.5, -7.0, 88.0, -104.0, 300.0, 6e4, 1e-7, 1e-40, 3e38]
VALUES += [float("inf"), float("-inf"), float("nan")]

PROGRAMS = {
    "a term": "otherwise: -softplus(-x)",
    "float64": "otherwise: log(sigmoid(x))  [float64]",
    "pieces": "x <= -1.0: exp(x)\nx <= 0.25: x * 0.1\notherwise: 1 - exp(-x)",
    "pieces of two widths": "x <= 0.0: exp(x)  [float64]\notherwise: 1/3 + x",
    "nested": "x*x <= 1.0:\n    y <= 0.0: x*y\n    otherwise: x/y\notherwise: x - y",
    "a polynomial": "otherwise: poly(x, 0, 0, 0.5, 1e-9, 1e-10, 1.0, -0.5, 0.25)",
    "an odd polynomial": "otherwise: poly(x, 1, 1, 0, 0, 0, 1.0, -0.16666667)",
    "a polynomial of one": "otherwise: poly(x, 0, 0, 0, 0, 0, 2.5)",
    "a polynomial at a pole": "otherwise: poly(1 / x, -1, 0, 0, 0, 0, 1.0, -0.5)",
    "a polynomial of a term": "otherwise: poly(exp(-abs(x)), 2, 0, 0.1, 0, 0, 1.5, 3.0) + y",
    "a constant": "otherwise: 1",
    "a constant piece": "x <= 0.0: 0\notherwise: PI",
    "constants": "otherwise: div(1, 3) * x + LN2 * y - 0.1",
    "a quotient of a constant": "otherwise: 1 / x",
    "a power of a constant": "otherwise: pow(2, x) + pow(x, 0.5)",
    "an input": "otherwise: x",
    "a condition": "otherwise: where(x > y, x, 0.5 * y)",
    "a choice of constants": "otherwise: where(x >= 0, 1, where(x == y, 0.5, 0))",
    "logic": "otherwise: where(logical_and(x > 0, ne(x, y)), x, y)",
    "hypot and sgn": "otherwise: hypot(x, y) * sgn(x)",
    "primitives": "otherwise: gauss(x) + qgauss(y) + trigamma(1 + abs(x))",
    "special": "otherwise: erfcx(x) + erf(y) + lgamma(1 + abs(y))",
    "shared": "otherwise: exp(x) * exp(x) + exp(x)",
}


@pytest.fixture(params=PROGRAMS)
def emitted(request):
    return parse_piecewise(PROGRAMS[request.param].splitlines(), ("x", "y"))


def points(dtype):
    pairs = torch.tensor(list(itertools.product(VALUES, VALUES)), dtype=torch.float64).to(dtype)
    return pairs[:, 0].clone(), pairs[:, 1].clone()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_emitted_function_equals_the_program_bitwise(emitted, dtype):
    x, y = points(dtype)
    made = emit(emitted, ["x", "y"], dtype, "form")(x, y)
    assert made.dtype == dtype
    assert same_bits(made, emitted.run({"x": x, "y": y}))
    assert made.isnan()[x.isnan() | y.isnan()].all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0), (2, 3, 1)], ids=str)
@pytest.mark.few(216)
def test_emitted_function_handles_every_shape(emitted, dtype, shape):
    made = emit(emitted, ["x", "y"], dtype, "form")(torch.ones(shape, dtype=dtype), torch.ones(shape, dtype=dtype))
    assert (made.shape, made.dtype) == (shape, dtype)


def test_emitted_function_broadcasts_unused_inputs(emitted):
    x, y = torch.ones(3, 1), torch.ones(4)
    assert emit(emitted, ["x", "y"], torch.float32, "form")(x, y).shape == (3, 4)


def test_result_is_a_new_tensor():
    for dtype in DTYPES:
        x = torch.ones(3, dtype=dtype)
        assert emit(Piecewise.of(parse("x")), ["x"], dtype, "form")(x).data_ptr() != x.data_ptr()


def test_input_names_do_not_shadow_globals():
    names = ["torch", "v0", "primitives", "form"]
    program = parse_piecewise(["otherwise: softplus(torch) + exp(v0) * primitives - form"], names)
    given = [torch.tensor([0.5 + i]) for i in range(4)]
    made = emit(program, names, torch.float32, "<lambda> d/dx\n")(*given)
    assert torch.equal(made, program.run(dict(zip(names, given, strict=True))))


def test_emitted_source_is_readable():
    made = emit(parse_piecewise(["otherwise: -softplus(-x)"]), ["x"], torch.float32, "value of f")
    assert made.source.splitlines()[0] == "def form(x_in):"
    assert made.__code__.co_filename == "<value of f>"

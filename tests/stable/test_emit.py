"""Programs as functions of torch ops: the bits of `Program.run`."""

import itertools

import pytest
import torch

from pullback.stable.emit import emit
from pullback.stable.piecewise import Program, read
from pullback.stable.term import parse
from tests.test_relaxed import same_bits

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
def program(request):
    return read(PROGRAMS[request.param].splitlines(), ("x", "y"))


def points(dtype):
    pairs = torch.tensor(list(itertools.product(VALUES, VALUES)), dtype=torch.float64).to(dtype)
    return pairs[:, 0].clone(), pairs[:, 1].clone()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_bits_are_those_of_the_program(program, dtype):
    x, y = points(dtype)
    made = emit(program, ["x", "y"], dtype, "form")(x, y)
    assert made.dtype == dtype
    assert same_bits(made, program.run({"x": x, "y": y}))
    assert made.isnan()[x.isnan() | y.isnan()].all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0), (2, 3, 1)], ids=str)
@pytest.mark.few(216)
def test_every_shape(program, dtype, shape):
    made = emit(program, ["x", "y"], dtype, "form")(torch.ones(shape, dtype=dtype), torch.ones(shape, dtype=dtype))
    assert (made.shape, made.dtype) == (shape, dtype)


def test_inputs_are_broadcast_whichever_a_form_reads(program):
    x, y = torch.ones(3, 1), torch.ones(4)
    assert emit(program, ["x", "y"], torch.float32, "form")(x, y).shape == (3, 4)


def test_the_result_is_a_new_tensor():
    for dtype in DTYPES:
        x = torch.ones(3, dtype=dtype)
        assert emit(Program.of(parse("x")), ["x"], dtype, "form")(x).data_ptr() != x.data_ptr()


def test_names_of_inputs_hide_nothing():
    names = ["torch", "v0", "primitives", "form"]
    program = read(["otherwise: softplus(torch) + exp(v0) * primitives - form"], names)
    given = [torch.tensor([0.5 + i]) for i in range(4)]
    made = emit(program, names, torch.float32, "<lambda> d/dx\n")(*given)
    assert torch.equal(made, program.run(dict(zip(names, given, strict=True))))


def test_the_source_can_be_read():
    made = emit(read(["otherwise: -softplus(-x)"]), ["x"], torch.float32, "value of f")
    assert made.source.splitlines()[0] == "def form(x_in):"
    assert made.__code__.co_filename == "<value of f>"

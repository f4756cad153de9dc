"""Programs: pieces, precision, and what becomes of NaN and infinity; the same as emitted functions."""

import pytest
import torch

from pullback.stable.emit import emit
from pullback.stable.nans import shown
from pullback.stable.piecewise import Piece, Program
from pullback.stable.term import parse, var, variables

NAN, INF = float("nan"), float("inf")
X, Y = var("x"), var("y")


def program(*pieces, branch=X):
    return Program(branch, tuple(Piece(parse(p) if isinstance(p, str) else p, *rest) for p, *rest in pieces))


def both(made, *inputs):
    """Return what a program computes, run and emitted: they must agree to the bit."""
    names = ["x", "y"][: len(inputs)]
    result = made.run(dict(zip(names, inputs, strict=True)))
    emitted = emit(made, names, inputs[0].dtype, "made")(*inputs)
    torch.testing.assert_close(result, emitted, rtol=0, atol=0, equal_nan=True)
    assert result.dtype == inputs[0].dtype
    return result


def test_a_threshold_belongs_to_the_piece_below():
    made = program(("0", -1.0), ("x", 2.0), ("10*x",))
    assert both(made, torch.tensor([-INF, -1.0, 2.0, 2.5, INF])).tolist() == [0.0, 0.0, 2.0, 25.0, INF]


def test_pieces_of_pieces():
    inner = program(("x + y", 0.0), ("x - y",), branch=Y)
    made = program((inner, 1.0), ("x*y",), branch=parse("x*y"))
    assert both(made, torch.tensor([1.0, 1.0, 3.0]), torch.tensor([-2.0, 0.5, 4.0])).tolist() == [-1.0, 0.5, 12.0]


CONSTANT_ENDS = {
    "the last piece": program(("x", 1.0), ("1",)),
    "every piece": program(("0", 1.0), ("1",)),
    "the only piece": Program.of(parse("0.5")),
    "a condition": Program.of(parse("where(x > 0, 1, 0)")),
    "a sign": Program.of(parse("sgn(x)")),
    "a part": program((program(("x", 0.0), ("2",)), 1.0), (program(("x", 5.0), ("3",)),)),
    "in float64": program(("expm1(x)", 1.0, True), ("1",)),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("made", CONSTANT_ENDS.values(), ids=CONSTANT_ENDS)
def test_nan_gives_nan_though_a_piece_does_not_read_it(made, dtype):
    found = both(made, torch.tensor([NAN, 2.0, NAN], dtype=dtype))
    assert found.isnan().tolist() == [True, False, True]


@pytest.mark.parametrize(
    "made",
    [
        program(("x", 0.0), ("y",)),
        program(("x*y", 0.0), ("x",)),
        program(("x*y", 0.0), ("1",), branch=parse("x - y")),
        Program.of(parse("hypot(x, y)")),
        Program.of(parse("maximum(x, y) + where(y > x, 1, 0)")),
    ],
)
def test_nan_of_either_variable_gives_nan(made):
    x, y = torch.tensor([NAN, 1.0, NAN, INF, 1.0, -1.0]), torch.tensor([1.0, NAN, NAN, NAN, 1.0, 0.0])
    assert both(made, x, y).isnan().tolist() == [True] * 4 + [False] * 2


@pytest.mark.parametrize(
    "text", ["x*2 + 1", "log1p(exp(-abs(x)))", "1/hypot(1, x)", "pow(x, 3)", "x*gauss(x)", "softplus(x)"]
)
def test_nan_that_shows_by_itself_costs_nothing(text):
    assert shown(parse(text)) == {"x"}
    assert "!= x" not in emit(Program.of(parse(text)), ["x"], torch.float32, "made").source


@pytest.mark.parametrize(
    "text", ["sgn(x)", "where(x > 0, 1, 0)", "where(x > 0, 1, x)", "hypot(x, y)", "pow(x, y)", "3"]
)
def test_nan_that_may_get_lost(text):
    assert shown(parse(text)) < set(variables(parse(text))) or not shown(parse(text))


def test_16_bits_are_computed_in_float32_and_rounded_once():
    made = Program.of(parse("(x + 0.001) - x"))
    assert both(made, torch.tensor([1.0], dtype=torch.bfloat16)).item() == pytest.approx(1e-3, rel=1e-2)


def test_float64_inside_is_rounded_once():
    x = torch.tensor([1e-6, 1e-4])
    narrow, wide = (both(Program.of(parse("(1 - cos(x))/x"), w), x) for w in (False, True))
    assert narrow[0].item() == 0.0
    torch.testing.assert_close(wide, x / 2)


def test_a_constant_program_has_the_size_of_its_input():
    assert both(Program.of(parse("2")), torch.zeros(3)).tolist() == [2.0, 2.0, 2.0]

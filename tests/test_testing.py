import pytest
import torch
from torch.autograd import Function

from pullback.errors import OptionError
from pullback.testing import assert_sound


class Cube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * g * x**2


class WrongCube(Cube):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x**2


X = torch.tensor([0.5, 1.5], dtype=torch.float64)


def test_sound_function_passes():
    assert_sound(Cube, X, select="PB1", budget=2)


def test_unsound_function_fails_with_its_findings():
    with pytest.raises(AssertionError, match="PB101 wrong-vjp") as failure:
        assert_sound(WrongCube, X, select=["PB101"], budget=2)
    assert failure.traceback[-1].frame.f_locals["__tracebackhide__"] is True
    assert str(failure.value).startswith("WrongCube: PB101 wrong-vjp\n")


def test_unaudited_function_fails():
    with pytest.raises(AssertionError, match="not audited"):
        assert_sound(Cube, "no tensor", select="PB1")


def test_unknown_option_raises():
    with pytest.raises(OptionError, match="did you mean budget") as failure:
        assert_sound(Cube, X, bugdet=1)
    assert failure.traceback[-1].path.name == "testing.py", "no frame of what it calls"
    assert failure.value.__cause__ is None
    assert failure.value.__suppress_context__

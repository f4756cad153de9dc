import types

import pytest
import torch
from torch.autograd import Function

from pullback.check.api import check
from pullback.errors import OptionError, TargetError

X = torch.tensor([0.5, 1.5], dtype=torch.float64)


class Sine(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()


class PowerOf(Function):
    @staticmethod
    def forward(ctx, x, exponent=2):
        ctx.save_for_backward(x)
        ctx.exponent = exponent
        return x**exponent

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x, None  # wrong for every exponent


def test_function_class_is_checked():
    report = check(Sine, X, select="PB101", budget=1)
    assert [subject.name for subject in report.subjects] == ["Sine"]
    assert report.ok


def test_local_class_and_callable_are_checked():
    class Local(Sine):
        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * x.sin()

    assert not check(Local, X, select="PB101", budget=1).ok
    assert check(lambda x: x.exp(), X, select="PB101", budget=1).ok


def test_module_is_checked():
    module = types.ModuleType("made_here")
    Sine.__module__, before = "made_here", Sine.__module__
    module.Sine = Sine
    try:
        report = check(module, select="PB101", budget=1)
    finally:
        Sine.__module__ = before
    assert [subject.name for subject in report.subjects] == ["Sine"]


def test_string_target_accepts_inputs(tmp_path, monkeypatch):
    (tmp_path / "ops.py").write_text("def double(x, by=2):\n    assert x.shape == (2,)\n    return by * x\n")
    monkeypatch.chdir(tmp_path)
    report = check("ops.py:double", X, select="PB101", budget=1)
    assert report.ok
    assert report.subjects[0].cases > 0


def test_check_works_under_no_grad_and_inference_mode():
    with torch.no_grad():
        assert not check(PowerOf, X, select="PB101", budget=1).ok
    with torch.inference_mode():
        assert not check(PowerOf, torch.ones(2), select="PB101", budget=1).ok


def test_unauditable_objects_are_refused():
    for target in (3, None, torch.nn.Linear):
        with pytest.raises(TargetError):
            check(target)


def test_unknown_option_is_refused():
    with pytest.raises(OptionError, match="no option 'inputs'; there are kwargs, select"):
        check(Sine, inputs=(X,))

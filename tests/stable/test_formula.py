"""The function under measurement: its variables, its derivatives, and refusals."""

import pytest
import torch

import pullback
from pullback import OptionError
from pullback.stable.formula import Formula, Quantity
from pullback.stable.term import parse


def scaled(x, y, beta: float = 2.0, *, k=3):
    return x * y * beta, torch.exp(x) * k


def needs(x, n: int):
    return x**n


@pytest.mark.parametrize(
    ("function", "args", "variables"),
    [
        (scaled, {}, ("x", "y")),
        (scaled, {"y": 2.0}, ("x",)),
        (needs, {"n": 3}, ("x",)),
        (torch.exp, {}, ("x",)),
        (torch.logaddexp, {}, ("x", "y")),
        (torch.nn.Tanh(), {}, ("x",)),
        (pullback.catalog.log_sigmoid, {}, ("x",)),
    ],
)
def test_variables_are_the_tensor_parameters(function, args, variables):
    assert Formula(function, args).variables == variables


@pytest.mark.parametrize(
    ("function", "args", "message"),
    [
        (needs, {}, "needs a value for its parameter 'n'"),
        (needs, {"m": 2}, "no parameter 'm'"),
        (lambda a, b, c, d: a, {}, "takes 4 arguments"),
        (lambda: 0, {}, "takes 0 arguments"),
        (torch.where, {}, "cannot be called with 1 to 3 tensors"),
    ],
)
def test_function_without_variables_raises(function, args, message):
    with pytest.raises(OptionError, match=message):
        Formula(function, args)


def test_run_gives_the_derivatives_of_autograd():
    x, y = torch.tensor([0.5, 1.0]), torch.tensor([2.0, 3.0])
    found = Formula(lambda x, y: x**3 * y).run([x, y], 2)
    assert found[Quantity(0, ("x",))].tolist() == (3 * x**2 * y).tolist()
    assert found[Quantity(0, ("x", "y"))].tolist() == (3 * x**2).tolist()
    assert found[Quantity(0, ("y", "y"))].tolist() == [0.0, 0.0]
    assert len(found) == 6


def test_labels_name_the_derivatives():
    labels = [Quantity(0, by).label(1) for by in [(), ("x",), ("x", "x"), ("x", "y")]]
    assert labels == ["value", "d/dx", "d²/dx²", "d²/dx dy"]
    assert Quantity(1, ("x",)).label(2) == "d[1]/dx"


def test_relaxed_op_has_the_derivatives_of_its_relaxation():
    @pullback.function(derivative_of=torch.tanh)
    def spike(x):
        return (x > 0).to(x.dtype)

    terms = Formula(spike).terms(torch.float32, 1)
    assert terms[Quantity(0, ())] == parse("where(x > 0, 1, 0)")
    assert terms[Quantity(0, ("x",))] == parse("1 - tanh(x)*tanh(x)")
    assert Formula(spike).run([torch.zeros(1)], 1)[Quantity(0, ("x",))].item() == 1.0


def test_function_class_has_the_terms_of_its_forward():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, g):
            return 3 * g

    formula = Formula(Doubled)
    assert formula.terms(torch.float32, 1)[Quantity(0, ("x",))] == parse("2")
    assert formula.run([torch.ones(1)], 1)[Quantity(0, ("x",))].item() == 3.0


def test_residuals_are_not_measured():
    @pullback.function(residuals=True)
    def tripled(x):
        return 3 * x, x

    @tripled.vjp
    def _(g, out, saved, x):
        return 3 * g

    formula = Formula(tripled)
    assert list(formula.terms(torch.float32, 1).values()) == [parse("x*3"), parse("3")]
    assert len(formula.run([torch.ones(2)], 1)) == 2

"""The state of each context in a report: from its findings, and "ok" only after a comparison."""

import torch

from pullback.check.find.discover import subject_of
from pullback.check.run_audit import run_audit
from pullback.check.subject import Options

from .making import Silent, function, normal
from .modules import import_source

sine = function(torch.sin, lambda g, x: g * x.cos())
slip = function(torch.sin, lambda g, x: g * x.sin())
ALL = ("PB1", "PB401", "PB405", "PB406", "PB411", "PB413")


def states(target, *select, skip=frozenset()):
    options = Options(select=select or ALL)
    end = run_audit(subject_of(target), options, [((normal(3),), {})], Silent(), skip)
    return {context.name: context.state for context in end.measured.contexts}


def test_contexts_of_a_right_function():
    found = states(sine)
    assert all(found[name] == "ok" for name in ("eager", "double backward", "checkpoint", "autocast"))
    assert found["func.grad"] == found["func.vmap"] == "unsupported"
    assert found["compile"] == found["export"] == "not tried"


def test_wrong_gradient_is_an_error_and_other_contexts_are_not_tried():
    found = states(slip, "PB101")
    assert found["eager"] == "error"
    assert set(found.values()) == {"error", "not tried"}


def test_straight_through_gradient_is_intended():
    straight = function(torch.round, lambda g, x: g)
    assert states(straight, "PB101")["eager"] == "intended"


def test_exception_in_double_backward_is_unsupported():
    def gradient(g, x):
        if torch.is_grad_enabled():
            raise RuntimeError("no")
        return g * x.cos()

    assert states(function(torch.sin, gradient), "PB403")["double backward"] == "unsupported"


def test_nondeterministic_gradient_is_not_tried():
    calls = []

    def gradient(g, x):
        calls.append(1)
        return g * len(calls)

    unsteady = function(torch.sin, gradient)
    found = states(unsteady, "PB405", "PB411", skip=frozenset({"the same call twice"}))
    assert found["func.grad"] == found["checkpoint"] == "not tried"


def test_float64_only_function_is_not_tried_under_autocast():
    def only_double(x):
        if x.dtype != torch.float64:
            raise TypeError("float64 only")
        return x.sin()

    found = states(function(only_double, lambda g, x: g * x.cos()), "PB411", "PB413")
    assert (found["checkpoint"], found["autocast"]) == ("ok", "not tried")


DAMPED = """
import torch


# pullback: allow[wrong-vjp] on purpose
class Damped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos() / (1 + x**2)
"""


def test_allowed_error_is_still_shown(tmp_path):
    assert states(import_source(DAMPED, tmp_path, "damped").Damped, "PB101")["eager"] == "error"

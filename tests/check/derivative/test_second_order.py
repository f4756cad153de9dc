"""Double backward, by `autograd.grad` and by `.backward()`."""

import pytest
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import pullback

from ..making import audit_of, function, normal, uniform


def second(target, *args):
    return audit_of(target, *args).second


RIGHT = {
    "sine": (torch.sin, lambda g, x: g * x.cos()),
    "cube": (lambda x: x**3, lambda g, x: 3 * g * x**2),
    "linear": (lambda x: 2 * x, lambda g, x: 2 * g),
    "float32 inside": (lambda x: x.float().exp().double(), lambda g, x: g * x.float().exp().double()),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_backward_has_a_right_second_derivative(name):
    found = second(function(*RIGHT[name]), normal(3, 4))
    assert found.status in (("ok",) if name != "float32 inside" else ("ok", "inconclusive"))
    assert found.composite
    assert found.error is None


WRONG = {
    "detached": lambda g, x: g * x.detach().cos(),
    "through data": lambda g, x: g * x.data.cos(),
    "half missing": lambda g, x: g * (x.cos() + x.detach().cos()) / 2,
    "no graph": lambda g, x: torch.from_numpy((g * x.cos()).detach().numpy().copy()),
}


@pytest.mark.parametrize("name", WRONG)
def test_lost_second_derivative_is_wrong(name):
    found = second(function(torch.sin, WRONG[name]), normal(3, 4))
    assert found.status == "wrong"
    assert abs(found.got - found.expected) > 10 * found.bar


class Hidden(Function):
    """Keeps exp(x) as a tensor whose own graph is lost."""

    @staticmethod
    def forward(ctx, x):
        ctx.exp = x.exp()
        return x.exp().sin()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.exp * ctx.exp.cos()


def test_hidden_intermediate_is_counted():
    found = second(Hidden, uniform(3))
    assert found.status == "wrong"
    assert found.hidden == 1


class Fixed(Function):
    """Takes its filter for a constant, and keeps it in another shape."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(2 * weight)
        return x * (2 * weight)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0], None


def test_input_without_gradient_has_no_second_derivative():
    x, weight = normal(3).requires_grad_(), normal(3, seed=1).requires_grad_()
    assert second(Fixed, x, weight).status == "ok"


class Once(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos()


class Refuses(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        if torch.is_grad_enabled():
            raise RuntimeError(ctx.message if hasattr(ctx, "message") else "double backward is not supported")
        return g * ctx.saved_tensors[0].cos()


class RefusesDarkly(Refuses):
    @staticmethod
    def forward(ctx, x):
        ctx.message = "shape mismatch"
        return Refuses.forward(ctx, x)


def test_refusal_is_clear_or_not():
    assert (second(Refuses, normal(3)).status, second(Refuses, normal(3)).is_clear) == ("raised", True)
    assert (second(RefusesDarkly, normal(3)).status, second(RefusesDarkly, normal(3)).is_clear) == ("raised", False)


def test_once_differentiable_does_not_protect_autograd_grad():
    """`.backward()` meets the node that raises, `autograd.grad` goes round it and returns a part."""
    found = second(Once, normal(3))
    assert (found.status, found.way, found.is_clear) == ("wrong", "autograd.grad", True)


def test_gradient_that_changes_under_create_graph_is_wrong():
    def gradient(g, x):
        return g * x.cos() * (2 if torch.is_grad_enabled() else 1)

    found = second(function(torch.sin, gradient), normal(3))
    assert found.status == "wrong"
    assert "the gradient of x changes under create_graph" in found.changed


def test_intended_gradient_has_its_own_derivative_checked():
    smooth = function(torch.sign, lambda g, x: g / (1 + x * x))
    cut = function(torch.sign, lambda g, x: g / (1 + x.detach() ** 2))
    assert (second(smooth, normal(3)).status, second(smooth, normal(3)).composite) == ("ok", False)
    assert (second(cut, normal(3)).status, second(cut, normal(3)).composite) == ("wrong", False)


class Pair(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b, (a - b).sin()

    @staticmethod
    def backward(ctx, g, h):
        a, b = ctx.saved_tensors
        slope = h * (a - b).cos()
        return g * b + slope, g * a - slope


def test_several_complex_inputs_and_outputs():
    assert second(Pair, normal(3), normal(3, seed=1)).status == "ok"
    square = function(lambda z: z * z, lambda g, z: g * (2 * z).conj())
    assert second(square, normal(3, dtype=torch.complex128)).status == "ok"


def test_backward_that_fails_has_no_second_derivative():
    assert second(function(torch.sin, lambda g, x: 1 / 0), normal(3)) is None


def test_nonlinear_backward_is_inconclusive():
    """Double backward passes a sum of cotangents, and |a + b| is not |a| + |b|."""
    audit = audit_of(function(lambda x: x**3, lambda g, x: 3 * g.abs() * x.detach() ** 2), normal(3))
    assert audit.nonlinearity is not None
    assert audit.second.status == "inconclusive"
    linear = audit_of(function(torch.sin, WRONG["detached"]), normal(3))
    assert linear.nonlinearity is None
    assert linear.second.status == "wrong"


class Spike(Function):
    """A surrogate gradient that is computed from the saved output."""

    @staticmethod
    def forward(ctx, x):
        out = (x > 0).to(x.dtype) * x.exp()
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g / (1 + out**2)


def test_surrogate_may_read_its_saved_output():
    assert second(Spike, normal(3, 4)).status != "wrong"


def test_no_grad_in_backward_is_named_as_the_cause():
    class Unrecorded(Function):
        @staticmethod
        def forward(ctx, x):
            y = x.exp()
            ctx.save_for_backward(y * 1)
            return y * x

        @staticmethod
        @torch.no_grad()
        def backward(ctx, g):
            (y,) = ctx.saved_tensors
            return g * (y * y.log() + y)

    report = pullback.check(Unrecorded, normal(3), select="PB401,PB402,PB404", budget=60)
    (found,) = report.findings
    assert found.rule == "PB401"
    assert "once_differentiable" in found.hint


class TangentSpace(Function):
    """The gradient in the tangent space, whose scale is lost to a second derivative."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale.square())
        return x.sin() * scale

    @staticmethod
    def backward(ctx, g):
        x, square = ctx.saved_tensors
        return g * square * x.cos(), (g * x.sin()).sum()


def test_mixed_second_derivative_of_an_intended_gradient_is_checked():
    found = second(TangentSpace, normal(4), normal(1)[0])
    assert found.status == "wrong"
    assert found.got == 0
    assert abs(found.expected) > 10 * found.bar


def test_right_mixed_second_derivative_is_accepted():
    class Right(TangentSpace):
        @staticmethod
        def forward(ctx, x, scale):
            ctx.save_for_backward(x, scale)
            return x.sin() * scale

        @staticmethod
        def backward(ctx, g):
            x, scale = ctx.saved_tensors
            return g * scale.square() * x.cos(), (g * x.sin()).sum()

    assert second(Right, normal(4), normal(1)[0]).status != "wrong"


def test_mixed_second_derivative_of_a_staircase_is_not_checked():
    class Staircase(TangentSpace):
        @staticmethod
        def forward(ctx, x, scale):
            ctx.save_for_backward(x, scale.square())
            return x.round() * scale

        @staticmethod
        def backward(ctx, g):
            x, square = ctx.saved_tensors
            return g * square * x.cos(), (g * x.round()).sum()

    assert audit_of(Staircase, normal(4), normal(1)[0]).intent is not None
    assert second(Staircase, normal(4), normal(1)[0]).status != "wrong"


def sinc(x):
    small = x.abs() < 1e-4
    return torch.where(small, 1 - x * x / 6, x.sin() / torch.where(small, torch.ones_like(x), x))


def slope_of_sinc(g, x, safe):
    small = x.abs() < 1e-4
    x = torch.where(small, torch.ones_like(x), x) if safe else x
    return g * torch.where(small, -x / 3 if not safe else torch.zeros_like(x), x.cos() / x - x.sin() / (x * x))


def test_second_derivative_that_is_nan_only_at_zero_is_an_error():
    findings = pullback.check(function(sinc, lambda g, x: slope_of_sinc(g, x, False)), normal(3)).findings
    (found,) = [f for f in findings if f.rule == "PB401"]
    assert (found.severity, found.verdict) == ("error", "wrong")
    assert "gives nan" in found.message
    assert "infinite at 0" in found.hint


@pytest.mark.parametrize("value", [torch.sin, torch.square, torch.relu, lambda x: x.pow(3)])
def test_second_derivative_at_zero_may_be_right_or_undefined(value):
    def gradient(g, x):
        with torch.enable_grad():
            x = x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
            return torch.autograd.grad(value(x), x, g, create_graph=True)[0]

    findings = pullback.check(function(value, gradient), normal(3), select="PB401").findings
    assert [f for f in findings if f.severity != "info"] == []


class _Once(Function):
    @staticmethod
    def forward(ctx, g):
        return g.clone()

    @staticmethod
    def backward(ctx, g):
        raise RuntimeError("one of the variables has been modified by an inplace operation")


class RaisesForBoth(Function):
    """Keeps exp(x), a constant to double backward; that raises where y requires grad."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(y, x.exp())
        return x.exp().sin() * y

    @staticmethod
    def backward(ctx, g):
        y, exp = ctx.saved_tensors
        gx = g * y * exp * exp.cos() if ctx.needs_input_grad[0] else None
        return gx, _Once.apply(g * exp.sin()) if ctx.needs_input_grad[1] else None


def test_raising_second_derivative_is_checked_with_other_inputs_frozen():
    report = pullback.check(RaisesForBoth, normal(3), normal(3, seed=1), select="PB401")
    (told,) = report.findings
    assert told.severity == "error"
    assert "where x alone requires grad" in told.message
    assert abs(told.evidence.got - told.evidence.expected) > 10 * told.evidence.error_bar


class OfAScale(Function):
    """x² s for a small positive s, whose second derivative by x and s is lost."""

    @staticmethod
    def forward(ctx, x, s):
        assert bool((s > 0).all()), "s is a scale"
        ctx.save_for_backward(x, s.detach().clone())
        return x * x * s

    @staticmethod
    def backward(ctx, g):
        x, s = ctx.saved_tensors
        return 2 * g * x * s, g * x * x


def test_step_is_reduced_to_stay_in_the_domain():
    s = torch.full((3,), 0.05, dtype=torch.float64, requires_grad=True)
    report = pullback.check(OfAScale, normal(3).requires_grad_(), s, select=("PB401", "PB404"))
    assert [f.severity for f in report.findings] == ["error"]


class Remembers(Function):
    """sin(x), whose backward keeps its slope for the next one: without a graph, if the first needed none."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.slope = None
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        if ctx.slope is None:
            ctx.slope = ctx.saved_tensors[0].cos()
        return g * ctx.slope


def test_second_derivative_spoilt_by_an_earlier_backward_is_an_error():
    found = second(Remembers, normal(4))
    assert (found.status, found.is_after_another) == ("wrong", True)
    (told,) = pullback.check(Remembers, normal(4), select=("PB401", "PB404")).findings
    assert (told.rule, told.severity) == ("PB401", "error")
    assert "after another backward" in told.message


def test_graph_that_can_be_used_once_is_not_wrong():
    class OnceOnly(Remembers):
        @staticmethod
        def backward(ctx, g):
            assert ctx.slope is None, "a second use"
            ctx.slope = 1
            return g * ctx.saved_tensors[0].cos()

    assert second(OnceOnly, normal(4)).status == "raised"


class Recomputes(Function):
    """sin(x): its backward runs the forward again on a detached copy, with a state that it takes from a stack."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.states = [0]
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        ctx.states.pop()
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            (found,) = torch.autograd.grad(x.sin(), x, g)
        return found


def test_lost_derivative_is_found_though_a_second_use_raises():
    (told,) = pullback.check(Recomputes, normal(4), select=("PB401", "PB404")).findings
    assert (told.rule, told.severity, told.evidence.got) == ("PB401", "error", 0.0)
    assert abs(told.evidence.expected) > 10 * told.evidence.error_bar
    assert "an error stops it" in told.message


def test_jump_at_one_element_does_not_hide_the_others():
    """The surrogate jumps at 0.5, where the example lies: at the other points its derivative is lost."""

    def surrogate(g, x):
        return g * (x.detach() + (x.detach() >= 0.5)).cos()

    x = torch.tensor([0.5, 0.2, -1.3, 0.9], dtype=torch.float64)
    found = second(function(torch.round, surrogate), x)
    assert (found.status, found.got) == ("wrong", 0.0)
    assert found.u[0][0] == 0
    right = second(function(torch.round, lambda g, x: g * (x + (x.detach() >= 0.5)).cos()), x)
    assert right.status == "ok"


def test_lost_second_derivative_of_an_approximate_gradient_is_an_error():
    lost = function(torch.sin, lambda g, x: g * x.detach().cos() * (1 + 1e-5))
    (told,) = pullback.check(lost, normal(4), select=("PB401",)).findings
    assert told.severity == "error"
    approximate = function(torch.sin, lambda g, x: g * x.cos() * (1 + 1e-5))
    assert [f.severity for f in pullback.check(approximate, normal(4), select=("PB401",)).findings] in ([], ["warning"])

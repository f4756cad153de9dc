"""The working example of an audit: doubts about guessed inputs, and their effect on severities."""

import re

import pytest
import torch
from torch.autograd import Function

from pullback.check.cases.templates import DISTANCES
from pullback.check.find.discover import subject_of
from pullback.check.run_audit import run_audit
from pullback.check.subject import Options
from pullback.check.working_example import prepare

from .making import Silent, case_of, normal
from .modules import import_source


class Ignores(Function):
    """Gives its second argument no gradient."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(y)
        return x * y

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0], None


def found(target, rule, *args):
    events = Silent()
    run_audit(subject_of(target), Options(select=(rule,)), [(args, {})] if args else None, events)
    return [f for f in events.findings if f.rule == rule]


def guessed(target, *given):
    cases = [case_of(target, *given)] if given else []
    return prepare(subject_of(target), Options(), cases, Silent(), frozenset())


def test_none_for_an_input_marked_by_the_audit_is_a_warning():
    for rule in ("PB107", "PB101"):  # PB101 reports it if PB107 is not selected
        (told,) = found(Ignores, rule)
        assert told.severity == "warning"
        assert told.verdict == "wrong"


@pytest.mark.parametrize(("is_asked", "severity"), [(True, "error"), (False, "warning")])
def test_none_for_an_input_marked_by_the_user_is_an_error(is_asked, severity):
    given = [normal(3, seed=seed).requires_grad_(is_asked) for seed in range(2)]
    for rule in ("PB107", "PB101"):
        (told,) = found(Ignores, rule, *given)
        assert told.severity == severity


class Grouped(Function):
    @staticmethod
    def forward(ctx, x):
        raise RuntimeError("Default process group has not been initialized")

    @staticmethod
    def backward(ctx, g):
        return g


def test_missing_process_group_is_given_as_the_reason():
    (told,) = found(Grouped, "PB001")
    assert told.severity == "warning"
    assert "needs what is not here" in told.message
    assert "pullback run" in told.hint
    assert "process group" in told.message


class Kernel(Function):
    """The derivative of a squared distance is built in."""

    @staticmethod
    def forward(ctx, x, scale, distance_fn):
        if scale.dim() or x.dim() != 2:
            raise ValueError("points, and one scale")
        if ctx.needs_input_grad[0]:
            raise ValueError("x has no gradient")
        value = distance_fn(x / scale, x.flip(0) / scale)
        ctx.save_for_backward(value, scale)
        return value

    @staticmethod
    def backward(ctx, g):
        value, scale = ctx.saved_tensors
        return None, (g * value * -2 / scale).sum(), None


def test_callable_for_which_the_gradient_is_right_is_chosen():
    audit, _ = guessed(Kernel)
    assert audit.base.values[2] is DISTANCES[1]


class Expands(Function):
    """Returns a gradient whose shape is right for as many steps as there are rows."""

    @staticmethod
    def forward(ctx, x, steps):
        ctx.steps = steps
        return x * 2

    @staticmethod
    def backward(ctx, g):
        rows = g[:1] if ctx.steps == g.shape[0] else torch.ones(ctx.steps, 1, 1)
        return 2 * g.expand(ctx.steps, *g.shape) if len(rows) > 1 else 2 * g, None


def test_integer_for_which_gradient_shapes_are_right_is_chosen():
    audit, _ = guessed(Expands)
    x, steps = audit.base.values
    assert steps == x.shape[0]


def test_given_example_is_not_doubted():
    audit, why = guessed(Ignores, normal(3), normal(3, seed=1))
    assert not why
    assert not audit.guessed


class Scaled(Function):
    """Returns one number as the gradient of `scale`, which forward takes in any shape."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        return g * scale, (g * x).sum()


def test_shapes_that_fail_in_the_backward_are_reported_as_a_warning():
    audit, _ = guessed(Scaled)
    assert audit.base.values[1].shape == ()
    assert audit.given[0].values[1].shape == (3, 5)
    (told,) = found(Scaled, "PB104")
    assert told.severity == "warning"
    assert "shape () for scale of shape (3, 5)" in told.message


class Masked(Function):
    """Its gradient has as many elements as the mask leaves; with indices for a mask it would run."""

    @staticmethod
    def forward(ctx, x, mask):
        ctx.save_for_backward(x, mask)
        return x[mask].sum()

    @staticmethod
    def backward(ctx, g):
        x, mask = ctx.saved_tensors
        return g * torch.ones_like(x[mask]), None


def test_fault_is_not_hidden_by_another_kind_of_tensor():
    audit, _ = guessed(Masked)
    x, mask = audit.base.values
    assert mask.dtype == torch.bool
    assert x.shape == mask.shape == (3, 5)
    (told,) = found(Masked, "PB104")
    assert told.severity == "error"


ENCLOSED = """
import torch

class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, B):
        ctx.save_for_backward(x)
        ctx.B = B
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x > ctx.B), None

def spike(B=1):
    def inner(x):
        return Spike.apply(x, B)

    return inner
"""


def test_number_of_an_enclosing_factory_is_no_tensor(tmp_path):
    assert found(import_source(ENCLOSED, tmp_path, "example_enclosed").Spike, "PB209") == []


class ModulusOfPairs(Function):
    """Reads the first two elements of each row alone, as those of complex numbers."""

    @staticmethod
    def forward(ctx, x):
        out = (x[..., 0] ** 2 + x[..., 1] ** 2).sqrt()
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx, g):
        x, out = ctx.saved_tensors
        return x * (g / out).unsqueeze(-1)


class ScaledRows(Function):
    """Takes one width for each row: the gradients of others would have to stay apart."""

    @staticmethod
    def forward(ctx, x, width):
        ctx.save_for_backward(x, width)
        return x / width

    @staticmethod
    def backward(ctx, g):
        x, width = ctx.saved_tensors
        width = width.mean(-1, keepdim=True)
        return g / width, (-g * x / width**2).sum(-1, keepdim=True).expand(ctx.saved_tensors[1].shape)


class NoSine(Function):
    """Forgets a factor, whatever the shapes."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x)
        return x.sin() * y

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos(), g * x.sin()


def test_guess_for_which_the_gradient_is_right_is_preferred():
    for target, fit in ((ModulusOfPairs, "a last dimension of 2"), (ScaledRows, "width with size 1 in dim 1")):
        audit, _ = guessed(target)
        assert audit.base.required_property == fit
        assert all(f.severity == "warning" for f in found(target, "PB101"))
        (told,) = (f for f in found(target, "PB101") if f"right for {fit}" in f.message)
        assert re.search(r", and wrong for other guesses: for \w+ of shape \(.*\) the gradient of ", told.message)
        assert told.hint.startswith("if other shapes are valid, this is a bug; ")


class SquaredError(Function):
    """Forgets to divide by the number of rows."""

    @staticmethod
    def forward(ctx, x, target):
        ctx.save_for_backward(x, target)
        return (x - target).square().sum() / x.shape[0]

    @staticmethod
    def backward(ctx, g):
        x, target = ctx.saved_tensors
        return 2 * g * (x - target), -2 * g * (x - target)


def test_gradient_wrong_for_every_guess_is_an_error():
    for target in (NoSine, SquaredError):
        audit, _ = guessed(target)
        assert audit.base.required_property == ""
        assert found(target, "PB101")[0].severity == "error"


def test_gradient_wrong_on_given_inputs_is_an_error():
    assert found(ModulusOfPairs, "PB101", normal(2, 3))[0].severity == "error"


class LogOfScale(Function):
    """Is meant for positive scales, and has a value for others."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x * scale.abs().log()

    @staticmethod
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        return g * scale.log(), g * x / scale


class Draw(Function):
    """A sample, with a surrogate gradient."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x + scale * torch.randn(x.shape, dtype=x.dtype)

    @staticmethod
    def backward(ctx, g):
        _, scale = ctx.saved_tensors
        return 2 * g * scale.log(), g


def test_nan_on_a_negative_guess_is_no_error():
    audit, _ = guessed(LogOfScale)
    assert audit.base.required_property == "positive numbers"
    for target in (LogOfScale, Draw):
        assert all(f.severity != "error" for f in found(target, "PB101"))
    scale = torch.tensor([-1.0, 2.0, 1.0], dtype=torch.float64)
    assert found(Draw, "PB101", normal(3), scale)[0].severity == "error"


class OfLabels(Function):
    """Cross entropy with labels of 0 and 1: for others, the derivative is that of another function."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return torch.nn.functional.softplus(torch.where(y > 0.5, -x, x))

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * (torch.sigmoid(x) - y), None


def test_labels_for_which_the_gradient_is_right_are_preferred():
    audit, _ = guessed(OfLabels)
    assert audit.base.required_property == "zeros and ones in y"
    assert set(audit.base.values[1].flatten().tolist()) <= {0.0, 1.0}
    (finding,) = found(OfLabels, "PB101")
    assert finding.severity == "warning"
    assert "for one of them the gradient of x is" in finding.message
    x, y = normal(3, 5), normal(3, 5)
    assert {f.severity for f in found(OfLabels, "PB101", x, y)} == {"error"}

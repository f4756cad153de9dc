"""Rules about determinism and purity."""

import random

import numpy
import pytest
import torch

import pullback
from pullback.check.events import StepEvents

from ..making import Silent, audit_of, function, normal


@pytest.fixture(autouse=True)
def may_be_set(monkeypatch):
    """Allow changes of backend flags, which PyTorch's test utilities, imported by other tests, forbid."""
    monkeypatch.setitem(torch.backends.flags_frozen.__globals__, "__allow_nonbracketed_mutation_flag", True)


def found(rule, target, *inputs):
    return [(f.severity, f.message) for f in pullback.check(target, *(inputs or (normal(4),)), select=rule).findings]


def drawing(draw, sign=1):
    """Return a Function that multiplies by `draw(x)`."""

    class Drawing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            factor = draw(x)
            ctx.save_for_backward(factor)
            return x * factor

        @staticmethod
        def backward(ctx, g):
            (factor,) = ctx.saved_tensors
            return sign * g * factor

    return Drawing


def test_601_message_names_the_numpy_generator():
    noisy = drawing(lambda x: torch.from_numpy(numpy.random.standard_normal(tuple(x.shape))))
    ((severity, message),) = found("PB601", noisy)
    assert severity == "warning"
    assert "output 0 is" in message
    assert message.endswith("it draws from NumPy's generator, which torch.manual_seed does not set")


def test_601_backward_with_its_own_generator_is_a_warning():
    generator = torch.Generator().manual_seed(0)
    noisy = function(torch.sin, lambda g, x: g * x.cos() * (1 + torch.rand(x.shape, generator=generator)))
    ((severity, message),) = found("PB601", noisy)
    assert severity == "warning"
    assert "the gradient of x is" in message
    assert "NumPy" not in message


def test_601_difference_within_rounding_is_an_info():
    turns = iter(range(10**6))
    rounding = function(lambda x: x.sin() * (1 + 1e-14 * (next(turns) % 2)), lambda g, x: g * x.cos())
    assert [severity for severity, _ in found("PB601", rounding)] == ["info"]


def test_601_other_rules_are_undecided_about_a_random_function():
    noisy = drawing(lambda x: torch.from_numpy(numpy.random.standard_normal(tuple(x.shape))))
    assert [f.rule for f in pullback.check(noisy, normal(4)).findings] == ["PB601"]
    (undecided,) = pullback.check(noisy, normal(4), ignore="PB6").findings
    assert undecided.verdict == "inconclusive"
    assert undecided.message == "could not be decided: two runs from the same random state differ"


def test_601_call_that_crashed_is_not_repeated():
    noisy = drawing(lambda x: torch.from_numpy(numpy.random.standard_normal(tuple(x.shape))))
    audit = audit_of(noisy, normal(4))
    audit.skip = frozenset({"new memory filled with NaN"})
    assert audit.run_difference is None
    audit, told = audit_of(noisy, normal(4)), Silent()
    audit.events = StepEvents(told)
    assert audit.run_difference is not None
    assert [what for _, what, _ in told.steps] == ["the same call twice"]


@pytest.mark.parametrize("draw", [torch.rand_like, lambda x: torch.full_like(x, random.random())])
def test_601_draws_that_follow_the_seed_are_not_reported(draw):
    assert found("PB601", drawing(draw)) == []


def test_602_backward_may_restore_the_random_state():
    class Dropout(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.state = torch.get_rng_state()
            return x * (torch.rand_like(x) > 0.5)

        @staticmethod
        def backward(ctx, g):
            with torch.random.fork_rng():
                torch.set_rng_state(ctx.state)
                return g * (torch.rand_like(g) > 0.5)

    assert found("PB602", Dropout, normal(20)) == []


def test_602_message_claims_no_right_gradient_it_does_not_know():
    class Dropout(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * (torch.rand_like(x) > 0.5)

        @staticmethod
        def backward(ctx, g):
            return 3 * g * (torch.rand_like(g) > 0.5)

    ((severity, message),) = found("PB602", Dropout, normal(20))
    assert severity == "warning"
    assert "which is right" not in message


def setting(change, restore=lambda: None):
    """Return a Function whose forward calls `change`."""

    def value(x):
        change()
        restore()
        return x.sin()

    return function(value, lambda g, x: g * x.cos())


@pytest.mark.parametrize(
    ("change", "severity", "what"),
    [
        (lambda: torch.manual_seed(3), "error", "torch's random number generator"),
        (lambda: random.seed(3), "error", "Python's random number generator"),
        (lambda: numpy.random.seed(3), "error", "NumPy's random number generator"),
        (lambda: torch.set_default_dtype(torch.float64), "error", "the default dtype (from torch.float32 to"),
        (lambda: torch.set_default_dtype(torch.float32), "error", "the default dtype (from torch.float64 to"),
        (lambda: torch.use_deterministic_algorithms(True, warn_only=True), "warning", "deterministic algorithms"),
        (lambda: torch.autograd.set_detect_anomaly(True), "warning", "anomaly detection"),
        (lambda: torch.set_float32_matmul_precision("high"), "warning", "precision of float32 products"),
        (lambda: torch.set_num_threads(2), "warning", "the number of threads (from 1 to 2)"),
        (lambda: setattr(torch.backends.cudnn, "benchmark", True), "warning", "benchmark (from False to True)"),
    ],
)
def test_603_each_setting_is_detected(change, severity, what):
    ((found_severity, message),) = found("PB603", setting(change))
    assert found_severity == severity
    assert message.startswith("the forward changes ")
    assert what in message


def test_603_grad_mode_of_a_callable_is_detected():
    def value(x):
        out = x.sin()
        torch.set_grad_enabled(False)
        return out

    assert found("PB603", value) == [("error", "the forward changes grad mode (from True to False)")]


def test_603_change_in_the_backward_is_detected():
    def gradient(g, x):
        torch.manual_seed(0)
        return g * x.cos()

    ((severity, message),) = found("PB603", function(torch.sin, gradient))
    assert severity == "error"
    assert message.startswith("the backward changes the state of torch's")


def test_603_frozen_backend_flags_are_not_written(monkeypatch):
    monkeypatch.setitem(torch.backends.flags_frozen.__globals__, "__allow_nonbracketed_mutation_flag", False)
    assert torch.backends.flags_frozen()
    assert found("PB603", drawing(torch.rand_like)) == []


def test_603_drawing_and_restoring_is_no_change():
    def value(x):
        with torch.random.fork_rng():
            torch.manual_seed(3)
            kept = torch.rand(4) > 0.5
        return x * kept + 0 * torch.rand(4)

    assert found("PB603", value) == []


def test_604_message_names_each_call_that_detaches():
    def value(x):
        scale = float(x.abs().max())
        with torch.no_grad():
            shift = x.mean() * scale
        return (x + x.detach() * shift).sum()

    ((severity, message),) = found("PB604", value, normal(4).requires_grad_())
    assert severity == "error"
    assert message.startswith("part of the gradient of x is lost: it leaves the graph by __float__ in line ")
    assert "mean under no_grad in line " in message
    assert "detach in line " in message


def test_604_right_gradient_is_not_reported():
    def value(x):
        largest = x.detach().amax()
        return (x - largest).exp().sum().log() + largest

    assert found("PB604", value, normal(4).requires_grad_()) == []


def test_604_intended_detach_is_not_reported():
    def value(x):
        """Round, straight-through."""
        return x + (x.round() - x).detach()

    assert found("PB604", value, normal(4).requires_grad_()) == []


def test_604_message_names_the_line_in_the_backward():
    cut = function(lambda x: x**3, lambda g, x: g * 3 * x.data**2)
    ((severity, message),) = found("PB604", cut)
    assert severity == "warning"
    assert message.startswith("second derivatives along x are lost in the backward: it leaves the graph by data in")


def test_604_use_of_a_shape_is_no_detach():
    cut = function(lambda x: x**3, lambda g, x: torch.zeros_like(x) + g * 3 * x.data**2)
    ((_, message),) = found("PB604", cut)
    assert "data in" in message
    assert "zeros_like" not in message


def test_604_nested_grad_without_create_graph_is_named():
    def gradient(g, x):
        with torch.enable_grad():
            return torch.autograd.grad(x**3, x, g)[0]

    ((severity, message),) = found("PB604", function(lambda x: x**3, gradient))
    assert severity == "warning"
    assert message.startswith("second derivatives along x are lost in the backward: it leaves the graph by grad in")


def test_604_forward_of_an_inner_function_is_no_detach():
    wrong = function(torch.sin, lambda g, x: g)

    assert found("PB604", lambda x: wrong.apply(x) * 2, normal(4).requires_grad_()) == []

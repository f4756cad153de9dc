"""Iterative functions that were not given the time to converge."""

import pytest
from torch.autograd import Function

from pullback.check.audit import audit
from pullback.check.case import make_case
from pullback.check.cases.iterations import more_iterations
from pullback.check.find.discover import subject_of
from pullback.check.subject import Options

from ..making import Silent, uniform


@pytest.mark.parametrize(
    "name", ["n_iter", "num_iters", "max_iter", "steps", "iterations", "max_iterations", "n_steps"]
)
def test_a_number_of_iterations_is_known_by_its_name(name):
    case = make_case((uniform(3), 4), {}, ["x", name])
    assert more_iterations(case).values[1] == 40
    assert more_iterations(make_case((uniform(3), True), {}, ["x", name])) is None


@pytest.mark.parametrize("name", ["step", "stepsize", "iterator", "n", "size", "literal"])
def test_other_numbers_are_not(name):
    assert more_iterations(make_case((uniform(3), 4), {}, ["x", name])) is None


class Root(Function):
    """The square root by Newton's method, with the derivative of the limit."""

    @staticmethod
    def forward(ctx, x, n_iter, slip=1.0):
        assert bool((x > 0).all())
        y = x.clone()
        for _ in range(n_iter):
            y = (y + x / y) / 2
        ctx.save_for_backward(y)
        ctx.slip = slip
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return ctx.slip * g / (2 * y), None, None


def found(*args):
    events = Silent()
    audit(subject_of(Root), Options(select=("PB101", "PB401", "PB404"), budget=60), [(args, {})], events)
    return [(f.rule, f.severity, f.verdict) for f in events.findings]


def test_what_has_not_converged_is_no_error():
    x = uniform(3, low=4.0, high=9.0)
    few = found(x, 3)
    assert ("PB101", "warning", "inconclusive") in few
    assert "error" not in {severity for _, severity, _ in few}


@pytest.mark.slow
def test_what_converges_to_something_wrong_is():
    x = uniform(3, low=4.0, high=9.0)
    assert ("PB101", "error", "wrong") in found(x, 3, 1.1)
    assert ("PB101", "error", "wrong") in found(x, 12, 1.1)

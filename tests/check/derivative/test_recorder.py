"""Recording of the cotangents and gradients of a backward, without changing its class."""

import pytest
import torch
from torch.autograd import Function

from pullback.check.derivative.recorder import backward_name, misshapen, record_base, recording, returned_gradients
from pullback.check.find.discover import subject_of
from pullback.check.trial import forward, vjp

from ..making import case_of, normal


class Scaled(Function):
    @staticmethod
    def forward(ctx, x, by):
        ctx.save_for_backward(x, by)
        ctx.kept = x + 1
        return x * by

    @staticmethod
    def backward(ctx, g):
        x, by = ctx.saved_tensors
        return g * by, g * x


class Inherits(Scaled):
    pass


class ByVjp(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def vjp(ctx, g):
        return 2 * g


class Raises(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        raise ValueError


X, BY = normal(3), normal(3, seed=1)


def record(target, *args, mask=None):
    return record_base(subject_of(target), case_of(target, *args), mask)


def test_record_has_cotangents_needs_and_gradients():
    (call,) = record(Scaled, X, BY)
    (g,) = call.cotangents
    assert call.needs == (True, True)
    assert torch.equal(call.returned[0], g * BY)
    assert torch.equal(call.returned[1], g * X)
    assert not call.raised
    assert [tuple(t.shape) for t in call.kept] == [(3,), (3,), (3,)]


def test_record_has_needs_input_grad():
    (call,) = record(Scaled, X, BY, mask=[False, True])
    assert call.needs == (False, True)


def test_single_gradient_is_a_tuple_of_one():
    (call,) = record(ByVjp, X)
    assert len(call.returned) == 1
    assert backward_name(ByVjp) == "vjp"
    assert backward_name(Scaled) == "backward"


@pytest.mark.parametrize("target", [Scaled, Inherits, ByVjp, Raises])
def test_class_is_restored(target):
    before = dict(vars(target))
    with recording(subject_of(target)):
        assert dict(vars(target)) != before
    assert dict(vars(target)) == before


def test_class_is_restored_after_an_exception():
    before = dict(vars(Scaled))
    with pytest.raises(KeyError), recording(subject_of(Scaled)):
        raise KeyError
    assert dict(vars(Scaled)) == before


def test_call_that_raises_is_not_recorded():
    assert record(Raises, X) == []


def test_every_call_is_recorded():
    subject, case = subject_of(Scaled), case_of(Scaled, X, BY)
    with recording(subject) as calls:
        for factor in (1, 2):
            run = forward(subject, case)
            vjp(run, [factor * torch.ones(3, dtype=torch.float64)])
    assert [float(call.cotangents[0][0]) for call in calls] == [1.0, 2.0]


def test_plain_callable_is_not_recorded():
    assert record(lambda x: x.sin(), X) == []


def test_returned_gradients_are_named():
    subject, case = subject_of(Scaled), case_of(Scaled, X, BY)
    found = {name: (x, gradient) for name, x, gradient in returned_gradients(subject, case)}
    assert set(found) == {"x", "by"}
    assert torch.equal(found["x"][0], X)


def test_summed_and_rejected_shapes_are_misshapen():
    (found,) = misshapen(subject_of(Scaled), case_of(Scaled, normal(2, 3), BY))
    assert (found.name, found.expected, found.returned) == ("by", (3,), (2, 3))
    assert found.summed
    assert found.is_broadcast
    assert list(misshapen(subject_of(Scaled), case_of(Scaled, X, BY))) == []
    assert list(misshapen(subject_of(Scaled), case_of(Scaled, normal(2), BY))) == []


def test_shape_without_broadcasting_is_misshapen():
    class Mean(Function):
        @staticmethod
        def forward(ctx, x):
            return x.mean()

        @staticmethod
        def backward(ctx, g):
            return g.expand(2, 7)

    (found,) = misshapen(subject_of(Mean), case_of(Mean, X))
    assert (found.returned, found.summed, found.is_broadcast) == ((2, 7), False, False)

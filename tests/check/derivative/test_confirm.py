"""A numeric derivative is asked twice before anything is called wrong by it."""

import pytest
import torch
from torch.autograd import Function

from pullback.check.audit import audit
from pullback.check.derivative.confirm import confirmed
from pullback.check.find.discover import subject_of
from pullback.check.subject import Options

from ..making import Silent, normal

# PyTorch's own: its first use of forward mode compiles decompositions with it.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")

FREQUENCY = 2000.0


def rippled(slip=1.0, tangent_slip=1.0, detach=lambda x: x, tangent_detach=lambda x: x):
    """Return sin(2000 x): a ripple shorter than the first steps are."""

    class Ripple(Function):
        @staticmethod
        def forward(x):
            return torch.sin(FREQUENCY * x)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return slip * g * FREQUENCY * torch.cos(FREQUENCY * detach(x))

        @staticmethod
        def jvp(ctx, t):
            (x,) = ctx.saved_tensors
            return tangent_slip * t * FREQUENCY * torch.cos(FREQUENCY * tangent_detach(x))

    return Ripple


def errors(target, x, seed=0):
    events = Silent()
    options = Options(select=("PB101", "PB102", "PB110", "PB401", "PB407"), seed=seed, budget=60)
    audit(subject_of(target), options, [((x,), {})], events)
    return {f.rule for f in events.findings if f.severity == "error"}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", [(), (3, 4)], ids=str)
def test_no_rule_accuses_a_right_ripple(shape, seed):
    assert errors(rippled(), normal(*shape, seed=seed), seed) == set()


def test_each_rule_accuses_a_wrong_one():
    x = normal(3)
    assert "PB101" in errors(rippled(slip=1.5), x)
    assert "PB102" in errors(rippled(tangent_slip=1.5), x)
    assert "PB401" in errors(rippled(detach=torch.Tensor.detach), x)


def curve_of(f, x):
    return lambda t: f(torch.tensor([x + t], dtype=torch.float64))


def test_the_second_ladder_is_climbed_only_on_disagreement():
    points = []

    def curve(t):
        points.append(t)
        return torch.tensor([2.0 * t], dtype=torch.float64)

    moved = [torch.zeros(1, dtype=torch.float64)]
    confirmed(curve, lambda estimate: False, moved)
    once = len(points)
    confirmed(curve, lambda estimate: True, moved)
    assert len(points) == 3 * once
    confirmed(curve, lambda estimate: True, [moved[0].half()])
    assert len(points) == 4 * once


@pytest.mark.parametrize("frequency", [100, 1500, 3000, 2e4, 2e5])
def test_the_sharper_of_two_ladders_counts(frequency):
    moved = [torch.zeros(1, dtype=torch.float64)]
    right = 0
    for k in range(8):
        x = 0.1 + 0.37 * k
        found = confirmed(curve_of(lambda x: torch.sin(frequency * x), x), lambda estimate: True, moved)
        expected = frequency * torch.cos(torch.tensor([frequency * x], dtype=torch.float64))
        assert abs(found.low - expected) <= 10 * found.bar or not found.valid
        right += bool(found.valid) and bool(found.bar < 1e-3 * frequency)
    assert right == 8


def test_a_noisy_second_ladder_takes_nothing_away():
    noisy = curve_of(lambda x: x.float().exp().double(), 0.3)
    moved = [torch.zeros(1, dtype=torch.float64)]
    once, twice = (confirmed(noisy, lambda estimate, d=d: d, moved) for d in (False, True))
    assert torch.equal(once.low, twice.low)
    assert torch.equal(once.bar, twice.bar)

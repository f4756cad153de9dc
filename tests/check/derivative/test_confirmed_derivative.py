"""A numeric derivative is confirmed by a second ladder of steps before a gradient is called wrong."""

import pytest
import torch
from torch.autograd import Function

from pullback.check.derivative.oracle import confirmed
from pullback.check.find.discover import subject_of
from pullback.check.run_audit import run_audit
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
    run_audit(subject_of(target), options, [((x,), {})], events)
    return {f.rule for f in events.findings if f.severity == "error"}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", [(), pytest.param((3, 4), marks=pytest.mark.slow)], ids=str)
def test_right_ripple_is_not_accused(shape, seed):
    assert errors(rippled(), normal(*shape, seed=seed), seed) == set()


@pytest.mark.slow
def test_wrong_ripple_is_accused_by_each_rule():
    x = normal(3)
    assert "PB101" in errors(rippled(slip=1.5), x)
    assert "PB102" in errors(rippled(tangent_slip=1.5), x)
    assert "PB401" in errors(rippled(detach=torch.Tensor.detach), x)


def wave(frequency, slip=1.0, graph_slip=1.0):
    """Return sin(f x) with a tangent that is off by one factor, and whose own gradient is off by another."""

    class Wave(Function):
        @staticmethod
        def forward(x):
            return torch.sin(frequency * x)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx, g):
            return g * frequency * torch.cos(frequency * ctx.saved_tensors[0])

        @staticmethod
        def jvp(ctx, t):
            slope = torch.cos(frequency * ctx.saved_tensors[0])
            return slip * t * frequency * (graph_slip * slope - (graph_slip - 1) * slope.detach())

    return Wave


def told(target, x):
    events = Silent()
    run_audit(subject_of(target), Options(select=("PB102", "PB407"), budget=60), [((x,), {})], events)
    return [(f.rule, f.severity, f.verdict) for f in events.findings]


@pytest.mark.parametrize("frequency", [1.0, 300.0, 1000.0, 2000.0, 2e5])
@pytest.mark.few(2)
def test_tangent_error_of_a_thousandth_is_found(frequency):
    x = normal(3)
    assert told(wave(frequency), x) == []
    assert told(wave(frequency, slip=1.001), x) == [("PB102", "error", "wrong")]
    assert told(wave(frequency, graph_slip=1.001), x) == [("PB407", "error", "wrong")]


def noisy(x):
    """Return x with noise as large as its changes."""
    return x + 1e3 * torch.sin(1e12 * x.detach().square())


def test_tangent_of_a_noisy_forward_is_inconclusive():
    class Noisy(wave(1.0)):
        @staticmethod
        def forward(x):
            return noisy(x)

    class NoisyTangent(wave(1.0)):
        @staticmethod
        def jvp(ctx, t):
            return t * noisy(ctx.saved_tensors[0])

    assert ("PB102", "info", "inconclusive") in told(Noisy, normal(3))
    assert ("PB407", "info", "inconclusive") in told(NoisyTangent, normal(3))


def curve_of(f, x):
    return lambda t: f(torch.tensor([x + t], dtype=torch.float64))


def test_second_ladder_is_used_only_on_disagreement():
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
def test_sharper_of_two_ladders_is_returned(frequency):
    moved = [torch.zeros(1, dtype=torch.float64)]
    right = 0
    for k in range(8):
        x = 0.1 + 0.37 * k
        found = confirmed(curve_of(lambda x: torch.sin(frequency * x), x), lambda estimate: True, moved)
        expected = frequency * torch.cos(torch.tensor([frequency * x], dtype=torch.float64))
        assert abs(found.low - expected) <= 10 * found.bar or not found.valid
        right += bool(found.valid) and bool(found.bar < 1e-3 * frequency)
    assert right == 8


def test_noisy_second_ladder_keeps_the_first_estimate():
    noisy = curve_of(lambda x: x.float().exp().double(), 0.3)
    moved = [torch.zeros(1, dtype=torch.float64)]
    once, twice = (confirmed(noisy, lambda estimate, d=d: d, moved) for d in (False, True))
    assert torch.equal(once.low, twice.low)
    assert torch.equal(once.bar, twice.bar)


@pytest.mark.parametrize("claimed", [1.3, 1.001])
def test_few_samples_of_a_slow_rough_curve_refute_large_errors(claimed):
    taken = []

    def curve(t):
        taken.append(t)
        return torch.tensor([t + 3e-9 * torch.sin(torch.tensor(1e9 * t)).item()], dtype=torch.float64)

    def disagrees(found):
        return bool(((found.low - claimed).abs() > 10 * found.bar + 1e-7).any())

    found = confirmed(curve, disagrees, [torch.zeros(1, dtype=torch.float64)], lambda found: not disagrees(found))
    assert abs(found.low - 1) < 10 * found.bar < 0.1
    assert (len(taken) <= 22) == (claimed == 1.3)

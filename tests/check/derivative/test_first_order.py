"""Right gradients are never reported, wrong ones are, down to half a per mille in one element."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import Function

from pullback.check.derivative import first_order as first_order_module
from pullback.check.derivative.first_order import agrees, first_order, moves_output
from pullback.check.find.discover import subject_of

from ..making import case_of, compare, function, normal, status, uniform

SMOOTH = {
    "sine": (torch.sin, lambda g, x: g * x.cos()),
    "steep": (lambda x: torch.tanh(50 * x), lambda g, x: 50 * g * (1 - torch.tanh(50 * x) ** 2)),
    "ripple": (lambda x: torch.sin(2000 * x), lambda g, x: 2000 * g * torch.cos(2000 * x)),
    "offset": (lambda x: x.exp() + 1e6, lambda g, x: g * x.exp()),
    "sum": (lambda x: (x * x).sum(), lambda g, x: 2 * g * x),
    "softmax": (lambda x: x.softmax(-1), lambda g, x: (y := x.softmax(-1)) * (g - (g * y).sum(-1, keepdim=True))),
    "constant": (lambda x: torch.ones_like(x), lambda g, x: torch.zeros_like(x)),
    "float32 inside": (lambda x: x.float().exp().double(), lambda g, x: g * x.float().exp().double()),
}


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("shape", [(), (3, 5), (60,)], ids=str)
def test_right_gradient_is_not_wrong(name, shape):
    assert "wrong" not in status(function(*SMOOTH[name]), normal(*shape))


@pytest.mark.parametrize("name", ["sine", "steep", "sum", "softmax"])
def test_right_gradient_is_ok(name):
    assert status(function(*SMOOTH[name]), normal(3, 4)) == ["ok"]


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("off", [0.0, 1e-2])
@pytest.mark.parametrize("scale", [1.0, 0.05])
def test_brief_comparison_agrees_with_the_full_one(name, off, scale):
    forward, gradient = SMOOTH[name]
    fn = function(forward, lambda g, x: gradient(g, x) * (1 + off))
    few, many = (status(fn, scale * normal(3, 5), few_samples=few_samples) for few_samples in (True, False))
    assert few == many or "inconclusive" in few + many


def _product(wrong_by):
    class Product(Function):
        calls = 0

        @staticmethod
        def forward(ctx, *xs):
            ctx.save_for_backward(*xs)
            Product.calls += 1
            return xs[0].sin() * xs[1].exp() * xs[2].cos()

        @staticmethod
        def backward(ctx, g):
            a, b, c = ctx.saved_tensors
            gb = g * a.sin() * b.exp() * c.cos()
            return g * a.cos() * b.exp() * c.cos(), gb * (1 + wrong_by), -g * a.sin() * b.exp() * c.sin()

    return Product


def test_brief_comparison_samples_all_inputs_together():
    right, wrong = _product(0.0), _product(1e-4)
    points = [uniform(4, low=0.2, high=1.0, seed=seed) for seed in range(3)]
    assert [c.status for c in compare(right, *points, few_samples=True).comparisons] == ["ok"] * 3
    assert right.calls < 15
    right.calls = 0
    assert [c.status for c in compare(right, *points).comparisons] == ["ok"] * 3
    assert right.calls > 3 * 40
    assert [c.status for c in compare(wrong, *points, few_samples=True).comparisons] == ["ok", "wrong", "ok"]


def test_after_a_wrong_gradient_a_slow_comparison_ends(monkeypatch):
    points = [uniform(4, low=0.2, high=1.0, seed=seed) for seed in range(3)]
    monkeypatch.setattr(first_order_module, "_TOO_LONG", 0.0)
    result = compare(_product(0.5), *points)
    assert ([c.status for c in result.comparisons], result.left_out) == (["ok", "wrong"], [2])
    assert compare(_product(0.0), *points).left_out == []


@given(st.integers(1, 60), st.integers(0, 59), st.sampled_from([1.0005, 0.9995]))
@settings(max_examples=15)
@pytest.mark.slow
def test_error_of_half_a_per_mille_in_one_element_is_found(size, element, factor):
    element %= size

    def gradient(g, x):
        gx = g * x.cos()
        gx[element] *= factor
        return gx

    result = compare(function(torch.sin, gradient), uniform(size, low=-1, high=1))
    assert [c.index for c in result.wrong] == [(element,)]


@pytest.mark.parametrize("elements", [1, 3, 48])
@pytest.mark.parametrize("element", [0, 517, 1022])
def test_single_wrong_element_of_many_is_found(elements, element):
    def gradient(g, x):
        gx = g * x.cos()
        gx.flatten()[element] = 0.0
        return gx

    x = uniform(33, 31, low=-1, high=1)
    result = compare(function(torch.sin, gradient), x, elements=elements, few_samples=True)
    (wrong,) = result.wrong
    assert wrong.index == divmod(element, 31)
    assert wrong.got == 0.0
    assert wrong.failing == 1


def test_wrong_comparison_has_index_counts_and_values():
    def gradient(g, x):
        return g * x.cos() * torch.tensor([1.0, 1.0, 1.5])

    result = compare(function(torch.sin, gradient), torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64))
    (wrong,) = result.wrong
    assert (wrong.index, wrong.failing, wrong.compared) == ((2,), 1, 3)
    assert abs(wrong.got / wrong.expected - 1.5) < 1e-9
    assert wrong.bar < 1e-9
    assert not wrong.flat


@pytest.mark.parametrize(("off", "expected"), [(0.0, "ok"), (1e-7, "ok"), (1e-2, "wrong")])
@pytest.mark.parametrize("shape", [(3, 5), (60,)], ids=str)
def test_float32_forward_widens_the_error_bar(off, expected, shape):
    fn = function(lambda x: x.float().exp().double(), lambda g, x: (1 + off) * g * x.float().exp().double())
    assert status(fn, uniform(*shape, low=-1, high=1)) == [expected]


def test_noise_hides_smaller_errors():
    """Half a per mille of a value that is only known to one in ten thousand."""

    def rough(x):
        return x.exp() + 1e-4 * torch.frac(torch.sin(x * 1e7) * 43758.5453)

    assert "wrong" not in status(function(rough, lambda g, x: 1.0005 * g * x.exp()), normal(3))
    assert status(function(rough, lambda g, x: 2 * g * x.exp()), normal(3)) == ["wrong"]


@pytest.mark.parametrize("at_zero", [0.0, 0.25, 1.0])
def test_any_subgradient_at_a_kink_is_ok(at_zero):
    fn = function(torch.relu, lambda g, x: g * torch.where(x == 0, at_zero, (x > 0).double()))
    assert status(fn, torch.tensor([0.0, -1.0, 0.0, 2.0], dtype=torch.float64)) == ["ok"]


@pytest.mark.parametrize("size", [1e-4, 1e-5, 1e-6, 1e-8])
def test_subgradient_at_a_small_kink_is_ok(size):
    fn = function(lambda x: x + size * x.relu(), lambda g, x: g * (1 + size * (x > 0).double()))
    assert status(fn, torch.tensor([0.0, -1.0, 2.0], dtype=torch.float64)) == ["ok"]


@pytest.mark.parametrize("at_zero", [2.0, -0.5, torch.nan])
def test_value_outside_the_subdifferential_is_wrong(at_zero):
    fn = function(torch.relu, lambda g, x: g * torch.where(x == 0, at_zero, (x > 0).double()))
    (wrong,) = compare(fn, torch.tensor([1.0, 0.0, -2.0], dtype=torch.float64)).wrong
    assert wrong.index == (1,)
    assert wrong.kink


class Sort(Function):
    @staticmethod
    def forward(ctx, x):
        y, index = x.sort()
        ctx.save_for_backward(index)
        ctx.mark_non_differentiable(index)
        return y, index

    @staticmethod
    def backward(ctx, g, _):
        (index,) = ctx.saved_tensors
        return torch.zeros_like(g).scatter(0, index, g)


class SortsWrong(Sort):
    @staticmethod
    def backward(ctx, g, _):
        return g


def test_sort_with_ties_is_not_accused():
    tied = torch.tensor([0.5, 0.5, -1.0, 0.5, 2.0, 2.0], dtype=torch.float64)
    assert "wrong" not in status(Sort, tied)
    assert status(Sort, normal(40)) == ["ok"]
    assert status(SortsWrong, torch.tensor([0.5, -1.0, 3.0, 2.0], dtype=torch.float64)) == ["wrong"]


@pytest.mark.parametrize("chosen", [[0], [3], [0, 1, 3]])
def test_max_with_ties_is_not_accused(chosen):
    """The first, the last or a share for each: all are limits of gradients, or their averages."""

    def gradient(g, x):
        gx = torch.zeros_like(x)
        gx[chosen] = g / len(chosen)
        return gx

    tied = torch.tensor([1.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    assert "wrong" not in status(function(torch.max, gradient), tied)


@pytest.mark.parametrize(("conjugate", "expected"), [(True, "ok"), (False, "wrong")])
def test_complex_gradient_needs_the_conjugate(conjugate, expected):
    fn = function(lambda z: z * z, lambda g, z: g * (2 * z).conj() if conjugate else g * 2 * z)
    assert status(fn, normal(2, 3, dtype=torch.complex128)) == [expected]


def test_real_output_of_complex_input_is_ok():
    assert status(function(lambda z: z.abs() ** 2, lambda g, z: 2 * g * z), normal(4, dtype=torch.complex128)) == ["ok"]


class Product(Function):
    """Scaled wrongly in `b` if `slip` is not 1."""

    @staticmethod
    def forward(ctx, a, b, slip=1.0):
        ctx.save_for_backward(a, b)
        ctx.slip = slip
        return a * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * b, ctx.slip * g * a, None


def test_each_input_is_compared():
    assert status(Product, normal(3), normal(3, seed=1)) == ["ok", "ok"]
    assert status(Product, normal(3), normal(3, seed=1), 1.01) == ["ok", "wrong"]


def test_tensor_passed_twice_is_one_input():
    x = normal(3)
    assert status(Product, x, x) == ["ok"]
    assert status(Product, x, x, 1.01) == ["wrong"]


def test_input_without_requires_grad_is_not_compared():
    assert status(Product, normal(3).requires_grad_(), normal(3, seed=1), 5.0) == ["ok"]


class Halves(Function):
    @staticmethod
    def forward(ctx, x, slip=1.0):
        ctx.slip = slip
        a, b = x.chunk(2)
        return a.exp(), a > 0, b.sin(), ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, ga, _, gb, __):
        a, b = ctx.saved_tensors[0].chunk(2)
        return torch.cat([ga * a.exp(), ctx.slip * gb * b.cos()]), None


def test_several_outputs_are_compared():
    assert status(Halves, normal(6)) == ["ok"]
    result = compare(Halves, normal(6), 0.9)
    assert result.wrong[0].failing == 3
    assert len(result.cotangents) == 2


def test_missing_gradient_counts_as_zero():
    assert status(function(torch.sin, lambda g, x: None), normal(3)) == ["wrong"]
    assert "wrong" not in status(function(lambda x: torch.ones_like(x), lambda g, x: None), normal(3))


def test_flat_forward_is_flagged():
    (wrong,) = compare(function(torch.round, lambda g, x: g), uniform(5, low=0.1, high=0.4)).wrong
    assert wrong.flat
    assert not wrong.moves


def test_nonfinite_gradient_is_wrong():
    assert status(function(torch.sin, lambda g, x: g / (x * 0)), normal(3)) == ["wrong"]


def test_exception_in_backward_is_returned():
    def gradient(g, x):
        raise ValueError("no backward")

    result = compare(function(torch.sin, gradient), normal(3))
    assert "ValueError: no backward" in str(result.error)
    assert result.comparisons == []


@pytest.mark.parametrize("value", [lambda x: x / 0, lambda x: x.round().long(), lambda x: x.view(7)])
def test_output_without_finite_derivative_is_not_compared(value):
    assert compare(function(value, lambda g, x: g), normal(3)) is None


def test_low_precision_uses_its_own_tolerance():
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        assert "wrong" not in status(function(torch.sin, lambda g, x: g * x.cos()), normal(5).to(dtype))
    assert status(function(torch.sin, lambda g, x: -g * x.cos()), normal(5).float()) == ["wrong"]


def test_agrees_accepts_the_right_gradient_only():
    subject, x = subject_of(Product), normal(3)
    result = compare(Product, x, normal(3, seed=1), 1.5)
    right = result.cotangents[0] * x
    assert agrees(subject, result, 1, right, torch.Generator().manual_seed(0))
    assert not agrees(subject, result, 1, -right, torch.Generator().manual_seed(0))


def test_moves_output_finds_the_dependence_of_each_output():
    class TwoByTwo(Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a.sin(), a * b

        @staticmethod
        def backward(ctx, ga, gb):
            a, b = ctx.saved_tensors
            return ga * a.cos() + gb * b, gb * a

    subject, result = subject_of(TwoByTwo), compare(TwoByTwo, normal(3), normal(3, seed=1))
    moved = [
        [moves_output(subject, result, order, output, torch.Generator().manual_seed(0)) for output in (0, 1)]
        for order in (0, 1)
    ]
    assert moved == [[True, True], [False, True]]


@pytest.mark.parametrize(("last", "expected"), [(2e-20, ["ok"]), (2.0, ["wrong"])])
def test_underflowing_gradient_is_ok(last, expected):
    """The truth comes from a float64 run: of x[2] it is 3e-53, in float32 0. Of x[1] it is `last` · 1e-30."""
    x = torch.tensor([1e-30, 3e-23, last], dtype=torch.float32)
    zero = function(lambda x: x.prod(), lambda g, x: torch.zeros_like(x) * g)
    wide = case_of(zero, x.double())
    generator = torch.Generator().manual_seed(0)
    found = first_order(subject_of(zero), case_of(zero, x), generator, directions=3, numeric=wide)
    assert [c.status for c in found.comparisons] == expected


def test_median_of_equal_values_may_select_any_of_them():
    """Moved alone, none of them moves the median, up or down; moved together they do."""

    def gradient(g, x):
        gx = torch.zeros_like(x)
        gx[x.median(0).indices] = g
        return gx

    median = function(lambda x: x.median(0).values, gradient)
    double = function(lambda x: x.median(0).values, lambda g, x: 2 * gradient(g, x))
    assert status(median, torch.zeros(5, dtype=torch.float64)) == ["ok"]
    assert status(median, torch.arange(5, dtype=torch.float64)) == ["ok"]
    assert status(double, torch.arange(5, dtype=torch.float64)) == ["wrong"]


def test_forward_that_rejects_partial_moves_is_compared():
    def median(x):
        if x.unique().numel() > 2:
            raise ValueError("too many values")
        return x.median(0).values

    assert status(function(median, lambda g, x: g * torch.ones_like(x)), torch.zeros(5, dtype=torch.float64)) == [
        "wrong"
    ]


@pytest.mark.parametrize(("factor", "expected"), [(1, {"ok", "inconclusive"}), (3, {"wrong", "inconclusive"})])
def test_ripple_shorter_than_the_steps_is_not_accused(factor, expected):
    rippled = function(lambda x: (x * x).sin(), lambda g, x: factor * g * 2 * x * (x * x).cos())
    found = {status(rippled, 1e6 * normal(3, seed=seed))[0] for seed in range(6)}
    assert found <= expected
    assert status(rippled, normal(3)) == ["ok" if factor == 1 else "wrong"]

"""Findings on generated variants, which are less severe than findings on the example."""

import pytest
import torch
from torch import nn
from torch.autograd import Function

import pullback
from pullback.check.derivative.compare_input import Comparison
from pullback.check.derivative.first_order import FirstOrder

from .making import function, normal


def loud(report):
    return {(f.rule, f.severity) for f in report.findings if f.severity != "info"}


class Scatter(Function):
    """Adds up x at places that are fixed; its gradient has as many elements as there are places."""

    @staticmethod
    def forward(ctx, x, places, size):
        ctx.save_for_backward(places)
        ctx.size = size
        return torch.zeros(*x.shape[:-1], size, dtype=x.dtype).index_add(-1, places, x[..., places])

    @staticmethod
    def backward(ctx, g):
        (places,) = ctx.saved_tensors
        return torch.zeros(*g.shape[:-1], ctx.size, dtype=g.dtype).index_add(-1, places, g[..., places]), None, None


class Algebra(nn.Module):
    """Takes vectors of one length alone, and does not say so."""

    def __init__(self):
        super().__init__()
        self.size = 6
        self.register_buffer("places", torch.tensor([0, 2, 4, 5, 1]))

    def forward(self, x):
        return Scatter.apply(x, self.places, self.size)


def test_sizes_stored_in_a_module_cause_no_finding():
    assert not loud(pullback.check(Algebra(), normal(3, 6), select=("PB1", "PB5")))


class Some(Function):
    """The sum of the squares of the first elements, whose backward differentiates them all."""

    @staticmethod
    def forward(ctx, x, count):
        ctx.save_for_backward(x)
        return x[:count].square().sum()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x, None


@pytest.mark.parametrize(("count", "severity"), [(3, "warning"), (4, "error")])
def test_gradient_of_what_is_ignored_at_another_size(count, severity):
    def some(x):
        return Some.apply(x, count)

    assert loud(pullback.check(some, normal(3), select="PB101")) == {("PB101", severity)}


class Rows(Function):
    """The first rows of x, as many as a table has, times the table: with fewer rows the backward raises."""

    @staticmethod
    def forward(ctx, x, table):
        ctx.save_for_backward(x, table)
        return x[: len(table)] * table[: len(x)]

    @staticmethod
    def backward(ctx, g):
        _, table = ctx.saved_tensors
        return g * table, None


def test_sizes_of_a_tensor_in_a_closure_cause_no_finding():
    table = normal(3, 4)
    report = pullback.check(lambda x: Rows.apply(x, table), normal(3, 4), select=("PB1", "PB5", "PB409"))
    assert not loud(report), str(report)


def test_index_error_on_a_variant_is_not_reported():
    class Occupied(Function):
        @staticmethod
        def forward(ctx, x, table):
            ctx.save_for_backward(x, table)
            return x * 1

        @staticmethod
        def backward(ctx, g):
            x, table = ctx.saved_tensors
            return g * (1 + 0 * table[int(x.flatten()[0])]), None

    table = torch.zeros(4, dtype=torch.float64)
    assert not loud(pullback.check(lambda x: Occupied.apply(x, table), 2.5 + 0.1 * normal(3).abs(), select="PB119"))


def test_exception_on_a_variant_is_a_warning_and_on_the_example_an_error():
    def backward(g, x):
        if bool((x == 0).any()):
            [][0]
        return g * 2

    doubles = function(lambda x: 2 * x, backward)
    assert loud(pullback.check(doubles, normal(4), select="PB119")) == {("PB119", "warning")}
    assert loud(pullback.check(doubles, torch.zeros(4, dtype=torch.float64), select="PB119")) == {("PB119", "error")}


def test_name_without_a_value_is_an_error_on_a_variant():
    def backward(g, x):
        if bool((x != 0).all()):
            factor = 2
        return g * factor

    doubles = function(lambda x: 2 * x, backward)
    assert loud(pullback.check(doubles, normal(4), select="PB119")) == {("PB119", "error")}


class Clip(Function):
    """Cuts off at two limits; where the lower one is above the upper one, it has no meaning."""

    @staticmethod
    def forward(ctx, x, clip_min, clip_max):
        ctx.save_for_backward(x, clip_min, clip_max)
        return x.clamp(clip_min, clip_max)

    @staticmethod
    def backward(ctx, g):
        x, low, high = ctx.saved_tensors
        return g * ((x > low) & (x < high)), (g * (x < low)).sum(), (g * (x > high)).sum()


@pytest.mark.parametrize("kind", ["tensors", "numbers"])
def test_limits_keep_their_order(kind):
    limits = [torch.tensor(-0.7, dtype=torch.float64), torch.tensor(0.4, dtype=torch.float64)]
    if kind == "tensors":
        assert not loud(pullback.check(Clip, normal(3, 4), *limits, select="PB101"))
    else:
        case = pullback.check(lambda x, low, high: x.clamp(low, high), normal(3, 4), -0.7, 0.4, select="PB101")
        assert not loud(case)


def test_difference_negligible_beside_the_example_is_small():
    """Like rounding errors in a normalisation of constant rows, whose slope is 10⁶."""
    tiny = Comparison(0, "wrong", expected=0.0, got=2e-10, largest=2e-10)
    usual = Comparison(0, "ok", expected=0.3, got=0.3, largest=0.3)
    assert not tiny.is_small
    of_variant, of_example = (FirstOrder(None, None, [], comparisons=[c]) for c in (tiny, usual))
    assert of_variant.weighed_against(of_example).comparisons[0].is_small
    assert not of_example.weighed_against(of_variant).comparisons[0].is_small


@pytest.mark.parametrize("runs", [8, 13])
def test_function_that_does_not_run_again_is_no_internal_error(runs):
    calls = []

    def once(x):
        calls.append(1)
        if len(calls) > runs:
            raise RuntimeError("compiled for one call")
        return x * 2

    (found,) = [f for f in pullback.check(once, normal(3), select="PB1").findings if f.verdict == "unaudited"]
    assert "does not run again" in found.message
    assert "bug of Pullback" not in found.message


class Gathered(torch.autograd.Function):
    """The element of each row that a label names, 0 for a label of -1; times its share in the row with a flag."""

    skips = True

    @classmethod
    def weigh(cls, x, labels, weighted):
        weights = (labels >= 0).to(x.dtype)
        if weighted:
            at = labels.clamp(min=0) if cls.skips else labels
            weights = weights * x.softmax(-1).gather(-1, at[:, None])[:, 0]
        return weights

    @staticmethod
    def forward(ctx, x, labels, weighted=False):
        """weighted: whether each element counts by its share, which is detached."""
        ctx.weights, ctx.like, ctx.labels = Gathered.weigh(x, labels, weighted), x, labels
        return ctx.weights * x.gather(-1, labels.clamp(min=0)[:, None])[:, 0]

    @staticmethod
    def backward(ctx, g):
        gx = torch.zeros_like(ctx.like)
        return gx.scatter(-1, ctx.labels.clamp(min=0)[:, None], (g * ctx.weights)[:, None]), None, None


@pytest.mark.parametrize(("skips", "labels", "expected"), [
    (True, [0, -1, 2], set()),
    (False, [0, 1, 2], set()),
    (False, [0, -1, 2], {("PB119", "warning")}),
])  # fmt: skip
def test_flag_that_raises_on_labels_which_the_function_takes_without_it(monkeypatch, skips, labels, expected):
    monkeypatch.setattr(Gathered, "skips", skips)
    x, labels = normal(3, 4), torch.tensor(labels)
    if expected:
        assert torch.equal(Gathered.apply(x, labels)[labels >= 0], x[[0, 2], [0, 2]])
        with pytest.raises(RuntimeError, match="out of bounds"):
            Gathered.apply(x, labels, True)
    assert loud(pullback.check(Gathered, x, labels, select="PB119", budget=30)) == expected


class MeanOfKept(torch.autograd.Function):
    """The mean of the elements of x whose label is not negative."""

    at_least = 0
    is_skipped = False

    @staticmethod
    def forward(ctx, x, labels):
        kept = labels >= 0
        ctx.kept, ctx.count = kept, kept.sum().clamp(min=MeanOfKept.at_least)
        return (x * kept).sum() / ctx.count

    @staticmethod
    def backward(ctx, g):
        each = g / ctx.count * ctx.kept
        return torch.where(ctx.kept, each, 0) if MeanOfKept.is_skipped else each, None


@pytest.mark.parametrize(("at_least", "is_skipped", "expected"), [
    (1, False, set()),
    (0, True, set()),  # the value is 0/0, the gradient 0, as of PyTorch's losses
    (0, False, {("PB101", "warning")}),
])  # fmt: skip
def test_gradient_that_is_nan_if_all_labels_are_ignored(monkeypatch, at_least, is_skipped, expected):
    monkeypatch.setattr(MeanOfKept, "at_least", at_least)
    monkeypatch.setattr(MeanOfKept, "is_skipped", is_skipped)
    x, none = normal(3, 4).requires_grad_(), torch.full((3,), -100)
    (of_torch,) = torch.autograd.grad(nn.functional.cross_entropy(x, none), x)
    (ours,) = torch.autograd.grad(MeanOfKept.apply(x[:, 0], none), x)
    assert torch.equal(ours, of_torch) is (not expected)
    report = pullback.check(MeanOfKept, normal(3), torch.tensor([0, -100, 2]), select="PB101", budget=30)
    assert loud(report) == expected
    assert all(
        f.message == "the gradient of x is not finite (with whole-number arguments all -100)" for f in report.findings
    )

"""In-place ops in traced derivatives become functional where nothing else sees the written tensor."""

import pytest
import torch

import pullback
from pullback import _torch
from pullback.graph.trace import functionalise, mutates

X = torch.tensor([-2.0, 0.5, 3.0])


def lent(x):
    y = x + 1
    z = y.mul_(2)
    return [z + y]


def of_a_view(x):
    y = x + 1
    y.view(3)[:2].mul_(2)
    return [y]


def of_an_input(x):
    return [x.mul_(2)]


def of_another_dtype(x):
    y = x + 1
    return [y.add_(x.double())]


def with_a_number(x):
    y = x.long()
    return [y.mul_(2), (x > 0).logical_and_(x < 1)]


def of_truth_values(x):
    return [(x > 0).logical_and_(x)]


def of_numbers_by_truth(x):
    return [(x * 2).logical_and_(x > 0)]


def masked(x):
    return [(x * 2).masked_fill_(x > 0, 0.5)]


def own(x):
    y = x + 1
    return [(x > 0).logical_and_(x < 1), y.mul_(3.0), (x * 2).clamp_(0, 1)]


@pytest.mark.parametrize("formula", [of_a_view, of_an_input, of_another_dtype, of_truth_values, of_numbers_by_truth])
def test_writes_seen_elsewhere_or_that_cast_stay_in_place(formula):
    graph = _torch.trace_ops(formula, X)
    assert functionalise(graph.graph) is not None
    assert mutates(graph.graph)
    for ours, theirs in zip(graph(X.clone()), formula(X.clone()), strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("formula", [own, lent, with_a_number, masked])
def test_writes_to_private_tensors_become_functional(formula):
    graph = _torch.trace_ops(formula, X)
    assert functionalise(graph.graph) is None
    assert not mutates(graph.graph)
    for ours, theirs in zip(graph(X.clone()), formula(X.clone()), strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


def test_clamp_is_one_kernel_forward_and_one_backward(native):
    """PyTorch's derivative of `clamp` writes to a mask that it has made."""
    op = pullback.function(lambda x, s: torch.clamp(x / s, -1, 1) * s)
    x, s = torch.randn(20, requires_grad=True), torch.tensor(0.5, requires_grad=True)
    assert [saved.name for saved in op.saved(x, s)] == ["x", "s"]
    gradients = torch.autograd.grad(op(x, s).sum(), (x, s))
    expected = torch.autograd.grad((torch.clamp(x / s, -1, 1) * s).sum(), (x, s))
    for ours, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours, theirs)

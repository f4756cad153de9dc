"""Backward graphs restricted to some outputs, against autograd of those outputs."""

from itertools import combinations

import pytest
import torch
from torch import Tensor

from pullback._torch import trace_ops
from pullback.graph.partition import joint_of
from pullback.graph.restricted import restricted

X = torch.tensor([0.0, 4.0, 0.25], dtype=torch.float64)
Y = torch.tensor([3.0, 0.0, 2.0], dtype=torch.float64)


def joint(formula):
    """Return the graphs of a formula of two tensors, and its tensors."""
    xs = [X.clone().requires_grad_(), Y.clone().requires_grad_()]
    return joint_of(formula, formula, xs, formula(*xs), [0, 1], False, trace_ops), xs


def run(part, whole, xs, cotangents):
    """Gradients of a restricted graph, from the tensors that the forward of the whole saved."""
    results = list(whole.forward(*[x.detach() for x in xs]))
    later = iter(results[whole.n_outputs :])
    saved = [next(later) if i is None else xs[i].detach() for i in part.saved]
    return part.backward(*saved, *cotangents)


FORMULAS = {
    "slopes that are infinite": lambda x, y: [torch.sqrt(x), x * y, torch.rsqrt(y + 1)],
    "a stack": lambda x, y: [*torch.stack([torch.sqrt(x), y * y]).unbind(), x + y],
    "a sum and what it is of": lambda x, y: [(x.sqrt() * y).sum(), x.sqrt() * y, y.exp()],
}


@pytest.mark.parametrize("formula", FORMULAS.values(), ids=FORMULAS)
@pytest.mark.parametrize("used", [used for k in (1, 2) for used in combinations(range(3), k)])
def test_restricted_gradients_match_autograd_of_the_used_outputs(formula, used):
    whole, xs = joint(formula)
    part = restricted(whole, used)
    outs = formula(*xs)
    right = torch.autograd.grad([outs[i].sum() for i in used], xs, allow_unused=True)
    got = run(part, whole, xs, [torch.ones_like(outs[i]) for i in used])
    assert part.connected == used
    assert part.saved == whole.saved
    assert list(part.unused) == [g is None for g in right]
    for mine, theirs in zip(got, right, strict=True):
        assert (mine is None) == (theirs is None)
        if isinstance(mine, Tensor):
            torch.testing.assert_close(mine, theirs, rtol=1e-14, atol=0, equal_nan=True)


def test_zero_cotangents_are_not_equivalent_to_restriction():
    whole, xs = joint(FORMULAS["slopes that are infinite"])
    zeros = run(whole, whole, xs, [torch.zeros(3), torch.ones(3), torch.zeros(3)])
    assert zeros[0][0].isnan()


def test_graph_that_compares_a_cotangent_is_not_restricted():
    class Clipped(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            return torch.where(g > 1, 1.0, g)

    whole, _ = joint(lambda x, y: [Clipped.apply(x), x * y])
    assert restricted(whole, (1,)) is None

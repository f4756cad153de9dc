"""Minimum cut: the backward saves as few bytes as possible."""

import pytest
import torch
import torch.nn.functional as F

from pullback.graph.partition import joint_of
from pullback.kernels.eager import lower


def joint(formula, *tensors):
    def flat(*given):
        out = formula(*given)
        return list(out) if isinstance(out, tuple) else [out]

    leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in tensors]
    outputs = [out.detach().requires_grad_() for out in flat(*leaves)]
    wanted = [i for i, x in enumerate(leaves) if x.requires_grad]
    return joint_of(flat, flat, leaves, outputs, wanted, recompute=True)


def saved_bytes(formula, *tensors):
    made = joint(formula, *tensors)
    forward = lower(made.forward)(*tensors)
    later = iter(forward[made.n_outputs :])
    kept = [tensors[i] if i is not None else next(later) for i in made.saved]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kept}
    g = [torch.randn_like(out) for out in forward[: made.n_outputs]]
    gradients = lower(made.backward)(*kept, *g)
    leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in tensors]
    out = formula(*leaves)
    expected = torch.autograd.grad(out, [x for x in leaves if x.requires_grad], g if isinstance(out, tuple) else g[0])
    for ours, theirs in zip(gradients, expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)
    return sum(storages.values())


X, W = torch.rand(16, 32) + 0.1, torch.rand(32) + 0.1
ONE = X.numel() * 4


@pytest.mark.parametrize(
    ("formula", "tensors", "expected"),
    [
        (torch.exp, (X,), ONE),  # the input
        (lambda x: torch.sigmoid(x) * torch.rsqrt(1 + torch.exp(x)), (X,), ONE),
        (lambda x: F.gelu(F.mish(torch.sin(x) * 2) + 1), (X,), ONE),
        (lambda x: torch.exp(x).sum(-1), (X,), ONE),
        (lambda x: torch.log(x).double().sin().float(), (X,), ONE),  # not the wide value between
        (lambda x: (x > 0.5) * x * 3, (X,), ONE),
        (lambda x: x * torch.rsqrt((x * x).mean(-1, keepdim=True)), (X,), ONE + 16 * 4),
        (lambda x, w: F.silu(x) * w, (X, W), ONE + 32 * 4),
        (lambda x, w: torch.exp(x + w), (X, W), ONE + 32 * 4),  # the inputs, which are alive anyway
        (lambda x: torch.cumsum(x, 0).sin().exp(), (X,), ONE),  # one value that is expensive to recompute
        (lambda x: x * 2 + 1, (X,), 0),
    ],
)
def test_saved_bytes_are_minimal(formula, tensors, expected):
    assert saved_bytes(formula, *tensors) == expected


def test_input_is_preferred_to_output_and_output_to_intermediate():
    assert joint(torch.exp, X).saved == (0,)
    made = joint(lambda x: torch.cumsum(x, 0).exp(), X)  # expensive to recompute
    assert made.saved == (None,)
    assert made.forward.graph.output_node().args[0][0] is made.forward.graph.output_node().args[0][1]


def test_cut_through_several_branches():
    def branches(x, y):
        mixed = torch.cumsum(x, 0) * torch.cumsum(y, 0)  # one tensor where its factors are two
        return mixed.sin().sum() + mixed.cos().sum()

    made = joint(branches, X, X + 1)
    assert len(made.saved) <= 3
    assert saved_bytes(branches, X, X + 1) <= 3 * ONE


def test_graph_with_in_place_writes_recomputes_nothing():
    def accumulated(x):
        y = torch.sin(x)
        z = y.clone()
        z[:1].add_(1)
        return torch.exp(z) * y

    assert saved_bytes(accumulated, X) == 3 * ONE  # as autograd saves

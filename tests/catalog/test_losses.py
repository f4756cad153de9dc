"""Losses of logits against mpmath, where probabilities saturate, and against PyTorch elsewhere."""

import mpmath
import pytest
import torch
import torch.nn.functional as F
from tests.catalog.reference import assert_close

from pullback import catalog

SURE = [[30.0, 1.0, -2.0], [90.0, 0.0, 0.5], [-40.0, 3.0, 2.0], [5.0, 5.0, 5.0], [0.0, 60.0, -60.0]]
TARGET = [0, 0, 1, 2, 0]


def exact_gradients():
    found = []
    for row, target in zip(SURE, TARGET, strict=True):
        powers = [mpmath.exp(x) for x in row]
        total = mpmath.fsum(powers)
        others = mpmath.fsum(p for j, p in enumerate(powers) if j != target)
        found.append([float(-others / total) if j == target else float(p / total) for j, p in enumerate(powers)])
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-14), (torch.float32, 2e-6)])
def test_cross_entropy_gradient_is_exact_at_saturated_logits(dtype, rtol):
    logits = torch.tensor(SURE, dtype=dtype, requires_grad=True)
    loss = catalog.cross_entropy(logits, torch.tensor(TARGET))
    (g,) = torch.autograd.grad(loss.sum(), logits)
    assert_close(g.double(), exact_gradients(), rtol=rtol, atol=torch.finfo(dtype).tiny)
    torch.testing.assert_close(
        loss, F.cross_entropy(logits, torch.tensor(TARGET), reduction="none"), rtol=1e-5, atol=1e-7
    )


def test_pytorch_cross_entropy_gradient_vanishes_at_saturated_logits():
    logits = torch.tensor(SURE[:1], requires_grad=True)
    (g,) = torch.autograd.grad(F.cross_entropy(logits, torch.tensor(TARGET[:1])), logits)
    assert g[0, 0] == 0  # the exact one is −2.6e-13


def test_cross_entropy_of_batches_passes_gradcheck_and_gradgradcheck():
    torch.manual_seed(0)
    logits = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    target = torch.randint(4, (2, 3))
    assert catalog.cross_entropy(logits, target).shape == (2, 3)
    assert torch.autograd.gradcheck(lambda x: catalog.cross_entropy(x, target), logits)
    assert torch.autograd.gradgradcheck(lambda x: catalog.cross_entropy(x, target), logits)


def test_cross_entropy_of_one_class_is_0():
    logits = torch.randn(3, 1, requires_grad=True)
    loss = catalog.cross_entropy(logits, torch.zeros(3, dtype=torch.long))
    assert torch.equal(loss, torch.zeros(3))
    (g,) = torch.autograd.grad(loss.sum(), logits)
    assert torch.equal(g, torch.zeros(3, 1))


@pytest.mark.parametrize("x", [-80.0, -17.0, -1.0, 0.0, 0.5, 17.0, 80.0])
@pytest.mark.parametrize("y", [0.0, 0.25, 1.0])
def test_bce_with_logits_matches_mpmath(x, y):
    logit = torch.tensor([x], requires_grad=True)
    loss = catalog.bce_with_logits(logit, torch.tensor([y]))
    (g,) = torch.autograd.grad(loss.sum(), logit)
    p = mpmath.mpf(y)
    left, right = mpmath.log1p(mpmath.exp(-x)), mpmath.log1p(mpmath.exp(x))
    slope = (1 - p) / (1 + mpmath.exp(-x)) - p / (1 + mpmath.exp(x))
    assert loss.item() == pytest.approx(float(p * left + (1 - p) * right), rel=1e-6)
    assert g.item() == pytest.approx(float(slope), rel=1e-6, abs=1e-8 if 0 < y < 1 else 0.0)

"""Modes that detect values leaving PyTorch, and random draws."""

import numpy as np
import pytest
import torch

from pullback.modes import EscapeMode, RandomMode

X = torch.ones(2)


@pytest.mark.parametrize(
    ("leaves", "call"),
    [
        (True, lambda x: x.numpy()),
        (True, lambda x: np.asarray(x)),
        (True, lambda x: x.tolist()),
        (True, lambda x: float(x.sum())),
        (True, lambda x: torch.tensor([x.sum(), 1.0])),
        (True, lambda x: torch.utils.dlpack.from_dlpack(x)),
        (False, lambda x: torch.tensor([1.0, 2.0]) * x),
        (False, lambda x: x.sin().shape),
        (False, lambda x: x.detach().clone()),
    ],
)
def test_escape_mode_detects_values_leaving_pytorch(leaves, call):
    with EscapeMode() as watch:
        call(X)
    assert watch.escaped is leaves


@pytest.mark.parametrize(
    ("draws", "call"),
    [
        (True, lambda x: torch.rand_like(x)),
        (True, lambda x: torch.nn.functional.dropout(x)),
        (True, lambda x: torch.randperm(3)),
        (True, lambda x: x.clone().bernoulli_()),
        (False, lambda x: x.exp().sum()),
        (False, lambda x: torch.nn.functional.dropout(x, training=False)),
    ],
)
def test_random_mode_detects_draws(draws, call):
    with RandomMode() as watch:
        call(X)
    assert watch.drew is draws

"""Helpers that make the same op with calls in C++ and with calls in Python."""

import pytest
import torch

import pullback

NAME = "CppFunction"
"""Python type of an autograd node made in C++."""


def gate(x):
    return torch.sigmoid(x) * torch.rsqrt(1 + torch.exp(x))


def wave(x, y):
    return torch.sin(x) * y.exp() + x * y**2


def both(x, y):
    s = torch.sin(x) * y
    return s, torch.exp(s) + x


def scaled(x, scale, mode="a"):
    return torch.tanh(x) * scale


def parts(x):
    s = torch.sin(x) * x
    return s, s > 0.5


def in_cpp(formula, *args, **options):
    """Return an op whose calls like this one run in C++."""
    op = pullback.function(**options)(formula)
    for _ in range(2):
        op(*args)
    assert op._plans.table is not None
    return op


def in_python(formula, *args, **options):
    """Return the op with its calls in the Python Function."""
    op = pullback.function(**options)(formula)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PULLBACK_NODE", "off")
        op(*args)
    return op


def leaf(*shape, seed=0, dtype=torch.float64, needs=True):
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return x.requires_grad_(needs)


def is_in_cpp(out):
    return type(out.grad_fn).__name__ == NAME


def same(ours, theirs):
    return all(
        (a is None and b is None) or (torch.equal(a, b) and a.stride() == b.stride() and a.dtype == b.dtype)
        for a, b in zip(ours, theirs, strict=True)
    )

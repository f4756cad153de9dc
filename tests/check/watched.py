"""Functions for the tests of `pullback.watch`."""

import torch
from torch.autograd import Function


class Cube(Function):
    """Wrong for negative numbers, of which a guess has many and these tests give none."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x.abs() * x


class Square(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x


cube, square = Cube.apply, Square.apply
"""Bound before the block that captures calls."""


def ones(n=3):
    return torch.ones(n, requires_grad=True)

"""Custom autograd functions such as tutorials print them: short, plausible, and several of them wrong.

The mistakes are on purpose, and each docstring says only what its class is meant to compute, as a tutorial's
would. To find out which ones to trust:

    pullback check examples/tutorial_functions.py
"""

import torch
from torch import Tensor
from torch.autograd import Function


class Exp(Function):
    """The exponential of x."""

    @staticmethod
    def forward(ctx, x: Tensor):
        out = torch.exp(x)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g * out


class SumOfSquaresAndProduct(Function):
    """The sum of squares x² + y² and the product x·y."""

    @staticmethod
    def forward(x: Tensor, y: Tensor):
        return x * x + y * y, x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g_sum, g_product):
        x, y = ctx.saved_tensors
        gx = 2 * x * g_sum + y * g_product
        gy = 2 * y * g_sum + x * g_product
        return gx, gy


class MaskedSum(Function):
    """The sum of the elements of x where the boolean mask is true."""

    @staticmethod
    def forward(ctx, x: Tensor, mask: Tensor):
        ctx.save_for_backward(x, mask)
        return x[mask].sum()

    @staticmethod
    def backward(ctx, g):
        x, mask = ctx.saved_tensors
        return g * torch.ones_like(x[mask]), None


class GatedRsqrt(Function):
    """sigmoid(x) · rsqrt(1 + exp(x))."""

    @staticmethod
    def forward(ctx, x: Tensor):
        ctx.save_for_backward(x)
        return torch.sigmoid(x) * torch.rsqrt(1 + torch.exp(x))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        gate = torch.sigmoid(x)
        root = torch.rsqrt(1 + torch.exp(x))
        d_gate = gate * (1 - gate)
        d_root = -torch.exp(x) * root**3
        return g * (d_gate * root + gate * d_root)


class XExpMinusY(Function):
    """x · exp(-y)."""

    @staticmethod
    def forward(ctx, x: Tensor, y: Tensor):
        decay = torch.exp(-y)
        ctx.save_for_backward(x, decay)
        return x * decay

    @staticmethod
    def backward(ctx, g):
        x, decay = ctx.saved_tensors
        return g * decay, -g * x * decay


class SinSquared(Function):
    """The square of the sine of x."""

    @staticmethod
    def forward(ctx, x: Tensor):
        s = torch.sin(x)
        ctx.save_for_backward(s)
        return s**2

    @staticmethod
    def backward(ctx, g):
        (s,) = ctx.saved_tensors
        return g * 2 * s * torch.cos(s)


class ReLUOneAtZero(Function):
    """The positive part of x, with gradient 1 at 0."""

    @staticmethod
    def forward(x: Tensor):
        return x.clamp(min=0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        (x,) = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x >= 0)


class Double(Function):
    """Twice x."""

    @staticmethod
    def forward(ctx, x: Tensor):
        ctx.save_for_backward(x)
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g


class LogSigmoidNaive(Function):
    """The logarithm of the sigmoid of x."""

    @staticmethod
    def forward(ctx, x: Tensor):
        ctx.save_for_backward(x)
        return torch.log(torch.sigmoid(x))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (1 - torch.sigmoid(x))


class RoundStraightThrough(Function):
    """x rounded to the nearest integer, with the straight-through gradient."""

    @staticmethod
    def forward(ctx, x: Tensor):
        return torch.round(x)

    @staticmethod
    def backward(ctx, g):
        return g


class PowerOf(Function):
    """x to the power n, where n is a plain Python number."""

    @staticmethod
    def forward(x: Tensor, n: float):
        return x**n

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.n = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if ctx.n == 0:
            return torch.zeros_like(g), None
        return g * ctx.n * x ** (ctx.n - 1), None

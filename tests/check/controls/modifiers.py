"""Gradient modifiers: little or nothing in the forward, and in the backward another gradient on purpose."""

import torch
from torch.autograd import Function

from ._control import Control, flags, normal, uniform


class ReverseGradient(Function):
    """x; gradient modifier: -strength * g."""

    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -ctx.strength * g, None


class ScaleGradient(Function):
    """x; gradient modifier: factor * g."""

    @staticmethod
    def forward(x, factor):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx, g):
        return ctx.factor * g, None


class MaskGradient(Function):
    """x; gradient modifier: zero where a mask is set."""

    @staticmethod
    def forward(x, frozen):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, g):
        (frozen,) = ctx.saved_tensors
        return g.masked_fill(frozen, 0), None


class ClipGradientValue(Function):
    """x; gradient modifier: every element of g clipped to [-limit, limit], which is not linear in g."""

    @staticmethod
    def forward(ctx, x, limit):
        ctx.limit = limit
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g.clamp(-ctx.limit, ctx.limit), None


class ClipGradientNorm(Function):
    """x; gradient modifier: g scaled down to a norm of at most limit."""

    @staticmethod
    def forward(ctx, x, limit):
        ctx.limit = limit
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g * (ctx.limit / torch.linalg.vector_norm(g).clamp(min=ctx.limit)), None


class NormaliseGradient(Function):
    """x; gradient modifier: g / (|g| + eps), row by row."""

    @staticmethod
    def forward(x, eps):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.eps = inputs[1]

    @staticmethod
    def backward(ctx, g):
        return g / (torch.linalg.vector_norm(g, dim=-1, keepdim=True) + ctx.eps), None


class SignGradient(Function):
    """x; gradient modifier: sign(g)."""

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g.sign()


class CentreGradient(Function):
    """x; gradient modifier: g less its mean over the last dimension."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g - g.mean(-1, keepdim=True)


class RoundGradient(Function):
    """x; gradient modifier: g rounded to a lower precision."""

    @staticmethod
    def forward(ctx, x, dtype):
        ctx.dtype = dtype
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g.to(ctx.dtype).to(g.dtype), None


class LowerBound(Function):
    """max(x, bound); gradient modifier: where it saturates, a gradient that would push x up passes too."""

    @staticmethod
    def forward(ctx, x, bound):
        ctx.bound = bound
        ctx.save_for_backward(x)
        return x.clamp(min=bound)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ((x >= ctx.bound) | (g < 0)), None


class UpperBound(Function):
    """min(x, bound); gradient modifier: where it saturates, a gradient that would push x down passes too."""

    @staticmethod
    def forward(x, bound):
        return x.clamp(max=bound)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.bound = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return torch.where((x <= ctx.bound) | (g > 0), g, 0), None


class ElementwiseScaling(Function):
    """round(x); straight-through, g scaled by its sign and the rounding error (EWGS): not linear in g."""

    @staticmethod
    def forward(ctx, x, delta):
        ctx.delta = delta
        ctx.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (1 + ctx.delta * g.sign() * (x - x.round())), None


CONTROLS = [
    Control("reverse-gradient", ReverseGradient, lambda: (normal(3, 4), 0.5), exact=False),
    Control("scale-gradient", ScaleGradient, lambda: (normal(3, 4), 0.1), exact=False),
    Control("mask-gradient", MaskGradient, lambda: (normal(3, 4), flags(3, 4)), exact=False),
    Control("clip-gradient-value", ClipGradientValue, lambda: (normal(3, 4), 0.5), exact=False),
    Control("clip-gradient-norm", ClipGradientNorm, lambda: (normal(3, 4), 1.0), exact=False),
    Control("normalise-gradient", NormaliseGradient, lambda: (normal(3, 4), 1e-3), exact=False),
    Control("sign-gradient", SignGradient, lambda: (normal(3, 4),), exact=False),
    Control("centre-gradient", CentreGradient, lambda: (normal(3, 4),), exact=False),
    Control("round-gradient", RoundGradient, lambda: (normal(3, 4), torch.bfloat16), exact=False),
    Control("lower-bound", LowerBound, lambda: (normal(3, 4), 0.1), exact=False),
    Control("upper-bound", UpperBound, lambda: (normal(3, 4), 0.1), exact=False),
    Control(
        "element-wise-scaling",
        ElementwiseScaling,
        lambda: (uniform(3, 4, low=-3.0, high=3.0), 0.2),
        exact=False,
    ),
]

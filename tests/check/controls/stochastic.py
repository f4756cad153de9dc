"""Randomness: drawn in the forward and saved, drawn again from a seed, or given.

A saved draw is neither input nor output, yet second derivatives are right: no input changes it.
"""

import torch
from torch.autograd import Function

from ._control import Control, flags, normal

DRAWS = "draws from the global generator: seed it before each call"


class MaskedDropout(Function):
    """x / (1 - p) where a given mask is set, 0 elsewhere."""

    @staticmethod
    def forward(ctx, x, kept, p):
        ctx.p = p
        ctx.save_for_backward(kept)
        return x * kept / (1 - p)

    @staticmethod
    def backward(ctx, g):
        (kept,) = ctx.saved_tensors
        return g * kept / (1 - ctx.p), None, None


class Dropout(Function):
    """Dropout that draws its mask and saves it, and does nothing if not training."""

    @staticmethod
    def forward(ctx, x, p, training):
        ctx.p, ctx.training = p, training
        if not training:
            return x.clone()
        kept = torch.rand_like(x) >= p
        ctx.save_for_backward(kept)
        return x * kept / (1 - p)

    @staticmethod
    def backward(ctx, g):
        if not ctx.training:
            return g, None, None
        (kept,) = ctx.saved_tensors
        return g * kept / (1 - ctx.p), None, None


class SeededDropout(Function):
    """Dropout whose mask is drawn again in the backward, from a seed."""

    @staticmethod
    def kept(t, p, seed):
        generator = torch.Generator(t.device).manual_seed(seed)
        return torch.rand(t.shape, generator=generator, device=t.device) >= p

    @staticmethod
    def forward(x, p, seed):
        return x * SeededDropout.kept(x, p, seed) / (1 - p)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.p, ctx.seed = inputs

    @staticmethod
    def backward(ctx, g):
        return g * SeededDropout.kept(g, ctx.p, ctx.seed) / (1 - ctx.p), None, None


class DropPath(Function):
    """Whole samples dropped, the others scaled up."""

    @staticmethod
    def forward(ctx, x, p):
        scale = (torch.rand(len(x), *[1] * (x.dim() - 1), device=x.device) >= p).to(x.dtype) / (1 - p)
        ctx.save_for_backward(scale)
        return x * scale

    @staticmethod
    def backward(ctx, g):
        (scale,) = ctx.saved_tensors
        return g * scale, None


class Reparameterise(Function):
    """mean + exp(log_variance / 2) * noise, with the noise drawn and saved."""

    @staticmethod
    def forward(ctx, mean, log_variance):
        noise = torch.randn_like(mean)
        ctx.save_for_backward(log_variance, noise)
        return mean + torch.exp(log_variance / 2) * noise

    @staticmethod
    def backward(ctx, g):
        log_variance, noise = ctx.saved_tensors
        return g, g * noise * torch.exp(log_variance / 2) / 2


class RandomisedLeakyRelu(Function):
    """x where it is positive, a random slope times x elsewhere."""

    @staticmethod
    def forward(ctx, x, low, high):
        slope = torch.where(x > 0, 1, low + (high - low) * torch.rand_like(x))
        ctx.save_for_backward(slope)
        return x * slope

    @staticmethod
    def backward(ctx, g):
        (slope,) = ctx.saved_tensors
        return g * slope, None, None


CONTROLS = [
    Control("masked-dropout", MaskedDropout, lambda: (normal(3, 4), flags(3, 4), 0.5)),
    Control("dropout", Dropout, lambda: (normal(3, 4), 0.4, True), note=DRAWS),
    Control("dropout-not-training", Dropout, lambda: (normal(3, 4), 0.4, False)),
    Control("seeded-dropout", SeededDropout, lambda: (normal(3, 4), 0.4, 7)),
    Control("drop-path", DropPath, lambda: (normal(4, 3), 0.3), note=DRAWS),
    Control("reparameterise", Reparameterise, lambda: (normal(3, 4), normal(3, 4, seed=1)), note=DRAWS),
    Control("randomised-leaky-relu", RandomisedLeakyRelu, lambda: (normal(3, 4), 0.1, 0.3), note=DRAWS),
]

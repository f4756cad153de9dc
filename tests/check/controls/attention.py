"""Attention, and rotary position embeddings."""

import math

import torch
from torch.autograd import Function

from ._control import Control, flags, normal


class Rotary(Function):
    """Pairs of the last dimension turned by given angles."""

    @staticmethod
    def turn(x, angle):
        pairs = x.unflatten(-1, (-1, 2))
        cos, sin = angle.cos(), angle.sin()
        return torch.stack(
            [pairs[..., 0] * cos - pairs[..., 1] * sin, pairs[..., 0] * sin + pairs[..., 1] * cos], -1
        ).flatten(-2)

    @staticmethod
    def forward(x, angle):
        return Rotary.turn(x, angle)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, angle = ctx.saved_tensors
        pairs, gpairs = (t.unflatten(-1, (-1, 2)) for t in (x, Rotary.turn(g, -angle)))
        gangle = gpairs[..., 1] * pairs[..., 0] - gpairs[..., 0] * pairs[..., 1]
        return gpairs.sum_to_size(pairs.shape).flatten(-2), gangle.sum_to_size(angle.shape)


class Attention(Function):
    """softmax(q @ k.T / sqrt(d)) @ v, recomputing the probabilities; an optional mask says what is seen."""

    @staticmethod
    def probabilities(q, k, mask):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        return torch.softmax(scores if mask is None else scores.masked_fill(~mask, -math.inf), dim=-1)

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, q, k, v, mask):
        ctx.save_for_backward(q, k, v, mask)
        return Attention.probabilities(q, k, mask) @ v

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, g):
        q, k, v, mask = ctx.saved_tensors
        p = Attention.probabilities(q, k, mask)
        gp = g @ v.mT
        gscores = p * (gp - (gp * p).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
        return gscores @ k, gscores.mT @ q, p.mT @ g, None


def _attention_inputs(mask):
    return normal(2, 3, 4), normal(2, 5, 4, seed=1), normal(2, 5, 2, seed=2), mask


def _causal():
    return torch.ones(3, 5, dtype=torch.bool).tril(1) | flags(3, 5)


CONTROLS = [
    Control("rotary", Rotary, lambda: (normal(2, 3, 4), normal(3, 2, seed=1))),
    Control("attention", Attention, lambda: _attention_inputs(None)),
    Control("attention-masked", Attention, lambda: _attention_inputs(_causal())),
]

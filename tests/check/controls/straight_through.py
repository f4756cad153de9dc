"""Straight-through estimators: a step in the forward, a gradient that passes as if it were not there."""

import torch
import torch.nn.functional as F
from torch.autograd import Function

from ._control import Control, normal, uniform


class RoundStraightThrough(Function):
    """round(x); straight-through: the gradient of x itself."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g.clone()


class FloorStraightThrough(Function):
    """floor(x); straight-through: the gradient of x itself."""

    @staticmethod
    def forward(x):
        return x.floor()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g


class SignStraightThrough(Function):
    """sign(x) with sign(0) = 1; straight-through: the gradient of x itself."""

    @staticmethod
    def forward(x):
        return torch.where(x >= 0, 1, -1).to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g


class BinariseClipped(Function):
    """sign(x); straight-through where |x| <= 1, as in binarised networks, and zero beyond."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x.abs() <= 1)


class ApproxSign(Function):
    """sign(x); surrogate: the gradient of a parabola on either side, 2 - 2 |x| where it is positive."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (2 - 2 * x.abs()).clamp(min=0)


class Ternarise(Function):
    """-1, 0 or 1 by a threshold; straight-through where |x| <= 1."""

    @staticmethod
    def forward(x, threshold):
        return x.sign() * (x.abs() > threshold)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return torch.where(x.abs() <= 1, g, 0), None


class ClampStraightThrough(Function):
    """min(max(x, low), high); straight-through: the gradient passes where it saturates too."""

    @staticmethod
    def forward(ctx, x, low, high):
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx, g):
        return g, None, None


class RoundTripCast(Function):
    """x rounded to a lower precision and back; straight-through."""

    @staticmethod
    def forward(ctx, x, dtype):
        return x.to(dtype).to(x.dtype, copy=True)

    @staticmethod
    def backward(ctx, g):
        return g, None


class FakeQuantise(Function):
    """x on a grid of 2**bits levels given by scale and zero point; straight-through inside its range."""

    @staticmethod
    def forward(ctx, x, scale, zero_point, bits):
        ctx.scale, ctx.zero_point, ctx.bits = scale, zero_point, bits
        ctx.save_for_backward(x)
        level = torch.round(x / scale + zero_point).clamp(0, 2**bits - 1)
        return (level - zero_point) * scale

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        level = torch.round(x / ctx.scale + ctx.zero_point)
        inside = (level >= 0) & (level <= 2**ctx.bits - 1)
        return torch.where(inside, g, 0), None, None, None


class LearntStep(Function):
    """scale * round(clamp(x / scale, low, high)), LSQ; straight-through in the rounding alone."""

    @staticmethod
    def forward(ctx, x, scale, low, high):
        ctx.low, ctx.high = low, high
        ctx.save_for_backward(x, scale)
        return (x / scale).clamp(low, high).round() * scale

    @staticmethod
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        v = x / scale
        inside = (v >= ctx.low) & (v <= ctx.high)
        gx = gscale = None
        if ctx.needs_input_grad[0]:
            gx = torch.where(inside, g, 0)
        if ctx.needs_input_grad[1]:
            slope = torch.where(inside, v.round() - v, v.clamp(ctx.low, ctx.high))
            gscale = (g * slope).sum_to_size(scale.shape)
        return gx, gscale, None, None


class DorefaQuantise(Function):
    """x clipped to [0, 1] and rounded to k bits; straight-through inside."""

    @staticmethod
    def forward(x, bits):
        steps = 2**bits - 1
        return (x.clamp(0, 1) * steps).round() / steps

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ((x >= 0) & (x <= 1)), None


class NearestCode(Function):
    """The nearest row of a codebook, and which it is; straight-through for x, exact for the codebook."""

    @staticmethod
    def forward(ctx, x, codebook):
        index = (x[:, None] - codebook).square().sum(-1).argmin(1)
        ctx.rows = len(codebook)
        ctx.mark_non_differentiable(index)
        ctx.save_for_backward(index)
        return codebook[index], index

    @staticmethod
    def backward(ctx, g, _):
        (index,) = ctx.saved_tensors
        gcodebook = None
        if ctx.needs_input_grad[1]:
            gcodebook = g.new_zeros(ctx.rows, g.shape[1]).index_add(0, index, g)
        return g, gcodebook


class HardSoftmax(Function):
    """The one-hot vector of the largest logit; straight-through to softmax(x / temperature)."""

    @staticmethod
    def forward(x, temperature):
        return F.one_hot(x.argmax(-1), x.shape[-1]).to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.temperature = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        soft = torch.softmax(x / ctx.temperature, -1)
        return soft * (g - (g * soft).sum(-1, keepdim=True)) / ctx.temperature, None


class TopMask(Function):
    """1 for the k largest scores of the last dimension, 0 elsewhere; straight-through to the scores."""

    @staticmethod
    def forward(ctx, scores, k):
        return torch.zeros_like(scores).scatter(-1, scores.topk(k).indices, 1)

    @staticmethod
    def backward(ctx, g):
        return g, None


class BernoulliStraightThrough(Function):
    """A draw of 0 or 1 with probability p; straight-through to p."""

    @staticmethod
    def forward(ctx, p):
        return torch.bernoulli(p)

    @staticmethod
    def backward(ctx, g):
        return g


def _control(name, target, inputs, note=""):
    return Control(name, target, inputs, exact=False, note=note)


CONTROLS = [
    _control("round-straight-through", RoundStraightThrough, lambda: (uniform(3, 4, low=-4.0, high=4.0),)),
    _control("floor-straight-through", FloorStraightThrough, lambda: (uniform(3, 4, low=-4.0, high=4.0),)),
    _control("sign-straight-through", SignStraightThrough, lambda: (normal(3, 4),)),
    _control("binarise-clipped", BinariseClipped, lambda: (normal(3, 4),)),
    _control("approx-sign", ApproxSign, lambda: (normal(3, 4),)),
    _control("ternarise", Ternarise, lambda: (normal(3, 4), 0.5)),
    _control("clamp-straight-through", ClampStraightThrough, lambda: (normal(3, 4), -0.5, 0.5)),
    _control("round-trip-cast", RoundTripCast, lambda: (normal(3, 4), torch.bfloat16)),
    _control("fake-quantise", FakeQuantise, lambda: (normal(3, 4), 0.25, 3, 3)),
    _control("learnt-step", LearntStep, lambda: (normal(3, 4), uniform(low=0.2, high=0.4, seed=1), -4, 3)),
    _control("dorefa-quantise", DorefaQuantise, lambda: (uniform(3, 4, low=-0.2, high=1.2), 2)),
    _control("nearest-code", NearestCode, lambda: (normal(5, 2), normal(3, 2, seed=1))),
    _control("hard-softmax", HardSoftmax, lambda: (normal(3, 4), 0.7)),
    _control("top-mask", TopMask, lambda: (normal(3, 5), 2)),
    _control(
        "bernoulli-straight-through",
        BernoulliStraightThrough,
        lambda: (uniform(3, 4, low=0.1, high=0.9),),
        note="draws from the global generator: seed it before each call",
    ),
]

"""Surrogate gradients of spiking networks: a step in the forward, a smooth slope in the backward."""

import math

import torch
from torch.autograd import Function

from ._control import Control, normal


class Spike(Function):
    """1 where the membrane potential is not below 0; subclasses give the surrogate gradient."""

    @staticmethod
    def forward(ctx, potential, sharpness):
        ctx.sharpness = sharpness
        ctx.save_for_backward(potential)
        return (potential >= 0).to(potential.dtype)


class AtanSpike(Spike):
    """A spike; surrogate: the slope of atan(pi / 2 * a x) / pi."""

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        a = ctx.sharpness
        return g * (a / 2) / (1 + (math.pi / 2 * a * x) ** 2), None


class FastSigmoidSpike(Spike):
    """A spike; surrogate: 1 / (1 + a |x|)**2."""

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g / (1 + ctx.sharpness * x.abs()) ** 2, None


class TriangleSpike(Spike):
    """A spike; surrogate: a triangle of height a and half width 1 / a."""

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        a = ctx.sharpness
        return g * a * (1 - a * x.abs()).clamp(min=0), None


class RectangleSpike(Spike):
    """A spike; surrogate: a rectangle of height a and width 1 / a."""

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        a = ctx.sharpness
        return torch.where(x.abs() < 0.5 / a, a * g, 0), None


class SigmoidSpike(Function):
    """1 where x > 0; surrogate: the slope of sigmoid(a x), stable on both sides."""

    @staticmethod
    def forward(x, a):
        return (x > 0).to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.a = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ctx.a * torch.sigmoid(ctx.a * x) * torch.sigmoid(-ctx.a * x), None


class ExponentialSpike(Function):
    """heaviside(x), with heaviside(0) = 0; surrogate: a / 2 * exp(-a |x|)."""

    @staticmethod
    def forward(x, a):
        return torch.heaviside(x, x.new_zeros(()))

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.a = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (ctx.a / 2) * torch.exp(-ctx.a * x.abs()), None


class ThresholdSpike(Function):
    """1 where the potential reaches a learnt threshold; surrogate: the slope of a sigmoid."""

    @staticmethod
    def forward(ctx, potential, threshold):
        ctx.save_for_backward(potential, threshold)
        return (potential >= threshold).to(potential.dtype)

    @staticmethod
    def backward(ctx, g):
        potential, threshold = ctx.saved_tensors
        sigmoid = torch.sigmoid(potential - threshold)
        gpotential = g * sigmoid * (1 - sigmoid)
        return gpotential.sum_to_size(potential.shape), -gpotential.sum_to_size(threshold.shape)


CONTROLS = [
    Control("atan-spike", AtanSpike, lambda: (normal(3, 4), 2.0), exact=False),
    Control("fast-sigmoid-spike", FastSigmoidSpike, lambda: (normal(3, 4), 5.0), exact=False),
    Control("triangle-spike", TriangleSpike, lambda: (normal(3, 4), 0.7), exact=False),
    Control("rectangle-spike", RectangleSpike, lambda: (normal(3, 4), 0.7), exact=False),
    Control("sigmoid-spike", SigmoidSpike, lambda: (normal(3, 4), 4.0), exact=False),
    Control("exponential-spike", ExponentialSpike, lambda: (normal(3, 4), 1.5), exact=False),
    Control("threshold-spike", ThresholdSpike, lambda: (normal(3, 4), normal(4, seed=1)), exact=False),
]

"""Normalisations. Saved statistics of the forward make second derivatives wrong: these recompute them."""

import torch
import torch.nn.functional as F
from torch.autograd import Function

from ._control import Control, normal, uniform


def _normalise(x, dims, eps):
    """x less its mean over its deviation, and one over the deviation."""
    centred = x - x.mean(dims, keepdim=True)
    inverse = torch.rsqrt(centred.square().mean(dims, keepdim=True) + eps)
    return centred * inverse, inverse


def _normalise_pullback(g, normalised, inverse, dims):
    along = (g * normalised).mean(dims, keepdim=True)
    return inverse * (g - g.mean(dims, keepdim=True) - normalised * along)


class LayerNorm(Function):
    """(x - mean) / sqrt(variance + eps) of the last dimension, then an optional weight and bias."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        ctx.eps = eps
        ctx.save_for_backward(x, weight)
        return F.layer_norm(x, x.shape[-1:], weight, bias, eps)

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        normalised, inverse = _normalise(x, -1, ctx.eps)
        gx = gweight = gbias = None
        if ctx.needs_input_grad[0]:
            gx = _normalise_pullback(g if weight is None else g * weight, normalised, inverse, -1)
        if ctx.needs_input_grad[1]:
            gweight = (g * normalised).sum_to_size(weight.shape)
        if ctx.needs_input_grad[2]:
            gbias = g.sum_to_size(g.shape[-1:])
        return gx, gweight, gbias, None


class RmsNorm(Function):
    """weight * x / sqrt(mean(x**2) + eps) over the last dimension."""

    @staticmethod
    def forward(x, weight, eps):
        return weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps))

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, ctx.eps = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        inverse = torch.rsqrt(x.square().mean(-1, keepdim=True) + ctx.eps)
        normalised = x * inverse
        gn = g * weight
        gx = inverse * (gn - normalised * (gn * normalised).mean(-1, keepdim=True))
        return gx, (g * normalised).sum_to_size(weight.shape), None


class GroupNorm(Function):
    """Normalisation of groups of channels, then a weight and a bias for each channel."""

    @staticmethod
    def forward(ctx, x, groups, weight, bias, eps):
        ctx.groups, ctx.eps = groups, eps
        ctx.save_for_backward(x, weight)
        return F.group_norm(x, groups, weight, bias, eps)

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        grouped = (x.shape[0], ctx.groups, x.shape[1:].numel() // ctx.groups)
        channels = (1, -1, *[1] * (x.dim() - 2))
        others = [d for d in range(x.dim()) if d != 1]
        normalised, inverse = _normalise(x.reshape(grouped), -1, ctx.eps)
        gn = (g * weight.reshape(channels)).reshape(grouped)
        gx = _normalise_pullback(gn, normalised, inverse, -1).reshape(x.shape)
        gweight = (g * normalised.reshape(x.shape)).sum(others)
        return gx, None, gweight, g.sum(others), None


class BatchNorm(Function):
    """Normalisation of each channel (dimension 1) over the batch, then a weight and a bias."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        ctx.eps = eps
        ctx.save_for_backward(x, weight)
        return F.batch_norm(x, None, None, weight, bias, training=True, eps=eps)

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        others = [d for d in range(x.dim()) if d != 1]
        normalised, inverse = _normalise(x, others, ctx.eps)
        gx = gweight = gbias = None
        if ctx.needs_input_grad[0]:
            scaled = g * weight.reshape(1, -1, *[1] * (x.dim() - 2))
            gx = _normalise_pullback(scaled, normalised, inverse, others)
        if ctx.needs_input_grad[1]:
            gweight = (g * normalised).sum(others)
        if ctx.needs_input_grad[2]:
            gbias = g.sum(others)
        return gx, gweight, gbias, None


class UnitVector(Function):
    """x / max(|x|, eps) over a dimension."""

    @staticmethod
    def forward(ctx, x, dim, eps):
        ctx.dim, ctx.eps = dim, eps
        ctx.save_for_backward(x)
        return x / torch.linalg.vector_norm(x, dim=dim, keepdim=True).clamp(min=eps)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        square = x.square().sum(ctx.dim, keepdim=True)
        long_enough = square > ctx.eps**2
        length = torch.where(long_enough, square, 1).sqrt()
        unit = x / length
        turned = (g - unit * (g * unit).sum(ctx.dim, keepdim=True)) / length
        return torch.where(long_enough, turned, g / ctx.eps), None, None


class WeightNorm(Function):
    """scale * direction / |direction|, row by row."""

    @staticmethod
    def forward(direction, scale):
        return scale * direction / torch.linalg.vector_norm(direction, dim=1, keepdim=True)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        direction, scale = ctx.saved_tensors
        length = torch.linalg.vector_norm(direction, dim=1, keepdim=True)
        unit = direction / length
        along = (g * unit).sum(1, keepdim=True)
        return scale * (g - along * unit) / length, along


class AddRmsNorm(Function):
    """(weight * rms_norm(x + residual), x + residual), as transformer kernels fuse it."""

    @staticmethod
    def forward(ctx, x, residual, weight, eps):
        total = x + residual
        ctx.eps = eps
        ctx.save_for_backward(total, weight)
        return weight * (total * torch.rsqrt(total.square().mean(-1, keepdim=True) + eps)), total

    @staticmethod
    def backward(ctx, g, g_total):
        total, weight = ctx.saved_tensors
        inverse = torch.rsqrt(total.square().mean(-1, keepdim=True) + ctx.eps)
        normalised = total * inverse
        gn = g * weight
        gx = g_total + inverse * (gn - normalised * (gn * normalised).mean(-1, keepdim=True))
        gweight = (g * normalised).sum_to_size(weight.shape) if ctx.needs_input_grad[2] else None
        return gx, gx, gweight, None


class TemperedSoftmax(Function):
    """softmax(x / temperature) of the last dimension, with a learnt temperature."""

    @staticmethod
    def forward(x, temperature):
        return torch.softmax(x / temperature, dim=-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx, g):
        x, temperature, out = ctx.saved_tensors
        gx = out * (g - (g * out).sum(-1, keepdim=True)) / temperature
        return gx, (-gx * x / temperature).sum_to_size(temperature.shape)


def _affine(*shape):
    return uniform(*shape, low=0.5, high=1.5, seed=1), normal(*shape, seed=2)


CONTROLS = [
    Control("layer-norm", LayerNorm, lambda: (normal(2, 3, 4), *_affine(4), 1e-5)),
    Control("layer-norm-plain", LayerNorm, lambda: (normal(3, 4), None, None, 1e-5)),
    Control("rms-norm", RmsNorm, lambda: (normal(3, 4), normal(4, seed=1), 1e-6)),
    Control("group-norm", GroupNorm, lambda: (normal(2, 4, 3), 2, *_affine(4), 1e-5)),
    Control("batch-norm", BatchNorm, lambda: (normal(3, 2, 4), *_affine(2), 1e-5)),
    Control("unit-vector", UnitVector, lambda: (normal(3, 4), 1, 1e-6)),
    Control("weight-norm", WeightNorm, lambda: (normal(3, 4), normal(3, 1, seed=1))),
    Control("add-rms-norm", AddRmsNorm, lambda: (normal(3, 4), normal(3, 4, seed=1), normal(4, seed=2), 1e-6)),
    Control("tempered-softmax", TemperedSoftmax, lambda: (normal(3, 4), uniform(low=0.5, high=2.0, seed=1))),
]

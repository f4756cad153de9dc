"""Arguments that are not tensors, or that may be absent."""

import math
from typing import NamedTuple

import torch
from torch.autograd import Function

from ._control import Control, integers, normal, uniform


class OptionalScaleBias(Function):
    """scale * x + bias, where either may be None."""

    @staticmethod
    def forward(ctx, x, scale=None, bias=None):
        ctx.save_for_backward(x, scale, bias)
        out = x.clone() if scale is None else scale * x
        return out if bias is None else out + bias

    @staticmethod
    def backward(ctx, g):
        x, scale, bias = ctx.saved_tensors
        gx = gscale = gbias = None
        if ctx.needs_input_grad[0]:
            gx = g.clone() if scale is None else g * scale
        if scale is not None and ctx.needs_input_grad[1]:
            gscale = (g * x).sum_to_size(scale.shape)
        if bias is not None and ctx.needs_input_grad[2]:
            gbias = g.sum_to_size(bias.shape)
        return gx, gscale, gbias


class Activation(Function):
    """The activation that a word names: "tanh", "sin" or "identity"."""

    @staticmethod
    def forward(x, name):
        return {"tanh": torch.tanh, "sin": torch.sin, "identity": torch.clone}[name](x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.name = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if ctx.name == "tanh":
            return g * (1 - torch.tanh(x) ** 2), None
        if ctx.name == "sin":
            return g * torch.cos(x), None
        return g, None


class Permute(Function):
    """x with its dimensions in the order of a tuple."""

    @staticmethod
    def forward(ctx, x, order):
        ctx.order = order
        return x.permute(order).clone()

    @staticmethod
    def backward(ctx, g):
        inverse = sorted(range(len(ctx.order)), key=ctx.order.__getitem__)
        return g.permute(inverse), None


class ExpandTo(Function):
    """x expanded to a torch.Size."""

    @staticmethod
    def forward(x, shape):
        return x.expand(shape).clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.shape = inputs[0].shape

    @staticmethod
    def backward(ctx, g):
        return g.sum_to_size(ctx.shape), None


class Cast(Function):
    """x in another dtype; the gradient comes back in the dtype of x."""

    @staticmethod
    def forward(ctx, x, dtype):
        ctx.dtype = x.dtype
        return x.to(dtype, copy=True)

    @staticmethod
    def backward(ctx, g):
        return g.to(ctx.dtype), None


class MapElements(Function):
    """fn(x), given with its derivative: two callables."""

    @staticmethod
    def forward(ctx, fn, derivative, x):
        ctx.derivative = derivative
        ctx.save_for_backward(x)
        return fn(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return None, None, g * ctx.derivative(x)


class SmoothStep(Function):
    """sigmoid((x - centre) / width), with its settings in a dict."""

    @staticmethod
    def forward(ctx, x, settings):
        ctx.width = settings["width"]
        out = torch.sigmoid((x - settings["centre"]) / ctx.width)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g * out * (1 - out) / ctx.width, None


class Band(NamedTuple):
    """A range of frequencies, as a tuple of numbers."""

    low: float
    high: float


class BandWeight(Function):
    """x times a number made of a named tuple and of math."""

    @staticmethod
    def forward(ctx, x, band):
        ctx.weight = math.log(band.high / band.low)
        return x * ctx.weight

    @staticmethod
    def backward(ctx, g):
        return g * ctx.weight, None


class AssignSlice(Function):
    """The part of x that a slice selects, copied; the gradient is assigned into zeros."""

    @staticmethod
    def forward(ctx, x, part):
        ctx.shape, ctx.part = x.shape, part
        return x[..., part].clone()

    @staticmethod
    def backward(ctx, g):
        gx = g.new_zeros(ctx.shape)
        gx[..., ctx.part] = g
        return gx, None


class MeanOfLengths(Function):
    """The mean of the first length[i] elements of row i."""

    @staticmethod
    def forward(ctx, x, lengths):
        seen = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        ctx.save_for_backward(seen, lengths)
        return x.masked_fill(~seen, 0).sum(1) / lengths.to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        seen, lengths = ctx.saved_tensors
        return seen * (g / lengths.to(g.dtype))[:, None], None


class DefaultSlope(Function):
    """x / (1 + slope |x|), with a slope that is not given in the call: one gradient more than arguments."""

    @staticmethod
    def forward(ctx, x, slope=0.5):
        ctx.slope = slope
        ctx.save_for_backward(x)
        return x / (1 + slope * x.abs())

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g / (1 + ctx.slope * x.abs()) ** 2, None


class Recompute(Function):
    """fn(*tensors), differentiated by running it again: aliases keep a repeated tensor's gradients apart."""

    @staticmethod
    def forward(ctx, fn, *tensors):
        ctx.fn = fn
        ctx.save_for_backward(*tensors)
        return fn(*tensors)

    @staticmethod
    def backward(ctx, g):
        needed = ctx.needs_input_grad[1:]
        create_graph = torch.is_grad_enabled()
        with torch.enable_grad():
            tensors = [t.view_as(t) for t in ctx.saved_tensors]
            out = ctx.fn(*tensors)
        wanted = [t for t, need in zip(tensors, needed, strict=True) if need]
        grads = iter(torch.autograd.grad(out, wanted, g, create_graph=create_graph))
        return None, *(next(grads) if need else None for need in needed)


class PullBack(Function):
    """fn(x), differentiated by torch.func.vjp."""

    @staticmethod
    def forward(ctx, fn, x):
        ctx.fn = fn
        ctx.save_for_backward(x)
        return fn(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        _, pull = torch.func.vjp(ctx.fn, x)
        return None, *pull(g)


def scaled_by(factor):
    """A class that multiplies by a number it closes over."""

    class Scaled(Function):
        """factor * x."""

        @staticmethod
        def forward(ctx, x):
            return factor * x

        @staticmethod
        def backward(ctx, g):
            return factor * g

    return Scaled


def _gated(x, y):
    return torch.tanh(x) * torch.sigmoid(y)


CONTROLS = [
    Control("optional-both", OptionalScaleBias, lambda: (normal(3, 4), normal(4, seed=1), normal(4, seed=2))),
    Control("optional-no-scale", OptionalScaleBias, lambda: (normal(3, 4), None, normal(4, seed=1))),
    Control("optional-left-out", OptionalScaleBias, lambda: (normal(3, 4),), note="arguments left out"),
    Control("activation-tanh", Activation, lambda: (normal(3, 4), "tanh")),
    Control("activation-sin", Activation, lambda: (normal(3, 4), "sin")),
    Control("permute", Permute, lambda: (normal(2, 3, 4), (2, 0, 1))),
    Control("expand-to", ExpandTo, lambda: (normal(3, 1), torch.Size([2, 3, 4]))),
    Control("cast", Cast, lambda: (normal(3, 4), torch.float32), note="float32 result of a float64 input"),
    Control("map-elements", MapElements, lambda: (torch.sin, torch.cos, normal(3, 4))),
    Control("smooth-step", SmoothStep, lambda: (normal(3, 4), {"centre": 0.2, "width": 0.5})),
    Control("band-weight", BandWeight, lambda: (normal(3, 4), Band(10.0, 40.0))),
    Control("assign-slice", AssignSlice, lambda: (normal(2, 7), slice(1, 6, 2))),
    Control("mean-of-lengths", MeanOfLengths, lambda: (normal(4, 5), integers(4, high=5) + 1)),
    Control("default-slope", DefaultSlope, lambda: (normal(3, 4),), note="an argument left out"),
    Control("recompute", Recompute, lambda: (_gated, normal(3, 4), normal(4, seed=1))),
    Control("pull-back", PullBack, lambda: (torch.log, uniform(3, 4, low=0.5, high=2.0))),
    Control("class-from-a-factory", scaled_by(0.5), lambda: (normal(3, 4),)),
]

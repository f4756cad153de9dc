"""Smooth activations, some with a learnt parameter or a gate."""

import math

import torch
import torch.nn.functional as F
from torch.autograd import Function

from ._control import Control, normal, uniform


class GeluTanh(Function):
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x**3)))."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return F.gelu(x, approximate="tanh")

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        x = x.clamp(-20, 20)  # beyond, the slope is 0 or 1 in every dtype, and x**3 may overflow
        scale = math.sqrt(2 / math.pi)
        tanh = torch.tanh(scale * (x + 0.044715 * x**3))
        slope = scale * (1 + 3 * 0.044715 * x**2)
        return g * 0.5 * (1 + tanh + x * (1 - tanh * tanh) * slope)


class Softplus(Function):
    """log(1 + exp(beta x)) / beta, stable; its derivative is sigmoid(beta x)."""

    @staticmethod
    def forward(ctx, x, beta):
        ctx.beta = beta
        ctx.save_for_backward(x)
        return x.clamp(min=0) + torch.log1p(torch.exp(-(beta * x).abs())) / beta

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.sigmoid(ctx.beta * x), None


class Mish(Function):
    """x * tanh(softplus(x)), recomputed in the backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.tanh(F.softplus(x))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        tanh = torch.tanh(F.softplus(x))
        return g * (tanh + x * torch.sigmoid(x) * (1 - tanh * tanh))


class Swish(Function):
    """x * sigmoid(x), saving the input alone."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        sigmoid = torch.sigmoid(x)
        return g * (sigmoid + x * sigmoid * (1 - sigmoid))


class SwishBeta(Function):
    """x * sigmoid(beta x) with a learnt beta."""

    @staticmethod
    def forward(x, beta):
        return x * torch.sigmoid(beta * x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, beta = ctx.saved_tensors
        sigmoid = torch.sigmoid(beta * x)
        slope = sigmoid * (1 - sigmoid)
        gx = g * (sigmoid + beta * x * slope) if ctx.needs_input_grad[0] else None
        gbeta = (g * x * x * slope).sum_to_size(beta.shape) if ctx.needs_input_grad[1] else None
        return gx, gbeta


class Snake(Function):
    """x + sin(alpha x)**2 / alpha, with an alpha for each channel."""

    @staticmethod
    def forward(ctx, x, alpha):
        ctx.save_for_backward(x, alpha)
        return x + torch.sin(alpha * x) ** 2 / alpha

    @staticmethod
    def backward(ctx, g):
        x, alpha = ctx.saved_tensors
        double = torch.sin(2 * alpha * x)
        galpha = g * (x * double / alpha - (torch.sin(alpha * x) / alpha) ** 2)
        return g * (1 + double), galpha.sum_to_size(alpha.shape)


class Softcap(Function):
    """cap * tanh(x / cap), with the derivative 1 - (out / cap)**2."""

    @staticmethod
    def forward(x, cap):
        return cap * torch.tanh(x / cap)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.cap = inputs[1]
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g * (1 - (out / ctx.cap) ** 2), None


class Swiglu(Function):
    """silu(a) * b, of the two halves of the last dimension."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        a, b = x.chunk(2, dim=-1)
        return F.silu(a) * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors[0].chunk(2, dim=-1)
        sigmoid = torch.sigmoid(a)
        ga = g * b * (sigmoid + a * sigmoid * (1 - sigmoid))
        return torch.cat([ga, g * a * sigmoid], dim=-1)


CONTROLS = [
    Control("gelu-tanh", GeluTanh, lambda: (normal(3, 4),)),
    Control("softplus", Softplus, lambda: (normal(3, 4), 1.5)),
    Control("mish", Mish, lambda: (normal(2, 3, 2),)),
    Control("swish", Swish, lambda: (normal(3, 4),)),
    Control("swish-beta", SwishBeta, lambda: (normal(3, 4), uniform(4, low=0.5, high=1.5, seed=1))),
    Control("snake", Snake, lambda: (normal(2, 3, 4), uniform(3, 1, low=0.5, high=2.0, seed=1))),
    Control("softcap", Softcap, lambda: (normal(3, 4), 2.0)),
    Control("swiglu", Swiglu, lambda: (normal(3, 6),)),
]

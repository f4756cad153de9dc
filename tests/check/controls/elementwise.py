"""Smooth functions of one tensor, element by element."""

import math

import torch
from torch.autograd import Function

from ._control import Control, normal, uniform


class Exp(Function):
    """exp(x), with the derivative taken from the output."""

    @staticmethod
    def forward(ctx, x):
        out = torch.exp(x)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g * out


class Expm1(Function):
    """exp(x) - 1; its derivative exp(x) is not taken as out + 1, which cancels."""

    @staticmethod
    def forward(x):
        return torch.expm1(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.exp(x)


class Log(Function):
    """log(x)."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.log()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g / x


class Sqrt(Function):
    """sqrt(x), with the derivative taken from the output."""

    @staticmethod
    def forward(x):
        return x.sqrt()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g / (2 * out)


class Rsqrt(Function):
    """x**(-1/2), with the derivative -out**3 / 2."""

    @staticmethod
    def forward(ctx, x):
        out = x.rsqrt()
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return -0.5 * g * out.pow(3)


class Tanh(Function):
    """tanh(x), with the derivative 1 - out**2."""

    @staticmethod
    def forward(ctx, x):
        out = x.tanh()
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        out = ctx.saved_tensors[0]
        return g * (1 - out * out)


class Sigmoid(Function):
    """1 / (1 + exp(-x)), with the derivative out * (1 - out)."""

    @staticmethod
    def forward(x):
        return torch.sigmoid(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g * out * (1 - out)


class LogSigmoid(Function):
    """log(sigmoid(x)), stable on both sides."""

    @staticmethod
    def forward(x):
        return x.clamp(max=0) - torch.log1p(torch.exp(-x.abs()))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.sigmoid(-x)


class Reciprocal(Function):
    """1 / x, with the derivative -out**2."""

    @staticmethod
    def forward(ctx, x):
        out = 1 / x
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return -(g * out * out)


class Power(Function):
    """x**exponent for a number."""

    @staticmethod
    def forward(ctx, x, exponent):
        ctx.exponent = exponent
        ctx.save_for_backward(x)
        return x**exponent

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if ctx.exponent == 0:
            return torch.zeros_like(g), None
        return g * (ctx.exponent * x ** (ctx.exponent - 1)), None


class Erf(Function):
    """The error function; its derivative is 2 / sqrt(pi) * exp(-x**2)."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.erf(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (2 / math.sqrt(math.pi)) * torch.exp(-x * x)


class Asinh(Function):
    """asinh(x); its derivative 1 / sqrt(1 + x**2) is written with hypot, so that it does not overflow."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.asinh(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g / torch.hypot(x, torch.ones_like(x))


class LegendreCubic(Function):
    """The Legendre polynomial (5 x**3 - 3 x) / 2."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 0.5 * (5 * x**3 - 3 * x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 1.5 * (5 * x**2 - 1)


class XLogX(Function):
    """-x * log(x), 0 at 0: the entropy of one outcome."""

    @staticmethod
    def forward(x):
        return torch.special.entr(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return -g * (x.log() + 1)


CONTROLS = [
    Control("exp", Exp, lambda: (normal(3, 4),)),
    Control("expm1", Expm1, lambda: (normal(5),)),
    Control("log", Log, lambda: (uniform(3, 4, low=0.5, high=3.0),)),
    Control("sqrt", Sqrt, lambda: (uniform(2, 3, low=0.5, high=3.0),)),
    Control("rsqrt", Rsqrt, lambda: (uniform(2, 1, 3, low=0.5, high=3.0),)),
    Control("tanh", Tanh, lambda: (normal(3, 4),)),
    Control("sigmoid", Sigmoid, lambda: (normal(2, 2, 3),)),
    Control("log-sigmoid", LogSigmoid, lambda: (normal(3, 4),)),
    Control("reciprocal", Reciprocal, lambda: (uniform(4, low=0.5, high=2.0),)),
    Control("power-float", Power, lambda: (uniform(3, 4, low=0.5, high=2.0), 2.5)),
    Control("power-int", Power, lambda: (normal(3, 4), 3)),
    Control("erf", Erf, lambda: (normal(3, 4),)),
    Control("asinh-scalar", Asinh, lambda: (normal(),), note="a tensor without dimensions"),
    Control("legendre-cubic", LegendreCubic, lambda: (normal(3, 4),)),
    Control("x-log-x", XLogX, lambda: (uniform(3, 4, low=0.2, high=1.5),)),
]

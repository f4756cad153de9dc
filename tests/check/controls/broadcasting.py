"""Element by element over several tensors, which broadcast: each gradient is summed back to its shape."""

import torch
from torch.autograd import Function

from ._control import Control, normal, uniform


class Add(Function):
    """x + y."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.shapes = x.shape, y.shape
        return x + y

    @staticmethod
    def backward(ctx, g):
        x_shape, y_shape = ctx.shapes
        return g.sum_to_size(x_shape), g.sum_to_size(y_shape)


class Multiply(Function):
    """x * y."""

    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return (g * y).sum_to_size(x.shape), (g * x).sum_to_size(y.shape)


class Divide(Function):
    """x / y, with the second gradient -out / y."""

    @staticmethod
    def forward(ctx, x, y):
        out = x / y
        ctx.x_shape = x.shape
        ctx.save_for_backward(y, out)
        return out

    @staticmethod
    def backward(ctx, g):
        y, out = ctx.saved_tensors
        gx = g / y
        gy = -gx * out if ctx.needs_input_grad[1] else None
        return gx.sum_to_size(ctx.x_shape), None if gy is None else gy.sum_to_size(y.shape)


class ScaleShift(Function):
    """scale * x + bias."""

    @staticmethod
    def forward(ctx, x, scale, bias):
        ctx.save_for_backward(x, scale)
        ctx.bias_shape = bias.shape
        return torch.addcmul(bias, scale, x)

    @staticmethod
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        gx = gscale = gbias = None
        if ctx.needs_input_grad[0]:
            gx = (g * scale).sum_to_size(x.shape)
        if ctx.needs_input_grad[1]:
            gscale = (g * x).sum_to_size(scale.shape)
        if ctx.needs_input_grad[2]:
            gbias = g.sum_to_size(ctx.bias_shape)
        return gx, gscale, gbias


class Lerp(Function):
    """start + weight * (end - start)."""

    @staticmethod
    def forward(ctx, start, end, weight):
        ctx.save_for_backward(start, end, weight)
        return torch.lerp(start, end, weight)

    @staticmethod
    def backward(ctx, g):
        start, end, weight = ctx.saved_tensors
        gstart = (g * (1 - weight)).sum_to_size(start.shape)
        gend = (g * weight).sum_to_size(end.shape)
        gweight = (g * (end - start)).sum_to_size(weight.shape)
        return gstart, gend, gweight


class Hypot(Function):
    """sqrt(x**2 + y**2), with gradient 0 at the origin."""

    @staticmethod
    def forward(x, y):
        return torch.hypot(x, y)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx, g):
        x, y, out = ctx.saved_tensors
        scaled = g / torch.where(out == 0, 1, out)
        return (scaled * x).sum_to_size(x.shape), (scaled * y).sum_to_size(y.shape)


class Atan2(Function):
    """The angle of (x, y), with gradient 0 at the origin."""

    @staticmethod
    def forward(ctx, y, x):
        ctx.save_for_backward(y, x)
        return torch.atan2(y, x)

    @staticmethod
    def backward(ctx, g):
        y, x = ctx.saved_tensors
        square = x * x + y * y
        scaled = g / torch.where(square == 0, 1, square)
        return (scaled * x).sum_to_size(y.shape), (-scaled * y).sum_to_size(x.shape)


class Maximum(Function):
    """max(x, y), which shares the gradient where they are equal."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return torch.maximum(x, y)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        share = torch.where(x == y, 0.5, (x > y).to(g.dtype)).to(g.dtype)
        return (g * share).sum_to_size(x.shape), (g * (1 - share)).sum_to_size(y.shape)


class PowTensor(Function):
    """x**y for x > 0."""

    @staticmethod
    def forward(x, y):
        return torch.pow(x, y)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx, g):
        x, y, out = ctx.saved_tensors
        gx = (g * y * x ** (y - 1)).sum_to_size(x.shape)
        gy = (g * torch.xlogy(out, x)).sum_to_size(y.shape)
        return gx, gy


class LogAddExp(Function):
    """log(exp(x) + exp(y)), with gradients that are sigmoids of the difference."""

    @staticmethod
    def forward(x, y):
        return torch.logaddexp(x, y)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        gx = gy = None
        if ctx.needs_input_grad[0]:
            gx = (g * torch.sigmoid(x - y)).sum_to_size(x.shape)
        if ctx.needs_input_grad[1]:
            gy = (g * torch.sigmoid(y - x)).sum_to_size(y.shape)
        return gx, gy


class Rotate(Function):
    """Pairs (x, y) turned by an angle: one gradient of three sums over what was broadcast."""

    @staticmethod
    def forward(ctx, x, y, angle):
        ctx.save_for_backward(x, y, angle)
        cos, sin = angle.cos(), angle.sin()
        return x * cos - y * sin, x * sin + y * cos

    @staticmethod
    def backward(ctx, gu, gv):
        x, y, angle = ctx.saved_tensors
        cos, sin = angle.cos(), angle.sin()
        gx = gu * cos + gv * sin
        gy = gv * cos - gu * sin
        gangle = gy * x - gx * y
        return gx.sum_to_size(x.shape), gy.sum_to_size(y.shape), gangle.sum_to_size(angle.shape)


CONTROLS = [
    Control("add-broadcast", Add, lambda: (normal(3, 1), normal(4, seed=1))),
    Control("multiply-broadcast", Multiply, lambda: (normal(2, 3, 1), normal(3, 4, seed=1))),
    Control("multiply-scalar", Multiply, lambda: (normal(2, 3), normal(seed=1))),
    Control("divide", Divide, lambda: (normal(2, 3), uniform(1, 3, low=0.5, high=2.0, seed=1))),
    Control("scale-shift", ScaleShift, lambda: (normal(4, 3), normal(3, seed=1), normal(3, seed=2))),
    Control("lerp", Lerp, lambda: (normal(2, 3), normal(2, 3, seed=1), uniform(2, 1, seed=2))),
    Control("hypot", Hypot, lambda: (normal(3, 4), normal(3, 4, seed=1))),
    Control("atan2", Atan2, lambda: (normal(3, 4), normal(3, 4, seed=1))),
    Control("maximum", Maximum, lambda: (normal(3, 4), normal(4, seed=1))),
    Control("pow-tensor", PowTensor, lambda: (uniform(3, 4, low=0.5, high=2.0), normal(4, seed=1))),
    Control("log-add-exp", LogAddExp, lambda: (normal(3, 1), normal(3, 4, seed=1))),
    Control("rotate", Rotate, lambda: (normal(2, 5), normal(2, 5, seed=1), normal(5, seed=2))),
]

"""Several outputs, of which a caller may use some only, and outputs that carry no gradient."""

import torch
from torch.autograd import Function

from ._control import Control, normal


class SquaresAndProduct(Function):
    """(x**2 + y**2, x * y)."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * x + y * y, x * y

    @staticmethod
    def backward(ctx, g_squares, g_product):
        x, y = ctx.saved_tensors
        return 2 * g_squares * x + g_product * y, 2 * g_squares * y + g_product * x


class MinMax(Function):
    """(min(x, y), max(x, y)); where they are equal both share both gradients."""

    @staticmethod
    def forward(x, y):
        return torch.minimum(x, y), torch.maximum(x, y)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g_min, g_max):
        x, y = ctx.saved_tensors
        equal = 0.5 * (g_min + g_max)
        gx = torch.where(x == y, equal, torch.where(x < y, g_min, g_max))
        gy = torch.where(x == y, equal, torch.where(x < y, g_max, g_min))
        return gx, gy


class Polar(Function):
    """(radius, angle) of (x, y), with gradient 0 at the origin."""

    @staticmethod
    def forward(x, y):
        return torch.hypot(x, y), torch.atan2(y, x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*output)

    @staticmethod
    def backward(ctx, g_radius, g_angle):
        radius, angle = ctx.saved_tensors
        at_origin = radius == 0
        g_radius = g_radius.masked_fill(at_origin, 0)
        g_arc = g_angle.masked_fill(at_origin, 0) / torch.where(at_origin, 1, radius)
        cos, sin = angle.cos(), angle.sin()
        return g_radius * cos - g_arc * sin, g_radius * sin + g_arc * cos


class SinCos(Function):
    """(sin(x), cos(x)): each output is the other's derivative."""

    @staticmethod
    def forward(x):
        return x.sin(), x.cos()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*output)

    @staticmethod
    def backward(ctx, g_sin, g_cos):
        sin, cos = ctx.saved_tensors
        return g_sin * cos - g_cos * sin


class SquareWithScale(Function):
    """x**2, and the largest |x| as a statistic: a float output marked non-differentiable."""

    @staticmethod
    def forward(ctx, x):
        largest = torch.linalg.vector_norm(x, float("inf")) if x.numel() else x.new_zeros(())
        ctx.mark_non_differentiable(largest)
        ctx.save_for_backward(x)
        return x * x, largest

    @staticmethod
    def backward(ctx, g, _):
        (x,) = ctx.saved_tensors
        return 2 * g * x


class FractionAndWhole(Function):
    """x - floor(x) and floor(x) as an integer, marked non-differentiable."""

    @staticmethod
    def forward(x):
        whole = x.floor()
        return x - whole, whole.long()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, g, _):
        return g.clone()


class Split(Function):
    """Copies of equal parts of a dimension: as many outputs as parts."""

    @staticmethod
    def forward(ctx, x, parts, dim):
        ctx.dim = dim
        return tuple(part.clone() for part in x.tensor_split(parts, dim))

    @staticmethod
    def backward(ctx, *gs):
        return torch.cat(gs, ctx.dim), None, None


class Concatenate(Function):
    """Any number of tensors, one after the other along a dimension."""

    @staticmethod
    def forward(ctx, dim, *parts):
        ctx.dim = dim
        ctx.lengths = [part.shape[dim] for part in parts]
        return torch.cat(parts, dim)

    @staticmethod
    def backward(ctx, g):
        return None, *g.split(ctx.lengths, ctx.dim)


class SumAndProductUnmaterialised(Function):
    """(x + y, x * y), whose backward is told None for an output that is not used."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, y)
        return x + y, x * y

    @staticmethod
    def backward(ctx, g_sum, g_product):
        x, y = ctx.saved_tensors
        if g_product is None:
            return g_sum, g_sum
        gx, gy = g_product * y, g_product * x
        if g_sum is not None:
            gx, gy = gx + g_sum, gy + g_sum
        return gx, gy


class MomentsUnmaterialised(Function):
    """The mean and the mean square of rows, whose backward is told None for an output that is not used."""

    @staticmethod
    def forward(x):
        return x.mean(-1), x.square().mean(-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g_mean, g_square):
        (x,) = ctx.saved_tensors
        count = max(x.shape[-1], 1)
        terms = []
        if g_mean is not None:
            terms.append((g_mean[..., None] / count).expand_as(x))
        if g_square is not None:
            terms.append(g_square[..., None] * x * (2 / count))
        return sum(terms) if terms else None


class IdentityCopy(Function):
    """x, as a new tensor."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g


class IdentityView(Function):
    """x, as a view of it."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g.clone()


CONTROLS = [
    Control("squares-and-product", SquaresAndProduct, lambda: (normal(3, 4), normal(3, 4, seed=1))),
    Control("min-max", MinMax, lambda: (normal(3, 4), normal(3, 4, seed=1))),
    Control("polar", Polar, lambda: (normal(3, 4), normal(3, 4, seed=1))),
    Control("sin-cos", SinCos, lambda: (normal(3, 4),)),
    Control("square-with-scale", SquareWithScale, lambda: (normal(3, 4),)),
    Control("fraction-and-whole", FractionAndWhole, lambda: (normal(3, 4),)),
    Control("split", Split, lambda: (normal(5, 3), 2, 0)),
    Control("concatenate", Concatenate, lambda: (1, normal(2, 1), normal(2, 3, seed=1), normal(2, 2, seed=2))),
    Control(
        "sum-and-product-unmaterialised",
        SumAndProductUnmaterialised,
        lambda: (normal(3, 4), normal(3, 4, seed=1)),
    ),
    Control("moments-unmaterialised", MomentsUnmaterialised, lambda: (normal(3, 4),)),
    Control("identity-copy", IdentityCopy, lambda: (normal(3, 4),)),
    Control("identity-view", IdentityView, lambda: (normal(3, 4),)),
]

"""Rules for torch.func: a generated vmap, one written by hand, forward mode."""

import torch
from torch.autograd import Function

from ._control import Control, integers, normal, uniform


class Cube(Function):
    """x**3, with a generated vmap."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x**2


class ExpForwardMode(Function):
    """exp(x), with forward mode and a generated vmap."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return torch.exp(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g * out

    @staticmethod
    def jvp(ctx, tx):
        (out,) = ctx.saved_tensors
        return tx * out


class SinForwardMode(Function):
    """sin(x), with forward mode, in the old style."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        return torch.sin(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.cos(x)

    @staticmethod
    def jvp(ctx, tx):
        (x,) = ctx.saved_tensors
        return tx * torch.cos(x)


class MultiplyForwardMode(Function):
    """x * y, with forward mode, where either tangent may be absent."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        gx = (g * y).sum_to_size(x.shape) if ctx.needs_input_grad[0] else None
        gy = (g * x).sum_to_size(y.shape) if ctx.needs_input_grad[1] else None
        return gx, gy

    @staticmethod
    def jvp(ctx, tx, ty):
        x, y = ctx.saved_tensors
        tout = torch.zeros_like(x * y)
        if tx is not None:
            tout = tout + tx * y
        return tout if ty is None else tout + x * ty


class SoftmaxForwardMode(Function):
    """softmax(x) over a dimension, with forward mode; the dimension has no tangent."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, dim):
        return torch.softmax(x, dim)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.dim = inputs[1]
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def pull(out, t, dim):
        """The Jacobian times t; it is symmetric."""
        return out * (t - (t * out).sum(dim, keepdim=True))

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return SoftmaxForwardMode.pull(out, g, ctx.dim), None

    @staticmethod
    def jvp(ctx, tx, _):
        (out,) = ctx.saved_tensors
        return SoftmaxForwardMode.pull(out, tx, ctx.dim)


class SquareAndCube(Function):
    """(x**2, x**3), with forward mode and a generated vmap."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**2, x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g_square, g_cube):
        (x,) = ctx.saved_tensors
        return 2 * g_square * x + 3 * g_cube * x**2

    @staticmethod
    def jvp(ctx, tx):
        (x,) = ctx.saved_tensors
        return 2 * tx * x, 3 * tx * x**2


class SortVmap(Function):
    """The values of a dimension in order, with a vmap written by hand that shifts the dimension."""

    @staticmethod
    def forward(x, dim):
        return torch.sort(x, dim)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.dim = inputs[1]
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx, g, _):
        (indices,) = ctx.saved_tensors
        return torch.zeros_like(g).scatter(ctx.dim, indices, g), None

    @staticmethod
    def vmap(info, in_dims, x, dim):
        x = x.movedim(in_dims[0], 0)
        return SortVmap.apply(x, dim if dim < 0 else dim + 1), (0, 0)


class MatMulVmap(Function):
    """x @ y, with a vmap written by hand, where either may have no batch dimension."""

    @staticmethod
    def forward(x, y):
        return x @ y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        g = g.to(x.dtype)
        return (g @ y.mT).sum_to_size(x.shape), (x.mT @ g).sum_to_size(y.shape)

    @staticmethod
    def vmap(info, in_dims, x, y):
        x_dim, y_dim = in_dims
        x = x.unsqueeze(0) if x_dim is None else x.movedim(x_dim, 0)
        y = y.unsqueeze(0) if y_dim is None else y.movedim(y_dim, 0)
        return MatMulVmap.apply(x, y), 0


class TanhEverything(Function):
    """tanh(x), with forward mode and a vmap written by hand."""

    @staticmethod
    def forward(x):
        return torch.tanh(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g * (1 - out * out)

    @staticmethod
    def jvp(ctx, tx):
        (out,) = ctx.saved_tensors
        return tx * (1 - out * out)

    @staticmethod
    def vmap(info, in_dims, x):
        return TanhEverything.apply(x), in_dims[0]


class PickVmap(Function):
    """One element of each row, by an integer tensor, with a generated vmap."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, index):
        return x.gather(-1, index[..., None])[..., 0]

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, index = ctx.saved_tensors
        return torch.zeros_like(x).scatter_add(-1, index[..., None], g[..., None]), None


CONTROLS = [
    Control("cube", Cube, lambda: (normal(3, 4),)),
    Control("exp-forward-mode", ExpForwardMode, lambda: (normal(3, 4),)),
    Control("sin-forward-mode", SinForwardMode, lambda: (normal(3, 4),)),
    Control("multiply-forward-mode", MultiplyForwardMode, lambda: (normal(3, 4), normal(4, seed=1))),
    Control("softmax-forward-mode", SoftmaxForwardMode, lambda: (normal(3, 4), 1)),
    Control("square-and-cube", SquareAndCube, lambda: (uniform(3, 4, low=-2.0, high=2.0),)),
    Control("sort-vmap", SortVmap, lambda: (normal(3, 5), 0)),
    Control("matmul-vmap", MatMulVmap, lambda: (normal(3, 4), normal(4, 2, seed=1))),
    Control("tanh-everything", TanhEverything, lambda: (normal(3, 4),)),
    Control("pick-vmap", PickVmap, lambda: (normal(4, 5), integers(4, high=5))),
]

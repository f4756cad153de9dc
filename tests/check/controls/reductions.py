"""Reductions and scans over a dimension, and selections of extreme values."""

import torch
from torch.autograd import Function

from ._control import Control, normal


def _kept(t, dim, keepdim):
    """`t` with the reduced dimension `dim` put back, so that it broadcasts against the input."""
    return t if keepdim else t.unsqueeze(dim)


class Sum(Function):
    """The sum over a dimension; the gradient is an expanded tensor, all strides 0 along it."""

    @staticmethod
    def forward(ctx, x, dim, keepdim):
        ctx.shape, ctx.dim, ctx.keepdim = x.shape, dim, keepdim
        return x.sum(dim, keepdim=keepdim)

    @staticmethod
    def backward(ctx, g):
        return _kept(g, ctx.dim, ctx.keepdim).expand(ctx.shape), None, None


class Mean(Function):
    """The mean over several dimensions, kept."""

    @staticmethod
    def forward(x, dims):
        return x.mean(dims, keepdim=True)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x = inputs[0]
        ctx.shape, ctx.count = x.shape, x.numel() // max(output.numel(), 1)

    @staticmethod
    def backward(ctx, g):
        return (g / ctx.count).expand(ctx.shape), None


class LogSumExp(Function):
    """log(sum(exp(x))) over a dimension; its gradient exp(x - out) cannot overflow."""

    @staticmethod
    def forward(ctx, x, dim, keepdim):
        out = torch.logsumexp(x, dim, keepdim=keepdim)
        ctx.dim, ctx.keepdim = dim, keepdim
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx, g):
        x, out = ctx.saved_tensors
        g, out = (_kept(t, ctx.dim, ctx.keepdim) for t in (g, out))
        return g * torch.exp(x - out), None, None


class Softmax(Function):
    """softmax(x) over a dimension, with the derivative taken from the output."""

    @staticmethod
    def forward(ctx, x, dim):
        out = torch.softmax(x, dim)
        ctx.dim = dim
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return out * (g - (g * out).sum(ctx.dim, keepdim=True)), None


class LogSoftmax(Function):
    """log(softmax(x)) over a dimension."""

    @staticmethod
    def forward(x, dim):
        return x - torch.logsumexp(x, dim, keepdim=True)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.dim = inputs[1]
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g - torch.exp(out) * g.sum(ctx.dim, keepdim=True), None


class Norm(Function):
    """The Euclidean norm over a dimension, with gradient 0 at 0."""

    @staticmethod
    def forward(ctx, x, dim, keepdim):
        out = torch.linalg.vector_norm(x, dim=dim, keepdim=keepdim)
        ctx.dim, ctx.keepdim = dim, keepdim
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx, g):
        x, out = ctx.saved_tensors
        g, out = (_kept(t, ctx.dim, ctx.keepdim) for t in (g, out))
        return x * (g / torch.where(out == 0, 1, out)), None, None


class Variance(Function):
    """The variance over a dimension, with a correction of its divisor."""

    @staticmethod
    def forward(ctx, x, dim, correction):
        ctx.dim, ctx.correction = dim, correction
        ctx.save_for_backward(x)
        return x.var(dim, correction=correction)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        centred = x - x.mean(ctx.dim, keepdim=True)
        return 2 * centred * g.unsqueeze(ctx.dim) / (x.shape[ctx.dim] - ctx.correction), None, None


class Product(Function):
    """The product of the last dimension; its gradient multiplies what is left and right: zeros are safe."""

    @staticmethod
    def forward(x):
        return x.prod(-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        one = torch.ones_like(x[..., :1])
        left = torch.cat([one, x[..., :-1]], -1).cumprod(-1)
        right = torch.cat([x[..., 1:], one], -1).flip(-1).cumprod(-1).flip(-1)
        return g[..., None] * left * right


class MaxWithIndices(Function):
    """The maximum over a dimension and where it stands; the indices are marked non-differentiable."""

    @staticmethod
    def forward(ctx, x, dim):
        values, indices = x.max(dim)
        ctx.shape, ctx.dim = x.shape, dim
        ctx.mark_non_differentiable(indices)
        ctx.save_for_backward(indices)
        return values, indices

    @staticmethod
    def backward(ctx, g, _):
        indices = ctx.saved_tensors[0].unsqueeze(ctx.dim)
        return g.new_zeros(ctx.shape).scatter(ctx.dim, indices, g.unsqueeze(ctx.dim)), None


class Amax(Function):
    """The maximum over a dimension, kept; equal maxima share the gradient."""

    @staticmethod
    def forward(ctx, x, dim):
        out = x.amax(dim, keepdim=True)
        ctx.dim = dim
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx, g):
        x, out = ctx.saved_tensors
        where = (x == out).to(g.dtype)
        return g * where / where.sum(ctx.dim, keepdim=True), None


class Sort(Function):
    """The values of a dimension in order, and their places, marked non-differentiable."""

    @staticmethod
    def forward(x, dim):
        return x.sort(dim)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.dim = inputs[1]
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx, g, _):
        (indices,) = ctx.saved_tensors
        return torch.zeros_like(g).scatter(ctx.dim, indices, g), None


class TopK(Function):
    """The k largest values of the last dimension, and their places, marked non-differentiable."""

    @staticmethod
    def forward(ctx, x, k):
        values, indices = x.topk(k)
        ctx.shape = x.shape
        ctx.mark_non_differentiable(indices)
        ctx.save_for_backward(indices)
        return values, indices

    @staticmethod
    def backward(ctx, g, _):
        (indices,) = ctx.saved_tensors
        return g.new_zeros(ctx.shape).scatter(-1, indices, g), None


class Cumsum(Function):
    """The running sum along a dimension; its gradient is the running sum from the other end."""

    @staticmethod
    def forward(ctx, x, dim):
        ctx.dim = dim
        return x.cumsum(dim)

    @staticmethod
    def backward(ctx, g):
        return g.flip(ctx.dim).cumsum(ctx.dim).flip(ctx.dim), None


class SquaredDistances(Function):
    """The squared distance of every row of x to every row of y."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return (x[:, None] - y[None]).square().sum(-1)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        terms = 2 * g[..., None] * (x[:, None] - y[None])
        return terms.sum(1), -terms.sum(0)


CONTROLS = [
    Control("sum", Sum, lambda: (normal(2, 3, 4), 1, False)),
    Control("sum-keepdim", Sum, lambda: (normal(2, 3, 4), -1, True)),
    Control("mean", Mean, lambda: (normal(2, 3, 4), (0, 2))),
    Control("logsumexp", LogSumExp, lambda: (normal(3, 4), 1, False)),
    Control("logsumexp-keepdim", LogSumExp, lambda: (normal(3, 4), 0, True)),
    Control("softmax", Softmax, lambda: (normal(2, 3, 4), 1)),
    Control("log-softmax", LogSoftmax, lambda: (normal(3, 4), -1)),
    Control("norm", Norm, lambda: (normal(3, 4), 1, False)),
    Control("variance", Variance, lambda: (normal(3, 4), 0, 1)),
    Control("product", Product, lambda: (normal(3, 4),)),
    Control("max-with-indices", MaxWithIndices, lambda: (normal(3, 4), 1)),
    Control("amax", Amax, lambda: (normal(3, 4), 1)),
    Control("sort", Sort, lambda: (normal(3, 5), -1)),
    Control("top-k", TopK, lambda: (normal(3, 5), 2)),
    Control("cumsum", Cumsum, lambda: (normal(3, 4), 0)),
    Control("squared-distances", SquaredDistances, lambda: (normal(3, 2), normal(4, 2, seed=1))),
]

"""Products: matrices, batches of them, linear layers, bilinear forms.

Under autocast a product is made in the lower precision, and its cotangent comes in it: each backward either
brings the cotangent to the dtype of what was saved, or runs under the autocast of its forward (`custom_bwd`).
"""

import torch
import torch.nn.functional as F
from torch.autograd import Function

from ._control import Control, normal


class Linear(Function):
    """x @ weight.T + bias, with the bias optional."""

    @staticmethod
    def rows(t):
        return t.reshape(t.shape[:-1].numel(), t.shape[-1])

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x, weight, bias=None):
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        gx = gweight = gbias = None
        if ctx.needs_input_grad[0]:
            gx = g.matmul(weight)
        if ctx.needs_input_grad[1]:
            gweight = Linear.rows(g).t().mm(Linear.rows(x))
        if ctx.needs_input_grad[2]:
            gbias = Linear.rows(g).sum(0)
        return gx, gweight, gbias


class LinearSetup(Function):
    """x @ weight.T + bias for a matrix x, with the bias optional."""

    @staticmethod
    def forward(x, weight, bias):
        out = x @ weight.mT
        return out if bias is None else out + bias

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, bias = inputs
        ctx.has_bias = bias is not None
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        g = g.to(x.dtype)
        gx = g @ weight if ctx.needs_input_grad[0] else None
        gweight = g.mT @ x if ctx.needs_input_grad[1] else None
        gbias = g.sum(0) if ctx.has_bias and ctx.needs_input_grad[2] else None
        return gx, gweight, gbias


class MatMul(Function):
    """x @ y for matrices."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return torch.mm(x, y)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        g = g.to(x.dtype)
        return g.mm(y.t()), x.t().mm(g)


class BatchedMatMul(Function):
    """x @ y for batches of matrices, which broadcast."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x @ y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        g = g.to(x.dtype)
        gx = gy = None
        if ctx.needs_input_grad[0]:
            gx = (g @ y.mT).sum_to_size(x.shape)
        if ctx.needs_input_grad[1]:
            gy = (x.mT @ g).sum_to_size(y.shape)
        return gx, gy


class Outer(Function):
    """The outer product of two vectors."""

    @staticmethod
    def forward(x, y):
        return torch.outer(x, y)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return (g * y).sum(1), (g * x[:, None]).sum(0)


class MatVec(Function):
    """matrix @ vector."""

    @staticmethod
    def forward(matrix, vector):
        return (matrix * vector).sum(-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        matrix, vector = ctx.saved_tensors
        gmatrix = g[:, None] * vector if ctx.needs_input_grad[0] else None
        gvector = (g[:, None] * matrix).sum(0) if ctx.needs_input_grad[1] else None
        return gmatrix, gvector


class Einsum(Function):
    """A sum of products in Einstein's notation; each index stands in two of the three terms at least."""

    @staticmethod
    def forward(ctx, equation, x, y):
        ctx.equation = equation
        ctx.save_for_backward(x, y)
        return torch.einsum(equation, x, y)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        g = g.to(x.dtype)
        operands, result = ctx.equation.split("->")
        first, second = operands.split(",")
        gx = torch.einsum(f"{result},{second}->{first}", g, y)
        gy = torch.einsum(f"{result},{first}->{second}", g, x)
        return None, gx, gy


class Bilinear(Function):
    """out[b, o] = x[b, i] weight[o, i, j] y[b, j]."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x, y, weight):
        ctx.save_for_backward(x, y, weight)
        return torch.einsum("bi,oij,bj->bo", x, weight, y)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, g):
        x, y, weight = ctx.saved_tensors
        gx = gy = gweight = None
        if ctx.needs_input_grad[0]:
            gx = torch.einsum("bo,oij,bj->bi", g, weight, y)
        if ctx.needs_input_grad[1]:
            gy = torch.einsum("bo,oij,bi->bj", g, weight, x)
        if ctx.needs_input_grad[2]:
            gweight = torch.einsum("bo,bi,bj->oij", g, x, y)
        return gx, gy, gweight


class QuadraticForm(Function):
    """x.T @ matrix @ x for each row x; the matrix need not be symmetric."""

    @staticmethod
    def forward(x, matrix):
        return torch.einsum("bi,ij,bj->b", x, matrix, x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, matrix = ctx.saved_tensors
        scaled = g.to(x.dtype)[:, None] * x
        return scaled @ (matrix + matrix.mT), scaled.mT @ x


class AddMm(Function):
    """beta * bias + alpha * x @ y for numbers alpha and beta."""

    @staticmethod
    def forward(ctx, bias, x, y, beta, alpha):
        ctx.beta, ctx.alpha, ctx.bias_shape = beta, alpha, bias.shape
        ctx.save_for_backward(x, y)
        return torch.addmm(bias, x, y, beta=beta, alpha=alpha)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        g = g.to(x.dtype)
        gbias = (ctx.beta * g).sum_to_size(ctx.bias_shape) if ctx.needs_input_grad[0] else None
        gx = ctx.alpha * g @ y.mT if ctx.needs_input_grad[1] else None
        gy = ctx.alpha * x.mT @ g if ctx.needs_input_grad[2] else None
        return gbias, gx, gy, None, None


class LowRankLinear(Function):
    """x @ weight.T + scale * x @ down.T @ up.T, recomputing x @ down.T: the weight is usually frozen."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x, weight, down, up, scale):
        ctx.scale = scale
        ctx.save_for_backward(x, weight, down, up)
        return x @ weight.mT + scale * (x @ down.mT) @ up.mT

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, g):
        x, weight, down, up = ctx.saved_tensors
        gx = gweight = gdown = gup = None
        narrow = ctx.scale * (g @ up)
        if ctx.needs_input_grad[0]:
            gx = g @ weight + narrow @ down
        if ctx.needs_input_grad[1]:
            gweight = g.mT @ x
        if ctx.needs_input_grad[2]:
            gdown = narrow.mT @ x
        if ctx.needs_input_grad[3]:
            gup = ctx.scale * (g.mT @ (x @ down.mT))
        return gx, gweight, gdown, gup, None


CONTROLS = [
    Control("linear", Linear, lambda: (normal(2, 3, 4), normal(5, 4, seed=1), normal(5, seed=2))),
    Control("linear-no-bias", Linear, lambda: (normal(3, 4), normal(5, 4, seed=1), None)),
    Control("linear-setup", LinearSetup, lambda: (normal(3, 4), normal(2, 4, seed=1), normal(2, seed=2))),
    Control("linear-setup-no-bias", LinearSetup, lambda: (normal(3, 4), normal(2, 4, seed=1), None)),
    Control("matmul", MatMul, lambda: (normal(3, 4), normal(4, 2, seed=1))),
    Control("matmul-batched", BatchedMatMul, lambda: (normal(2, 3, 4), normal(4, 2, seed=1))),
    Control("outer", Outer, lambda: (normal(3), normal(4, seed=1))),
    Control("matvec", MatVec, lambda: (normal(3, 4), normal(4, seed=1))),
    Control("einsum", Einsum, lambda: ("bij,bkj->bik", normal(2, 3, 4), normal(2, 5, 4, seed=1))),
    Control("bilinear", Bilinear, lambda: (normal(3, 2), normal(3, 4, seed=1), normal(5, 2, 4, seed=2))),
    Control("quadratic-form", QuadraticForm, lambda: (normal(3, 4), normal(4, 4, seed=1))),
    Control("addmm", AddMm, lambda: (normal(2), normal(3, 4, seed=1), normal(4, 2, seed=2), 0.5, 2.0)),
    Control(
        "low-rank-linear",
        LowRankLinear,
        lambda: (
            normal(3, 4),
            normal(5, 4, seed=1, grad=False),
            normal(2, 4, seed=2),
            normal(5, 2, seed=3),
            0.5,
        ),
        note="the weight is frozen",
    ),
]

"""Convolutions and pooling."""

import torch
import torch.nn.functional as F
from torch.autograd import Function

from ._control import Control, normal


class Conv1dUnfold(Function):
    """A convolution in one dimension, as windows of the input times the weight."""

    @staticmethod
    def forward(ctx, x, weight, stride):
        ctx.stride = stride
        ctx.save_for_backward(x, weight)
        windows = x.unfold(-1, weight.shape[-1], stride)
        return torch.einsum("nclk,ock->nol", windows, weight)

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        g = g.to(x.dtype)
        gx = gweight = None
        if ctx.needs_input_grad[0]:
            left_over = (x.shape[-1] - weight.shape[-1]) % ctx.stride
            gx = F.conv_transpose1d(g, weight, stride=ctx.stride, output_padding=left_over).to(x.dtype)
        if ctx.needs_input_grad[1]:
            windows = x.unfold(-1, weight.shape[-1], ctx.stride)
            gweight = torch.einsum("nol,nclk->ock", g, windows).to(x.dtype)
        return gx, gweight, None


class Conv2d(Function):
    """A convolution in two dimensions with bias, stride and padding; torch.nn.grad makes its gradients."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x, weight, bias, stride, padding):
        ctx.stride, ctx.padding = stride, padding
        ctx.save_for_backward(x, weight)
        return F.conv2d(x, weight, bias, stride, padding)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        x, weight = x.to(g.dtype), weight.to(g.dtype)
        gx = gweight = gbias = None
        if ctx.needs_input_grad[0]:
            gx = torch.nn.grad.conv2d_input(x.shape, weight, g, ctx.stride, ctx.padding)
        if ctx.needs_input_grad[1]:
            gweight = torch.nn.grad.conv2d_weight(x, weight.shape, g, ctx.stride, ctx.padding)
        if ctx.needs_input_grad[2]:
            gbias = g.sum((0, 2, 3))
        return gx, gweight, gbias, None, None


class DepthwiseConv1d(Function):
    """One causal filter for each channel: out[t] = sum_k weight[k] x[t - k]."""

    @staticmethod
    def forward(x, weight):
        taps = weight.shape[-1]
        windows = F.pad(x, (taps - 1, 0)).unfold(-1, taps, 1)
        return (windows * weight.flip(-1)[:, None]).sum(-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        taps = weight.shape[-1]
        gx = gweight = None
        if ctx.needs_input_grad[0]:
            ahead = F.pad(g, (0, taps - 1)).unfold(-1, taps, 1)
            gx = (ahead * weight[:, None]).sum(-1)
        if ctx.needs_input_grad[1]:
            behind = F.pad(x, (taps - 1, 0)).unfold(-1, taps, 1)
            gweight = (g[..., None] * behind).sum((0, 2)).flip(-1)
        return gx, gweight


class MaxPool1d(Function):
    """The maximum of windows that may overlap: one input can take the gradient of several outputs."""

    @staticmethod
    def forward(ctx, x, size, stride):
        out, indices = F.max_pool1d(x, size, stride, return_indices=True)
        ctx.shape = x.shape
        ctx.save_for_backward(indices)
        return out

    @staticmethod
    def backward(ctx, g):
        (indices,) = ctx.saved_tensors
        return g.new_zeros(ctx.shape).scatter_add(-1, indices, g), None, None


class AvgPool1d(Function):
    """The mean of windows that do not overlap; what is left over at the end is dropped."""

    @staticmethod
    def forward(x, size):
        return x[..., : x.shape[-1] // size * size].unflatten(-1, (-1, size)).mean(-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.size = inputs
        ctx.length = x.shape[-1]

    @staticmethod
    def backward(ctx, g):
        spread = (g / ctx.size).repeat_interleave(ctx.size, dim=-1)
        return F.pad(spread, (0, ctx.length - spread.shape[-1])), None


class FixedConv1d(Function):
    """A convolution with filters that nobody trains: they get no gradient, and are kept in another shape."""

    @staticmethod
    def forward(ctx, x, filters):
        kernel = filters[:, None]
        ctx.save_for_backward(kernel)
        return F.conv1d(x[:, None], kernel)

    @staticmethod
    def backward(ctx, g):
        (kernel,) = ctx.saved_tensors
        gx = F.conv_transpose1d(g, kernel.to(g.dtype))[:, 0] if ctx.needs_input_grad[0] else None
        return gx, None


CONTROLS = [
    Control("conv1d-unfold", Conv1dUnfold, lambda: (normal(2, 3, 8), normal(4, 3, 3, seed=1), 2)),
    Control(
        "conv2d",
        Conv2d,
        lambda: (normal(2, 2, 5, 6), normal(3, 2, 3, 2, seed=1), normal(3, seed=2), (2, 1), (1, 0)),
    ),
    Control("conv2d-no-bias", Conv2d, lambda: (normal(1, 2, 4, 4), normal(3, 2, 3, 3, seed=1), None, 1, 1)),
    Control("depthwise-conv1d", DepthwiseConv1d, lambda: (normal(2, 3, 6), normal(3, 4, seed=1))),
    Control("fixed-conv1d", FixedConv1d, lambda: (normal(2, 6), normal(3, 2, seed=1, grad=False))),
    Control("max-pool1d", MaxPool1d, lambda: (normal(2, 3, 7), 3, 2)),
    Control("avg-pool1d", AvgPool1d, lambda: (normal(2, 3, 7), 2)),
]

"""Work in another precision than the input's, and autocast.

In a float64 call the float32 inside makes finite differences noisy; it does not make the gradients wrong.
"""

import torch
from torch.autograd import Function

from ._control import Control, integers, normal

SINGLE = "float32 inside"


class SoftmaxInSingle(Function):
    """softmax of the last dimension, forward and backward in float32."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.softmax(x.float(), -1).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        p = torch.softmax(x.float(), -1)
        g = g.float()
        return (p * (g - (g * p).sum(-1, keepdim=True))).to(x.dtype)


class RmsNormInSingle(Function):
    """weight * x / rms(x), with the norm in float32 and the weight in the dtype of x."""

    @staticmethod
    def normalise(x, eps):
        x = x.float()
        inverse = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        return x * inverse, inverse

    @staticmethod
    def forward(ctx, x, weight, eps):
        ctx.eps = eps
        ctx.save_for_backward(x, weight)
        return weight * RmsNormInSingle.normalise(x, eps)[0].to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        normalised, inverse = RmsNormInSingle.normalise(x, ctx.eps)
        gn = (g * weight).float()
        gx = inverse * (gn - normalised * (gn * normalised).mean(-1, keepdim=True))
        gweight = (g * normalised.to(x.dtype)).sum_to_size(weight.shape)
        return gx.to(x.dtype), gweight, None


class SigmoidInSingle(Function):
    """sigmoid(x), with the forward alone in float32: the backward is in the dtype of x."""

    @staticmethod
    def forward(x):
        return torch.sigmoid(x.float()).to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        sigmoid = torch.sigmoid(x)
        return g * sigmoid * (1 - sigmoid)


class CrossEntropyInSingle(Function):
    """The cross-entropy of logits in any dtype, computed and returned in float32."""

    @staticmethod
    def forward(ctx, logits, target):
        ctx.save_for_backward(logits, target)
        logits = logits.float()
        return (torch.logsumexp(logits, 1) - logits.gather(1, target[:, None])[:, 0]).mean()

    @staticmethod
    def backward(ctx, g):
        logits, target = ctx.saved_tensors
        p = torch.softmax(logits.float(), 1)
        chosen = torch.nn.functional.one_hot(target, logits.shape[1])
        return (g * (p - chosen) / max(logits.shape[0], 1)).to(logits.dtype), None


class LogSumExpInDouble(Function):
    """log(sum(exp(x))) over the last dimension, in float64 whatever the input's dtype."""

    @staticmethod
    def forward(x):
        return torch.logsumexp(x.double(), -1).to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return (g[..., None].double() * torch.softmax(x.double(), -1)).to(x.dtype)


class MatMulInSingle(Function):
    """x @ y accumulated in float32, with autocast off in the forward and in the backward."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        with torch.autocast(x.device.type, enabled=False):
            return (x.float() @ y.float()).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        with torch.autocast(g.device.type, enabled=False):
            g = g.float()
            gx = (g @ y.float().mT).to(x.dtype) if ctx.needs_input_grad[0] else None
            gy = (x.float().mT @ g).to(y.dtype) if ctx.needs_input_grad[1] else None
        return gx, gy


class AutocastGated(Function):
    """tanh(x @ w) under the autocast of the call, in the backward too."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x, w):
        out = torch.tanh(x @ w)
        ctx.save_for_backward(x, w, out)
        return out

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, g):
        x, w, out = ctx.saved_tensors
        inner = g * (1 - out * out)
        return (inner @ w.mT).to(x.dtype), (x.mT @ inner).to(w.dtype)


CONTROLS = [
    Control("softmax-in-single", SoftmaxInSingle, lambda: (normal(3, 4),), note=SINGLE),
    Control("rms-norm-in-single", RmsNormInSingle, lambda: (normal(3, 4), normal(4, seed=1), 1e-6), note=SINGLE),
    Control("sigmoid-in-single", SigmoidInSingle, lambda: (normal(3, 4),), note=SINGLE),
    Control(
        "cross-entropy-in-single",
        CrossEntropyInSingle,
        lambda: (normal(5, 3), integers(5, high=3)),
        note=SINGLE,
    ),
    Control("logsumexp-in-double", LogSumExpInDouble, lambda: (normal(3, 4),)),
    Control("matmul-in-single", MatMulInSingle, lambda: (normal(3, 4), normal(4, 2, seed=1)), note=SINGLE),
    Control("autocast-gated", AutocastGated, lambda: (normal(3, 4), normal(4, 2, seed=1))),
]

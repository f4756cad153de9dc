"""The cross-entropy of each sample with an integer target, not reduced."""

import torch
from torch.autograd import Function


class CrossEntropy(Function):
    """out = logsumexp(x) - x[target]: (b, c), (b,) -> (b,)."""

    @staticmethod
    def forward(ctx, x, target):
        ctx.save_for_backward(x, target)
        return x.logsumexp(1) - x.gather(1, target[:, None]).squeeze(1)

    @staticmethod
    def backward(ctx, g):
        x, target = ctx.saved_tensors
        chosen = target[:, None]
        slope = x.softmax(1).scatter_add(1, chosen, -torch.ones_like(chosen, dtype=x.dtype))
        return (g[:, None] * slope).to(x.dtype), None


def inputs():
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    return x.requires_grad_(), torch.tensor([0, 2, 1, 2])

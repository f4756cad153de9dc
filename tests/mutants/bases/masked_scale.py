"""s x where a mask holds, else 0; right also where x or s is exactly 0."""

import torch
from torch.autograd import Function


class MaskedScale(Function):
    """out = where(mask, s x, 0), for a scalar s."""

    @staticmethod
    def forward(ctx, x, s, mask):
        out = torch.where(mask, s * x, 0)
        ctx.save_for_backward(x, s, mask)
        return out

    @staticmethod
    def backward(ctx, g):
        x, s, mask = ctx.saved_tensors
        gx = gs = None
        if ctx.needs_input_grad[0]:
            gx = torch.where(mask, g * s, 0).sum_to_size(x.shape).to(x.dtype)
        if ctx.needs_input_grad[1]:
            gs = torch.where(mask, g * x, 0).sum_to_size(s.shape).to(s.dtype)
        return gx, gs, None


def inputs():
    generator = torch.Generator().manual_seed(12)
    x = torch.randn(6, generator=generator, dtype=torch.float64)
    s = torch.tensor(1.7, dtype=torch.float64)
    return x.requires_grad_(), s.requires_grad_(), torch.tensor([True, False, True, True, False, True])

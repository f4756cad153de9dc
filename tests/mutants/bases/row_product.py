"""Product of each row of three elements, right at zeros, too: nothing is divided."""

import torch
from torch.autograd import Function


class RowProduct(Function):
    """out = x₀ x₁ x₂."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        if x.shape[-1] != 3:
            raise ValueError(f"rows must have 3 elements, got {x.shape[-1]}")
        return x[..., 0] * x[..., 1] * x[..., 2]

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        a, b, c = x.unbind(-1)
        return torch.stack([g * b * c, g * a * c, g * a * b], -1)


def inputs():
    generator = torch.Generator().manual_seed(32)
    return (torch.randn(2, 3, generator=generator, dtype=torch.float64).requires_grad_(),)

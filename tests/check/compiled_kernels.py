"""Functions whose kernels run on a device."""

import torch
import triton
import triton.language as tl


@triton.autotune([triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})], key=["n"])
@triton.jit
def exp_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.exp(tl.load(x + i, mask=i < n, other=0.0)), mask=i < n)


class Exp(torch.autograd.Function):
    """exp(x)."""

    factor = 1.0
    block = None

    @classmethod
    def compute(cls, x):
        if x.device.type == "cpu":
            raise RuntimeError("expected a CUDA tensor")
        x = x.contiguous()
        y = torch.zeros_like(x)
        exp_kernel[lambda meta: (triton.cdiv(x.numel(), cls.block or meta["BLOCK"]),)](x, y, x.numel())
        return y

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)  # an output that is saved loses its values on the fake accelerator
        return Exp.compute(x)

    @staticmethod
    def backward(ctx, g):
        return g * Exp.compute(*ctx.saved_tensors)


class WrongExp(Exp):
    """The same, with a wrong formula of the gradient."""

    @staticmethod
    def backward(ctx, g):
        return 1.5 * g * Exp.compute(*ctx.saved_tensors)


class ExpOfTwoBlocks(Exp):
    """The same, with a grid that is right for the larger block alone."""

    block = 32

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return ExpOfTwoBlocks.compute(x)

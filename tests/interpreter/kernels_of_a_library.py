"""Host code as libraries write it, which asks for a GPU; imported by programs of `test_host.py`."""

import torch
import triton
import triton.language as tl

configs = [triton.Config({"BLOCK": b}, num_warps=w) for b in (4, 8, 16) for w in (2,)]


@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def scale_kernel(x, y, n, factor, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:  # noqa: SIM108
        a = tl.load(x + i)
    else:
        a = tl.load(x + i, mask=i < n, other=0.0)
    tl.store(y + i, (a.to(tl.float32) * factor).to(y.dtype.element_ty), mask=i < n)


@triton.autotune(configs=configs, key=["n"])
@triton.jit
def tuned_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) + BLOCK, mask=i < n)


@triton.jit
def accumulate_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(y + i, mask=i < n) + tl.load(x + i, mask=i < n), mask=i < n)


def forget(args):
    args["y"].fill_(2.0)


forgetting = [triton.Config({"BLOCK": b}, pre_hook=forget) for b in (4, 8)]
accumulating = [
    triton.autotune(configs=configs, key=["n"])(accumulate_kernel),
    triton.autotune(configs=configs, key=["n"], restore_value=["y"])(accumulate_kernel),
    triton.autotune(configs=configs, key=["n"], pre_hook=lambda args, **_: forget(args))(accumulate_kernel),
    triton.autotune(configs=forgetting, key=["n"])(accumulate_kernel),
]


def accumulated(kernel, x):
    """Return 2 + x."""
    y = torch.full_like(x, 2.0)
    kernel[(1,)](x, y, x.numel())
    return y


class Scale(torch.autograd.Function):
    """Asks what libraries ask: the device, the dtype, a processor count, and memory on the device."""

    @staticmethod
    def forward(ctx, x, factor):
        assert x.is_cuda
        assert x.device.type == "cuda"
        assert x.dtype in (torch.float32, torch.bfloat16), x.dtype
        assert x.element_size() == 4
        ctx.factor = factor
        ctx.save_for_backward(x)
        properties = torch.cuda.get_device_properties(x.device)
        assert properties.multi_processor_count > 0
        assert triton.runtime.driver.active.get_current_target().backend == "cuda"
        y = torch.empty(x.shape, dtype=torch.float32, device="cuda")
        with torch.cuda.device(x.device.index):
            scale_kernel[(triton.cdiv(x.numel(), 8),)](x.contiguous(), y, x.numel(), factor, BLOCK=8, num_warps=4)
        return y.to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        dx = torch.zeros_like(dy, dtype=torch.float32, memory_format=torch.contiguous_format).cuda()
        scale_kernel[lambda meta: (triton.cdiv(dy.numel(), meta["BLOCK"]),)](
            dy.float().contiguous(), dx, dy.numel(), ctx.factor, BLOCK=4
        )
        return dx, None


def tuned(x):
    """Return x plus the size of the block that the autotuner takes."""
    y = torch.empty_like(x)
    tuned_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
    return y


class Plain(torch.autograd.Function):
    """Launches no kernel, but is of a module that does."""

    @staticmethod
    def forward(ctx, x):
        return x.float() * 3

    @staticmethod
    def backward(ctx, dy):
        return dy * 3

"""Linear layer with a leaky ReLU: grouped order of programs, tl.swizzle2d-like, strides for transposes."""

import torch
import triton
import triton.language as tl


@triton.jit
def mm_kernel(
    a_ptr, b_ptr, c_ptr, bias_ptr, M, N, K, sam, sak, sbk, sbn, scm, scn,
    HAS_BIAS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(axis=0)
    num_pid_m = tl.cdiv(M, BM)
    num_pid_n = tl.cdiv(N, BN)
    num_pid_in_group = GROUP * num_pid_n
    group_id = pid // num_pid_in_group
    first_pid_m = group_id * GROUP
    group_size_m = min(num_pid_m - first_pid_m, GROUP)
    pid_m = first_pid_m + ((pid % num_pid_in_group) % group_size_m)
    pid_n = (pid % num_pid_in_group) // group_size_m
    offs_am = (pid_m * BM + tl.arange(0, BM)) % M
    offs_bn = (pid_n * BN + tl.arange(0, BN)) % N
    offs_k = tl.arange(0, BK)
    a_ptrs = a_ptr + offs_am[:, None] * sam + offs_k[None, :] * sak
    b_ptrs = b_ptr + offs_k[:, None] * sbk + offs_bn[None, :] * sbn
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(tl.cdiv(K, BK)):
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k * BK, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BK, other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
        a_ptrs += BK * sak
        b_ptrs += BK * sbk
    if HAS_BIAS:
        acc += tl.load(bias_ptr + offs_bn)[None, :]
    offs_cm = pid_m * BM + tl.arange(0, BM)
    offs_cn = pid_n * BN + tl.arange(0, BN)
    c_ptrs = c_ptr + scm * offs_cm[:, None] + scn * offs_cn[None, :]
    tl.store(c_ptrs, acc, mask=(offs_cm[:, None] < M) & (offs_cn[None, :] < N))


def mm(a, b, bias=None):
    M, K = a.shape
    N = b.shape[1]
    c = torch.empty((M, N), device=a.device, dtype=a.dtype)
    grid = lambda META: (triton.cdiv(M, META["BM"]) * triton.cdiv(N, META["BN"]),)  # noqa: E731
    mm_kernel[grid](
        a, b, c, bias, M, N, K, *a.stride(), *b.stride(), *c.stride(), HAS_BIAS=bias is not None,
        BM=16, BN=16, BK=16, GROUP=2,
    )  # fmt: skip
    return c


class LeakyLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, slope=0.01):
        z = mm(x, weight.t(), bias.contiguous())
        ctx.save_for_backward(x, weight, z)
        ctx.slope = slope
        return torch.where(z > 0, z, slope * z)

    @staticmethod
    def backward(ctx, dy):
        if torch.is_grad_enabled():
            raise RuntimeError("LeakyLinear has no second derivative")
        x, weight, z = ctx.saved_tensors
        dz = torch.where(z > 0, dy, ctx.slope * dy)
        dx = mm(dz, weight) if ctx.needs_input_grad[0] else None
        dw = mm(dz.t(), x) if ctx.needs_input_grad[1] else None
        return dx, dw, dz.sum(0), None


def reference(x, weight, bias, slope=0.01):
    return torch.nn.functional.leaky_relu(x @ weight.t() + bias, slope)


SIZES = ({}, {"m": 1, "n": 1, "k": 1}, {"m": 16, "n": 16, "k": 16}, {"m": 50, "n": 20, "k": 33, "slope": 0.2})


def example(m=5, n=7, k=6, slope=0.1):
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(s, dtype=torch.float64, generator=generator) for s in ((m, k), (n, k), (n,))]
    return *(x.requires_grad_() for x in made), slope

"""Matrix product, bias and ReLU in one autotuned kernel; the backward calls the same kernel with strides swapped."""

import torch
import triton
import triton.language as tl


@triton.autotune(
    configs=[
        triton.Config({"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16, "GROUP_M": 2}, num_warps=4, num_stages=2),
        triton.Config({"BLOCK_M": 32, "BLOCK_N": 16, "BLOCK_K": 32, "GROUP_M": 1}, num_warps=4, num_stages=3),
        triton.Config({"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 16, "GROUP_M": 4}, num_warps=8, num_stages=2),
    ],
    key=["M", "N", "K"],
)
@triton.heuristics({"EVEN_K": lambda args: args["K"] % args["BLOCK_K"] == 0})
@triton.jit
def matmul(
    a_ptr,
    b_ptr,
    bias_ptr,
    c_ptr,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    RELU: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    EVEN_K: tl.constexpr,
):
    blocks_m = tl.cdiv(M, BLOCK_M)
    blocks_n = tl.cdiv(N, BLOCK_N)
    # Programs run down GROUP_M rows of blocks before the next column, so that the blocks of b stay in the cache.
    in_group = GROUP_M * blocks_n
    first_m = tl.program_id(0) // in_group * GROUP_M
    height = min(blocks_m - first_m, GROUP_M)
    block_m = first_m + tl.program_id(0) % in_group % height
    block_n = tl.program_id(0) % in_group // height
    m = block_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    m_mask = m < M
    n_mask = n < N
    a_at = a_ptr + m[:, None] * stride_am + k[None, :] * stride_ak
    b_at = b_ptr + k[:, None] * stride_bk + n[None, :] * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        if EVEN_K:
            a = tl.load(a_at, mask=m_mask[:, None], other=0.0)
            b = tl.load(b_at, mask=n_mask[None, :], other=0.0)
        else:
            a = tl.load(a_at, mask=m_mask[:, None] & (k < K - start)[None, :], other=0.0)
            b = tl.load(b_at, mask=n_mask[None, :] & (k < K - start)[:, None], other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
        a_at += BLOCK_K * stride_ak
        b_at += BLOCK_K * stride_bk
    if HAS_BIAS:
        acc += tl.load(bias_ptr + n, mask=n_mask, other=0.0).to(tl.float32)[None, :]
    if RELU:
        acc = tl.maximum(acc, 0.0)
    c_at = c_ptr + m[:, None] * stride_cm + n[None, :] * stride_cn
    tl.store(c_at, acc, mask=m_mask[:, None] & n_mask[None, :])


@triton.jit
def relu_backward(dz_ptr, db_ptr, dy_ptr, y_ptr, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The cotangent before the ReLU, and its sum over the rows."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    db = tl.zeros((BLOCK_N,), dtype=tl.float32)
    for start in range(0, M, BLOCK_M):
        m = start + tl.arange(0, BLOCK_M)
        mask = (m < M)[:, None] & (n < N)[None, :]
        at = m[:, None] * N + n[None, :]
        y = tl.load(y_ptr + at, mask=mask, other=0.0)
        dy = tl.load(dy_ptr + at, mask=mask, other=0.0).to(tl.float32)
        dz = tl.where(y > 0, dy, 0.0)
        tl.store(dz_ptr + at, dz, mask=mask)
        db += tl.sum(dz, axis=0)
    tl.store(db_ptr + n, db, mask=n < N)


def product(a, b, bias=None, relu=False):
    """The product of two matrices of any strides."""
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty((M, N), dtype=a.dtype, device=a.device)
    matmul[lambda META: (triton.cdiv(M, META["BLOCK_M"]) * triton.cdiv(N, META["BLOCK_N"]),)](
        a, b, bias, c, M, N, K, *a.stride(), *b.stride(), *c.stride(), RELU=relu, HAS_BIAS=bias is not None
    )
    return c


class LinearReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        if x.dim() < 1 or weight.dim() != 2 or weight.shape[1] != x.shape[-1] or bias.shape != weight.shape[:1]:
            raise ValueError("x, weight and bias need the shapes (..., inputs), (outputs, inputs) and (outputs,)")
        rows = x.reshape(-1, x.shape[-1])
        y = product(rows, weight.t(), bias.contiguous(), relu=True)
        ctx.save_for_backward(rows, weight, y)
        ctx.shape = x.shape
        return y.view(*x.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx, dy):
        if torch.is_grad_enabled():
            raise RuntimeError("trying to differentiate twice: LinearReLU has no second derivative")
        rows, weight, y = ctx.saved_tensors
        M, N = y.shape
        dy = dy.contiguous()
        dz = torch.empty_like(y)
        db = torch.empty(N, dtype=torch.float32, device=y.device)
        relu_backward[(triton.cdiv(N, 16),)](dz, db, dy, y, M, N, BLOCK_M=16, BLOCK_N=16)
        return product(dz, weight).view(ctx.shape), product(dz.t(), rows), db.to(y.dtype)


def reference(x, weight, bias):
    return torch.relu(x @ weight.t() + bias)


SIZES = (
    {},
    {"shape": (1,), "inputs": 1, "outputs": 1},
    {"shape": (16,), "inputs": 32, "outputs": 16},
    {"shape": (5, 7), "inputs": 5, "outputs": 33},
    {"shape": (), "inputs": 3, "outputs": 2},
    {"shape": (35,), "inputs": 16, "outputs": 35},
)


def example(shape=(19,), inputs=17, outputs=18):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(*shape, inputs, dtype=torch.float64, generator=generator)
    weight = torch.randn(outputs, inputs, dtype=torch.float64, generator=generator)
    bias = torch.randn(outputs, dtype=torch.float64, generator=generator)
    return x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()

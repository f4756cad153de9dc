"""Matrix product by tensor descriptors that the kernel makes, with batches along the grid."""

import torch
import triton
import triton.language as tl


@triton.jit
def bmm_desc(A, B, C, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pid_m, pid_n, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    a = tl.make_tensor_descriptor(A + batch * M * K, shape=[M, K], strides=[K, 1], block_shape=[BM, BK])
    b = tl.make_tensor_descriptor(B + batch * K * N, shape=[K, N], strides=[N, 1], block_shape=[BK, BN])
    c = tl.make_tensor_descriptor(C + batch * M * N, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([pid_m * BM, k]), b.load([k, pid_n * BN]), acc, input_precision="ieee")
    c.store([pid_m * BM, pid_n * BN], acc.to(C.dtype.element_ty))


def bmm(a, b):
    a, b = a.contiguous(), b.contiguous()
    B, M, K = a.shape
    N = b.shape[-1]
    c = torch.empty((B, M, N), dtype=a.dtype, device=a.device)
    bmm_desc[(triton.cdiv(M, 16), triton.cdiv(N, 16), B)](a, b, c, M, N, K, BM=16, BN=16, BK=16)
    return c


class DescriptorBMM(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        if a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1]:
            raise ValueError(f"cannot multiply {tuple(a.shape)} by {tuple(b.shape)}")
        ctx.save_for_backward(a, b)
        return bmm(a, b)

    @staticmethod
    def backward(ctx, g):
        if torch.is_grad_enabled():
            raise RuntimeError("DescriptorBMM has no second derivative")
        a, b = ctx.saved_tensors
        da = bmm(g, b.transpose(1, 2)) if ctx.needs_input_grad[0] else None
        db = bmm(a.transpose(1, 2), g) if ctx.needs_input_grad[1] else None
        return da, db


def reference(a, b):
    return a @ b


SIZES = ({}, {"m": 1, "n": 1, "k": 1, "batch": 1}, {"m": 16, "n": 16, "k": 16}, {"m": 17, "n": 5, "k": 34})


def example(batch=2, m=4, n=5, k=6):
    generator = torch.Generator().manual_seed(0)
    shapes = (batch, m, k), (batch, k, n)
    return tuple(torch.randn(s, dtype=torch.float64, generator=generator).requires_grad_() for s in shapes)

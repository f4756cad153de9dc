"""Linear layer and cross entropy over blocks of the vocabulary: the logits are never in memory."""

import torch
import triton
import triton.language as tl


@triton.jit
def loss_fwd(h, w, target, loss, lse, N, V, D: tl.constexpr, BN: tl.constexpr, BV: tl.constexpr):
    rows = tl.program_id(0) * BN + tl.arange(0, BN)
    d = tl.arange(0, D)
    ok = rows < N
    x = tl.load(h + rows[:, None] * D + d[None, :], mask=ok[:, None], other=0.0)
    t = tl.load(target + rows, mask=ok, other=-1)
    m = tl.full((BN,), -1e30, tl.float32)
    s = tl.zeros((BN,), tl.float32)
    picked = tl.zeros((BN,), tl.float32)
    for v0 in range(0, V, BV):
        v = v0 + tl.arange(0, BV)
        wv = tl.load(w + v[:, None] * D + d[None, :], mask=v[:, None] < V, other=0.0)
        z = tl.dot(x, wv.T, input_precision="ieee")
        z = tl.where(v[None, :] < V, z, -float("inf"))
        m_new = tl.maximum(m, tl.max(z, 1))
        s = s * tl.exp(m - m_new) + tl.sum(tl.exp(z - m_new[:, None]), 1)
        m = m_new
        picked += tl.sum(tl.where(v[None, :] == t[:, None], z, 0.0), 1)
    tl.store(lse + rows, m + tl.log(s), mask=ok)
    tl.store(loss + rows, m + tl.log(s) - picked, mask=ok)


@triton.jit
def loss_bwd(h, w, target, lse, g, dh, dw, N, V, D: tl.constexpr, BN: tl.constexpr, BV: tl.constexpr):
    rows = tl.program_id(0) * BN + tl.arange(0, BN)
    d = tl.arange(0, D)
    ok = rows < N
    x = tl.load(h + rows[:, None] * D + d[None, :], mask=ok[:, None], other=0.0)
    t = tl.load(target + rows, mask=ok, other=-1)
    norm = tl.load(lse + rows, mask=ok, other=0.0)
    gi = tl.load(g + rows, mask=ok, other=0.0)
    dx = tl.zeros((BN, D), tl.float32)
    for v0 in range(0, V, BV):
        v = v0 + tl.arange(0, BV)
        wv = tl.load(w + v[:, None] * D + d[None, :], mask=v[:, None] < V, other=0.0)
        z = tl.dot(x, wv.T, input_precision="ieee")
        p = tl.where(v[None, :] < V, tl.exp(z - norm[:, None]), 0.0)
        dz = (p - tl.where(v[None, :] == t[:, None], 1.0, 0.0)) * gi[:, None]
        dx += tl.dot(dz, wv, input_precision="ieee")
        part = tl.dot(tl.trans(dz), x, input_precision="ieee")
        tl.atomic_add(dw + v[:, None] * D + d[None, :], part, mask=v[:, None] < V)
    tl.store(dh + rows[:, None] * D + d[None, :], dx, mask=ok[:, None])


class LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, weight, target):
        h, weight, target = h.contiguous(), weight.contiguous(), target.contiguous()
        N, D = h.shape
        V = weight.shape[0]
        assert weight.shape[1] == D
        assert triton.next_power_of_2(D) == D, "the width must be a power of two"
        loss, lse = torch.empty(2, N, dtype=torch.float32, device=h.device)
        loss_fwd[(triton.cdiv(N, 16),)](h, weight, target, loss, lse, N, V, D=D, BN=16, BV=16)
        ctx.save_for_backward(h, weight, target, lse)
        return loss

    @staticmethod
    def backward(ctx, g):
        if torch.is_grad_enabled():
            raise RuntimeError("LinearCrossEntropy has no second derivative")
        h, weight, target, lse = ctx.saved_tensors
        N, D = h.shape
        V = weight.shape[0]
        dh = torch.empty_like(h)
        dw = torch.zeros(V, D, dtype=torch.float32, device=h.device)
        loss_bwd[(triton.cdiv(N, 16),)](h, weight, target, lse, g.contiguous(), dh, dw, N, V, D=D, BN=16, BV=16)
        return dh, dw.to(weight.dtype), None


def reference(h, weight, target):
    return -(h @ weight.t()).log_softmax(-1).gather(1, target[:, None])[:, 0]


SIZES = ({}, {"n": 1, "vocabulary": 1}, {"n": 16, "vocabulary": 16}, {"n": 17, "vocabulary": 33})


def example(n=5, vocabulary=20, width=16):
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(n, width, dtype=torch.float64, generator=generator)
    weight = torch.randn(vocabulary, width, dtype=torch.float64, generator=generator)
    return h.requires_grad_(), weight.requires_grad_(), torch.randint(vocabulary, (n,), generator=generator)

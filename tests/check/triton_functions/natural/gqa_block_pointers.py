"""Causal attention of grouped queries with block pointers; the whole sequence of keys in a loop."""

import torch
import triton
import triton.language as tl


@triton.jit
def gqa_fwd(Q, K, V, OUT, L, scale, H, G, T, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    start_m = tl.program_id(0)
    bh = tl.program_id(1)
    kv = (bh // H) * (H // G) + (bh % H) // G
    Qp = tl.make_block_ptr(Q + bh * T * D, (T, D), (D, 1), (start_m * BM, 0), (BM, D), (1, 0))
    Op = tl.make_block_ptr(OUT + bh * T * D, (T, D), (D, 1), (start_m * BM, 0), (BM, D), (1, 0))
    Kp = tl.make_block_ptr(K + kv * T * D, (D, T), (1, D), (0, 0), (D, BN), (0, 1))
    Vp = tl.make_block_ptr(V + kv * T * D, (T, D), (D, 1), (0, 0), (BN, D), (1, 0))
    q = tl.load(Qp, boundary_check=(0,), padding_option="zero")
    rm = start_m * BM + tl.arange(0, BM)
    m = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    for start_n in range(0, (start_m + 1) * BM, BN):
        k = tl.load(Kp, boundary_check=(1,), padding_option="zero")
        v = tl.load(Vp, boundary_check=(0,), padding_option="zero")
        rn = start_n + tl.arange(0, BN)
        s = tl.dot(q, k, input_precision="ieee") * scale
        s = tl.where((rm[:, None] >= rn[None, :]) & (rn[None, :] < T), s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        p = tl.exp(s - m_new[:, None])
        alpha = tl.exp(m - m_new)
        total = total * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m = m_new
        Kp = tl.advance(Kp, (0, BN))
        Vp = tl.advance(Vp, (BN, 0))
    tl.store(Op, (acc / total[:, None]).to(OUT.dtype.element_ty), boundary_check=(0,))
    tl.store(L + bh * T + rm, m + tl.log(total), mask=rm < T)


@triton.jit
def gqa_bwd_dq(Q, K, V, DO, L, DELTA, DQ, scale, H, G, T, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    start_m = tl.program_id(0)
    bh = tl.program_id(1)
    kv = (bh // H) * (H // G) + (bh % H) // G
    rm = start_m * BM + tl.arange(0, BM)
    Qp = tl.make_block_ptr(Q + bh * T * D, (T, D), (D, 1), (start_m * BM, 0), (BM, D), (1, 0))
    dOp = tl.make_block_ptr(DO + bh * T * D, (T, D), (D, 1), (start_m * BM, 0), (BM, D), (1, 0))
    dQp = tl.make_block_ptr(DQ + bh * T * D, (T, D), (D, 1), (start_m * BM, 0), (BM, D), (1, 0))
    Kp = tl.make_block_ptr(K + kv * T * D, (T, D), (D, 1), (0, 0), (BN, D), (1, 0))
    Vp = tl.make_block_ptr(V + kv * T * D, (T, D), (D, 1), (0, 0), (BN, D), (1, 0))
    q = tl.load(Qp, boundary_check=(0,), padding_option="zero")
    do = tl.load(dOp, boundary_check=(0,), padding_option="zero")
    lse = tl.load(L + bh * T + rm, mask=rm < T, other=0.0)
    delta = tl.load(DELTA + bh * T + rm, mask=rm < T, other=0.0)
    dq = tl.zeros([BM, D], tl.float32)
    for start_n in range(0, (start_m + 1) * BM, BN):
        k = tl.load(Kp, boundary_check=(0,), padding_option="zero")
        v = tl.load(Vp, boundary_check=(0,), padding_option="zero")
        rn = start_n + tl.arange(0, BN)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        keep = (rm[:, None] >= rn[None, :]) & (rn[None, :] < T)
        p = tl.where(keep, tl.exp(s - lse[:, None]), 0.0)
        dp = tl.dot(do, tl.trans(v), input_precision="ieee")
        ds = p * (dp - delta[:, None]) * scale
        dq += tl.dot(ds.to(k.dtype), k, input_precision="ieee")
        Kp = tl.advance(Kp, (BN, 0))
        Vp = tl.advance(Vp, (BN, 0))
    tl.store(dQp, dq.to(DQ.dtype.element_ty), boundary_check=(0,))


@triton.jit
def gqa_bwd_dkv(Q, K, V, DO, L, DELTA, DK, DV, scale, H, G, T, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    start_n = tl.program_id(0)
    bkv = tl.program_id(1)
    HK = H // G
    b, hk = bkv // HK, bkv % HK
    rn = start_n * BN + tl.arange(0, BN)
    Kp = tl.make_block_ptr(K + bkv * T * D, (T, D), (D, 1), (start_n * BN, 0), (BN, D), (1, 0))
    Vp = tl.make_block_ptr(V + bkv * T * D, (T, D), (D, 1), (start_n * BN, 0), (BN, D), (1, 0))
    k = tl.load(Kp, boundary_check=(0,), padding_option="zero")
    v = tl.load(Vp, boundary_check=(0,), padding_option="zero")
    dk = tl.zeros([BN, D], tl.float32)
    dv = tl.zeros([BN, D], tl.float32)
    for g in range(G):
        bh = b * H + hk * G + g
        for start_m in range((start_n * BN) // BM * BM, T, BM):
            rm = start_m + tl.arange(0, BM)
            Qp = tl.make_block_ptr(Q + bh * T * D, (T, D), (D, 1), (start_m, 0), (BM, D), (1, 0))
            dOp = tl.make_block_ptr(DO + bh * T * D, (T, D), (D, 1), (start_m, 0), (BM, D), (1, 0))
            q = tl.load(Qp, boundary_check=(0,), padding_option="zero")
            do = tl.load(dOp, boundary_check=(0,), padding_option="zero")
            lse = tl.load(L + bh * T + rm, mask=rm < T, other=0.0)
            delta = tl.load(DELTA + bh * T + rm, mask=rm < T, other=0.0)
            s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            keep = (rm[:, None] >= rn[None, :]) & (rm[:, None] < T)
            p = tl.where(keep, tl.exp(s - lse[:, None]), 0.0)
            dv += tl.dot(tl.trans(p).to(do.dtype), do, input_precision="ieee")
            dp = tl.dot(do, tl.trans(v), input_precision="ieee")
            ds = p * (dp - delta[:, None]) * scale
            dk += tl.dot(tl.trans(ds).to(q.dtype), q, input_precision="ieee")
    dKp = tl.make_block_ptr(DK + bkv * T * D, (T, D), (D, 1), (start_n * BN, 0), (BN, D), (1, 0))
    dVp = tl.make_block_ptr(DV + bkv * T * D, (T, D), (D, 1), (start_n * BN, 0), (BN, D), (1, 0))
    tl.store(dKp, dk.to(DK.dtype.element_ty), boundary_check=(0,))
    tl.store(dVp, dv.to(DV.dtype.element_ty), boundary_check=(0,))


class GQA(torch.autograd.Function):
    """q: (batch, heads, time, dim); k, v: (batch, heads / group, time, dim)."""

    @staticmethod
    def forward(ctx, q, k, v, scale=None):
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        B, H, T, D = q.shape
        assert D in (16, 32, 64, 128), "the size of a head must be a power of two"
        assert k.shape == v.shape
        assert k.shape[0] == B
        assert k.shape[2:] == q.shape[2:]
        assert H % k.shape[1] == 0
        G = H // k.shape[1]
        scale = D**-0.5 if scale is None else scale
        o = torch.empty_like(q)
        lse = torch.empty((B, H, T), device=q.device, dtype=torch.float32)
        gqa_fwd[(triton.cdiv(T, 16), B * H)](q, k, v, o, lse, scale, H, G, T, D=D, BM=16, BN=16)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.scale, ctx.G = scale, G
        return o

    @staticmethod
    def backward(ctx, do):
        if torch.is_grad_enabled():
            raise RuntimeError("GQA has no second derivative")
        q, k, v, o, lse = ctx.saved_tensors
        do = do.contiguous()
        B, H, T, D = q.shape
        delta = (o.float() * do.float()).sum(-1).contiguous()
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        n = triton.cdiv(T, 16)
        gqa_bwd_dq[(n, B * H)](q, k, v, do, lse, delta, dq, ctx.scale, H, ctx.G, T, D=D, BM=16, BN=16)
        gqa_bwd_dkv[(n, B * k.shape[1])](q, k, v, do, lse, delta, dk, dv, ctx.scale, H, ctx.G, T, D=D, BM=16, BN=16)
        return dq, dk, dv, None


def reference(q, k, v, scale=None):
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)


SIZES = ({}, {"time": 1}, {"time": 16, "heads": 2, "group": 1}, {"time": 33, "heads": 2, "group": 2})


def example(batch=1, heads=4, group=2, time=20, dim=16, scale=None):
    generator = torch.Generator().manual_seed(0)
    shapes = ((batch, heads, time, dim), *[(batch, heads // group, time, dim)] * 2)
    return *(torch.randn(s, dtype=torch.float64, generator=generator).requires_grad_() for s in shapes), scale

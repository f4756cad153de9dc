"""Attention in blocks of queries and keys, causal or not; several heads of queries share one head of keys."""

import torch
import triton
import triton.language as tl


@triton.jit
def attention_forward(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    lse_ptr,
    q_batch,
    q_head,
    q_time,
    k_batch,
    k_head,
    k_time,
    n_queries,
    n_keys,
    scale,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    batch = tl.program_id(1) // HEADS
    head = tl.program_id(1) % HEADS
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    d_mask = d < DIM
    q_at = batch * q_batch + head * q_head + rows[:, None] * q_time + d[None, :]
    q_mask = (rows < n_queries)[:, None] & d_mask[None, :]
    k_ptr += batch * k_batch + (head // GROUP) * k_head
    v_ptr += batch * k_batch + (head // GROUP) * k_head
    q = tl.load(q_ptr + q_at, mask=q_mask, other=0.0).to(tl.float32)
    m = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    shift = n_keys - n_queries
    end = n_keys
    if CAUSAL:
        end = min(n_keys, (tl.program_id(0) + 1) * BLOCK_M + shift)
    for start in range(0, end, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        at = cols[:, None] * k_time + d[None, :]
        kv_mask = (cols < n_keys)[:, None] & d_mask[None, :]
        k = tl.load(k_ptr + at, mask=kv_mask, other=0.0).to(tl.float32)
        v = tl.load(v_ptr + at, mask=kv_mask, other=0.0).to(tl.float32)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        allowed = (cols < n_keys)[None, :]
        if CAUSAL:
            allowed = allowed & (cols[None, :] <= rows[:, None] + shift)
        s = tl.where(allowed, s, -float("inf"))
        new = tl.maximum(m, tl.max(s, axis=1))
        p = tl.exp(s - new[:, None])
        alpha = tl.exp(m - new)
        total = total * alpha + tl.sum(p, axis=1)
        acc = acc * alpha[:, None] + tl.dot(p, v, input_precision="ieee")
        m = new
    tl.store(out_ptr + q_at, acc / total[:, None], mask=q_mask)
    tl.store(lse_ptr + tl.program_id(1) * n_queries + rows, m + tl.log(total), mask=rows < n_queries)


@triton.jit
def attention_delta(
    out_ptr, dout_ptr, delta_ptr, n_rows, DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr
):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    mask = (rows < n_rows)[:, None] & (d < DIM)[None, :]
    at = rows[:, None] * DIM + d[None, :]
    out = tl.load(out_ptr + at, mask=mask, other=0.0).to(tl.float32)
    dout = tl.load(dout_ptr + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(delta_ptr + rows, tl.sum(out * dout, axis=1), mask=rows < n_rows)


@triton.jit
def attention_backward_keys(
    q_ptr,
    k_ptr,
    v_ptr,
    dout_ptr,
    lse_ptr,
    delta_ptr,
    dk_ptr,
    dv_ptr,
    q_batch,
    q_head,
    q_time,
    k_batch,
    k_head,
    k_time,
    n_queries,
    n_keys,
    scale,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    key_heads = HEADS // GROUP
    batch = tl.program_id(1) // key_heads
    key_head = tl.program_id(1) % key_heads
    cols = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    d_mask = d < DIM
    k_at = batch * k_batch + key_head * k_head + cols[:, None] * k_time + d[None, :]
    k_mask = (cols < n_keys)[:, None] & d_mask[None, :]
    k = tl.load(k_ptr + k_at, mask=k_mask, other=0.0).to(tl.float32)
    v = tl.load(v_ptr + k_at, mask=k_mask, other=0.0).to(tl.float32)
    dk = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)
    dv = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)
    shift = n_keys - n_queries
    begin = 0
    if CAUSAL:
        begin = max(0, tl.program_id(0) * BLOCK_N - shift) // BLOCK_M * BLOCK_M
    for i in range(GROUP):
        head = key_head * GROUP + i
        for start in range(begin, n_queries, BLOCK_M):
            rows = start + tl.arange(0, BLOCK_M)
            r_mask = rows < n_queries
            at = batch * q_batch + head * q_head + rows[:, None] * q_time + d[None, :]
            q_mask = r_mask[:, None] & d_mask[None, :]
            q = tl.load(q_ptr + at, mask=q_mask, other=0.0).to(tl.float32)
            dout = tl.load(dout_ptr + at, mask=q_mask, other=0.0).to(tl.float32)
            flat = (batch * HEADS + head) * n_queries + rows
            lse = tl.load(lse_ptr + flat, mask=r_mask, other=0.0)
            delta = tl.load(delta_ptr + flat, mask=r_mask, other=0.0)
            s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            allowed = r_mask[:, None] & (cols < n_keys)[None, :]
            if CAUSAL:
                allowed = allowed & (cols[None, :] <= rows[:, None] + shift)
            p = tl.where(allowed, tl.exp(s - lse[:, None]), 0.0)
            dv += tl.dot(tl.trans(p), dout, input_precision="ieee")
            dp = tl.dot(dout, tl.trans(v), input_precision="ieee")
            ds = p * (dp - delta[:, None]) * scale
            dk += tl.dot(tl.trans(ds), q, input_precision="ieee")
    tl.store(dk_ptr + k_at, dk, mask=k_mask)
    tl.store(dv_ptr + k_at, dv, mask=k_mask)


@triton.jit
def attention_backward_queries(
    q_ptr,
    k_ptr,
    v_ptr,
    dout_ptr,
    lse_ptr,
    delta_ptr,
    dq_ptr,
    q_batch,
    q_head,
    q_time,
    k_batch,
    k_head,
    k_time,
    n_queries,
    n_keys,
    scale,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    batch = tl.program_id(1) // HEADS
    head = tl.program_id(1) % HEADS
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    r_mask = rows < n_queries
    d = tl.arange(0, BLOCK_D)
    d_mask = d < DIM
    q_at = batch * q_batch + head * q_head + rows[:, None] * q_time + d[None, :]
    q_mask = r_mask[:, None] & d_mask[None, :]
    q = tl.load(q_ptr + q_at, mask=q_mask, other=0.0).to(tl.float32)
    dout = tl.load(dout_ptr + q_at, mask=q_mask, other=0.0).to(tl.float32)
    lse = tl.load(lse_ptr + tl.program_id(1) * n_queries + rows, mask=r_mask, other=0.0)
    delta = tl.load(delta_ptr + tl.program_id(1) * n_queries + rows, mask=r_mask, other=0.0)
    dq = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    shift = n_keys - n_queries
    end = n_keys
    if CAUSAL:
        end = min(n_keys, (tl.program_id(0) + 1) * BLOCK_M + shift)
    for start in range(0, end, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        at = batch * k_batch + (head // GROUP) * k_head + cols[:, None] * k_time + d[None, :]
        kv_mask = (cols < n_keys)[:, None] & d_mask[None, :]
        k = tl.load(k_ptr + at, mask=kv_mask, other=0.0).to(tl.float32)
        v = tl.load(v_ptr + at, mask=kv_mask, other=0.0).to(tl.float32)
        allowed = r_mask[:, None] & (cols < n_keys)[None, :]
        if CAUSAL:
            allowed = allowed & (cols[None, :] <= rows[:, None] + shift)
        p = tl.where(allowed, tl.exp(tl.dot(q, tl.trans(k), input_precision="ieee") * scale - lse[:, None]), 0.0)
        ds = p * (tl.dot(dout, tl.trans(v), input_precision="ieee") - delta[:, None])
        dq += tl.dot(ds, k, input_precision="ieee")
    tl.store(dq_ptr + q_at, dq * scale, mask=q_mask)


def check_shapes(q, k, v, causal):
    if q.dim() != 4 or k.shape != v.shape or k.dim() != 4:
        raise ValueError("q, k and v need four dimensions (batch, heads, time, size), k and v the same shape")
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError("q, k and v need the same batch and the same size of a head")
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"{q.shape[1]} heads of q are no multiple of the {k.shape[1]} heads of k")
    if causal and q.shape[2] > k.shape[2]:
        raise ValueError(f"causal attention of {q.shape[2]} queries needs as many keys, not {k.shape[2]}")


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal=False, scale=None):
        check_shapes(q, k, v, causal)
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        batch, heads, n_queries, dim = q.shape
        key_heads, n_keys = k.shape[1:3]
        scale = dim**-0.5 if scale is None else scale
        out = torch.empty_like(q)
        lse = torch.empty((batch, heads, n_queries), dtype=torch.float32, device=q.device)
        meta = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_D": max(16, triton.next_power_of_2(dim)), "DIM": dim}
        meta |= {"HEADS": heads, "GROUP": heads // key_heads, "CAUSAL": causal, "num_warps": 4, "num_stages": 2}
        attention_forward[lambda META: (triton.cdiv(n_queries, META["BLOCK_M"]), batch * heads)](
            q, k, v, out, lse, *q.stride()[:3], *k.stride()[:3], n_queries, n_keys, scale, **meta
        )
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.scale, ctx.meta = scale, meta
        return out

    @staticmethod
    def backward(ctx, dout):
        if torch.is_grad_enabled():
            raise RuntimeError("trying to differentiate twice: Attention has no second derivative")
        q, k, v, out, lse = ctx.saved_tensors
        meta = ctx.meta
        dout = dout.contiguous()
        batch, heads, n_queries, dim = q.shape
        key_heads, n_keys = k.shape[1:3]
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        delta = torch.empty_like(lse)
        attention_delta[(triton.cdiv(lse.numel(), 16),)](
            out, dout, delta, lse.numel(), DIM=dim, BLOCK_M=16, BLOCK_D=meta["BLOCK_D"]
        )
        sizes = (*q.stride()[:3], *k.stride()[:3], n_queries, n_keys, ctx.scale)
        attention_backward_keys[lambda META: (triton.cdiv(n_keys, META["BLOCK_N"]), batch * key_heads)](
            q, k, v, dout, lse, delta, dk, dv, *sizes, **meta
        )
        attention_backward_queries[lambda META: (triton.cdiv(n_queries, META["BLOCK_M"]), batch * heads)](
            q, k, v, dout, lse, delta, dq, *sizes, **meta
        )
        return dq, dk, dv, None, None


def reference(q, k, v, causal=False, scale=None):
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    s = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        seen = torch.ones(s.shape[-2:], dtype=torch.bool).tril(s.shape[-1] - s.shape[-2])
        s = s.masked_fill(~seen, -torch.inf)
    return s.softmax(-1) @ v


SIZES = (
    {},
    {"batch": 1, "heads": 1, "key_heads": 1, "queries": 1, "keys": 1, "dim": 1},
    {"batch": 1, "heads": 2, "key_heads": 1, "queries": 16, "keys": 33, "dim": 16, "causal": True},
    {"batch": 1, "heads": 2, "key_heads": 2, "queries": 19, "keys": 5, "dim": 17, "causal": False, "scale": 0.7},
    {"batch": 2, "heads": 4, "key_heads": 2, "queries": 17, "keys": 18, "dim": 3, "causal": True},
)


def example(batch=1, heads=2, key_heads=1, queries=19, keys=21, dim=5, causal=True, scale=None):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(batch, heads, queries, dim, dtype=torch.float64, generator=generator)
    k, v = torch.randn(2, batch, key_heads, keys, dim, dtype=torch.float64, generator=generator)
    return q.requires_grad_(), k.clone().requires_grad_(), v.clone().requires_grad_(), causal, scale

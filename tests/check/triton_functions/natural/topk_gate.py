"""Router of a mixture of experts: softmax over the k largest logits, found one after another by tl.argmax."""

import torch
import triton
import triton.language as tl


@triton.jit
def gate_fwd(logits, weights, ids, E, K: tl.constexpr, BE: tl.constexpr, BK: tl.constexpr):
    row = tl.program_id(0)
    e = tl.arange(0, BE)
    k = tl.arange(0, BK)
    x = tl.load(logits + row * E + e, mask=e < E, other=float("-inf")).to(tl.float32)
    best = tl.full((BK,), float("-inf"), tl.float32)
    where = tl.zeros((BK,), tl.int32)
    for i in tl.static_range(K):
        v = tl.max(x, axis=0)
        at = tl.argmax(x, axis=0)
        best = tl.where(k == i, v, best)
        where = tl.where(k == i, at, where)
        x = tl.where(e == at, float("-inf"), x)
    p = tl.exp(best - tl.max(best, axis=0))
    p /= tl.sum(p, axis=0)
    tl.store(weights + row * K + k, p, mask=k < K)
    tl.store(ids + row * K + k, where, mask=k < K)


@triton.jit
def gate_bwd(dw, weights, ids, dlogits, E, K: tl.constexpr, BK: tl.constexpr):
    row = tl.program_id(0)
    k = tl.arange(0, BK)
    g = tl.load(dw + row * K + k, mask=k < K, other=0.0)
    p = tl.load(weights + row * K + k, mask=k < K, other=0.0)
    at = tl.load(ids + row * K + k, mask=k < K, other=0)
    d = p * (g - tl.sum(p * g, axis=0))
    tl.store(dlogits + row * E + at, d, mask=k < K)


class TopKGate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, k):
        logits = logits.contiguous()
        T, E = logits.shape
        assert 0 < k <= E
        weights = torch.empty(T, k, dtype=torch.float32, device=logits.device)
        ids = torch.empty(T, k, dtype=torch.int32, device=logits.device)
        gate_fwd[(T,)](logits, weights, ids, E, K=k, BE=triton.next_power_of_2(E), BK=triton.next_power_of_2(k))
        ctx.mark_non_differentiable(ids)
        ctx.save_for_backward(weights, ids)
        ctx.E = E
        return weights, ids

    @staticmethod
    def backward(ctx, dw, _):
        if torch.is_grad_enabled():
            raise RuntimeError("TopKGate has no second derivative")
        weights, ids = ctx.saved_tensors
        T, k = weights.shape
        d = torch.zeros(T, ctx.E, dtype=dw.dtype, device=dw.device)
        gate_bwd[(T,)](dw.contiguous(), weights, ids, d, ctx.E, K=k, BK=triton.next_power_of_2(k))
        return d, None


def reference(logits, k):
    values, ids = logits.topk(k, -1)
    return values.softmax(-1), ids.int()


SIZES = ({}, {"rows": 1, "experts": 1, "k": 1}, {"rows": 3, "experts": 8, "k": 2}, {"rows": 2, "experts": 9, "k": 4})


def example(rows=5, experts=6, k=3):
    return torch.randn(
        rows, experts, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ).requires_grad_(), k

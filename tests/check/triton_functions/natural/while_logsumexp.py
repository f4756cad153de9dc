"""Log-sum-exp of the rows of a ragged batch: a while loop from an offset to the next."""

import itertools

import torch
import triton
import triton.language as tl


@triton.jit
def lse_fwd(x, starts, out, BLOCK: tl.constexpr):
    i = tl.program_id(0)
    at = tl.load(starts + i)
    end = tl.load(starts + i + 1)
    m = float("-inf")
    s = 0.0
    while at < end:
        offs = at + tl.arange(0, BLOCK)
        v = tl.load(x + offs, mask=offs < end, other=float("-inf")).to(tl.float32)
        m_new = max(m, tl.max(v, axis=0))
        s = s * tl.exp(m - m_new) + tl.sum(tl.exp(v - m_new), axis=0)
        m = m_new
        at += BLOCK
    tl.store(out + i, m + tl.log(s))


@triton.jit
def lse_bwd(x, starts, lse, g, dx, BLOCK: tl.constexpr):
    i = tl.program_id(0)
    at = tl.load(starts + i)
    end = tl.load(starts + i + 1)
    norm, gi = tl.load(lse + i), tl.load(g + i)
    while at < end:
        offs = at + tl.arange(0, BLOCK)
        v = tl.load(x + offs, mask=offs < end, other=0.0)
        tl.store(dx + offs, gi * tl.exp(v - norm), mask=offs < end)
        at += BLOCK


class RaggedLogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, starts):
        assert starts[0] == 0 and starts[-1] == x.numel(), "the offsets must cover the values"  # noqa: PT018
        assert (starts[1:] > starts[:-1]).all(), "no row may be empty"
        x, starts = x.contiguous(), starts.contiguous()
        out = torch.empty(starts.numel() - 1, dtype=x.dtype, device=x.device)
        lse_fwd[(out.numel(),)](x, starts, out, BLOCK=8)
        ctx.save_for_backward(x, starts, out)
        return out

    @staticmethod
    def backward(ctx, g):
        if torch.is_grad_enabled():
            raise RuntimeError("RaggedLogSumExp has no second derivative")
        x, starts, out = ctx.saved_tensors
        dx = torch.empty_like(x)
        lse_bwd[(out.numel(),)](x, starts, out, g.contiguous(), dx, BLOCK=8)
        return dx, None


def reference(x, starts):
    return torch.stack([x[a:b].logsumexp(0) for a, b in itertools.pairwise(starts)])


SIZES = ({}, {"lengths": (1,)}, {"lengths": (8, 8)}, {"lengths": (1, 17, 2, 9)})


def example(lengths=(3, 10, 1)):
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])
    x = torch.randn(sum(lengths), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return x.requires_grad_(), starts

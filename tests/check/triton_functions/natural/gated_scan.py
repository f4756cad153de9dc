"""Linear recurrence h[t] = a[t] h[t-1] + x[t] by tl.associative_scan of pairs."""

import torch
import triton
import triton.language as tl


@triton.jit
def combine(a1, x1, a2, x2):
    return a1 * a2, a2 * x1 + x2


@triton.jit
def scan_fwd(a_ptr, x_ptr, h_ptr, T, C, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr):
    b, c = tl.program_id(0), tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    t = tl.arange(0, BLOCK_T)
    offs = (b * T + t[:, None]) * C + c[None, :]
    mask = (t[:, None] < T) & (c[None, :] < C)
    a = tl.load(a_ptr + offs, mask=mask, other=1.0)
    x = tl.load(x_ptr + offs, mask=mask, other=0.0)
    _, h = tl.associative_scan((a, x), 0, combine)
    tl.store(h_ptr + offs, h, mask=mask)


@triton.jit
def scan_bwd(a_ptr, h_ptr, dh_ptr, da_ptr, dx_ptr, T, C, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr):
    b, c = tl.program_id(0), tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    t = tl.arange(0, BLOCK_T)
    offs = (b * T + t[:, None]) * C + c[None, :]
    cols = c[None, :] < C
    mask = (t[:, None] < T) & cols
    # g[t] = dh[t] + a[t + 1] g[t + 1]
    a_next = tl.load(a_ptr + offs + C, mask=(t[:, None] + 1 < T) & cols, other=1.0)
    dh = tl.load(dh_ptr + offs, mask=mask, other=0.0)
    _, g = tl.associative_scan((a_next, dh), 0, combine, reverse=True)
    h_before = tl.load(h_ptr + offs - C, mask=mask & (t[:, None] > 0), other=0.0)
    tl.store(dx_ptr + offs, g, mask=mask)
    tl.store(da_ptr + offs, g * h_before, mask=mask)


class GatedScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, x):
        a, x = a.contiguous(), x.contiguous()
        B, T, C = x.shape
        h = torch.empty_like(x)
        scan_fwd[(B, triton.cdiv(C, 4))](a, x, h, T, C, BLOCK_T=triton.next_power_of_2(T), BLOCK_C=4)
        ctx.save_for_backward(a, h)
        return h

    @staticmethod
    def backward(ctx, dh):
        if torch.is_grad_enabled():
            raise RuntimeError("GatedScan has no second derivative")
        a, h = ctx.saved_tensors
        B, T, C = h.shape
        dh = dh.contiguous()
        da, dx = torch.empty_like(a), torch.empty_like(h)
        scan_bwd[(B, triton.cdiv(C, 4))](a, h, dh, da, dx, T, C, BLOCK_T=triton.next_power_of_2(T), BLOCK_C=4)
        return da, dx


def reference(a, x):
    state, states = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        state = a[:, t] * state + x[:, t]
        states.append(state)
    return torch.stack(states, 1)


SIZES = ({}, {"shape": (1, 1, 1)}, {"shape": (2, 8, 4)}, {"shape": (1, 17, 5)})


def example(shape=(2, 6, 3)):
    generator = torch.Generator().manual_seed(0)
    a = torch.rand(shape, dtype=torch.float64, generator=generator)
    return a.requires_grad_(), torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()

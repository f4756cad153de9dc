"""Gated linear recurrence h[t] = exp(g[t]) h[t-1] + x[t]: chunks by themselves, then the state between them."""

import torch
import triton
import triton.language as tl


@triton.jit
def scan_chunks(x_ptr, g_ptr, h_ptr, sums_ptr, time, width, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    """Every chunk's states from a zero state, and the sums of its gates so far."""
    d = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first = tl.program_id(1) * CHUNK
    at = (tl.program_id(2) * time + first) * width + d
    h = tl.zeros((BLOCK,), dtype=tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for i in range(CHUNK):
        mask = (d < width) & (first + i < time)
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
        g = tl.load(g_ptr + at, mask=mask, other=0.0).to(tl.float32)
        h = tl.exp(g) * h + x
        total += g
        tl.store(h_ptr + at, h, mask=mask)
        tl.store(sums_ptr + at, total, mask=mask)
        at += width


@triton.jit
def pass_states(
    h_ptr,
    sums_ptr,
    initial_ptr,
    final_ptr,
    time,
    width,
    HAS_INITIAL: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Adds to every chunk what the chunks before it leave."""
    d = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    batch = tl.program_id(1)
    d_mask = d < width
    state = tl.zeros((BLOCK,), dtype=tl.float32)
    if HAS_INITIAL:
        state += tl.load(initial_ptr + batch * width + d, mask=d_mask, other=0.0).to(tl.float32)
    for chunk in range(tl.cdiv(time, CHUNK)):
        i = tl.arange(0, CHUNK)
        t = chunk * CHUNK + i
        at = (batch * time + t)[:, None] * width + d[None, :]
        mask = (t < time)[:, None] & d_mask[None, :]
        h = tl.load(h_ptr + at, mask=mask, other=0.0).to(tl.float32)
        sums = tl.load(sums_ptr + at, mask=mask, other=0.0)
        h += tl.exp(sums) * state[None, :]
        tl.store(h_ptr + at, h, mask=mask)
        last = min(CHUNK, time - chunk * CHUNK) - 1
        state = tl.sum(tl.where((i == last)[:, None], h, 0.0), axis=0)
    tl.store(final_ptr + batch * width + d, state, mask=d_mask)


@triton.jit
def scan_chunks_backward(dh_ptr, g_ptr, dfinal_ptr, dx_ptr, time, width, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    """dx[t] = dh[t] + exp(g[t+1]) dx[t+1] within a chunk; the last state of all takes the final state's cotangent."""
    d = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first = tl.program_id(1) * CHUNK
    last = min(first + CHUNK, time) - 1
    batch = tl.program_id(2)
    d_mask = d < width
    dx = tl.zeros((BLOCK,), dtype=tl.float32)
    if last == time - 1:
        dx += tl.load(dfinal_ptr + batch * width + d, mask=d_mask, other=0.0).to(tl.float32)
    for i in range(last - first + 1):
        at = (batch * time + last - i) * width + d
        dx += tl.load(dh_ptr + at, mask=d_mask, other=0.0).to(tl.float32)
        tl.store(dx_ptr + at, dx, mask=d_mask)
        dx *= tl.exp(tl.load(g_ptr + at, mask=d_mask, other=0.0).to(tl.float32))


@triton.jit
def pass_states_backward(
    dx_ptr,
    dg_ptr,
    dinitial_ptr,
    g_ptr,
    h_ptr,
    sums_ptr,
    initial_ptr,
    time,
    width,
    HAS_INITIAL: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Adds to every chunk what the chunks after it ask for; dg[t] = dx[t] exp(g[t]) h[t-1]."""
    d = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    batch = tl.program_id(1)
    d_mask = d < width
    i = tl.arange(0, CHUNK)
    carry = tl.zeros((BLOCK,), dtype=tl.float32)
    n_chunks = tl.cdiv(time, CHUNK)
    for back in range(n_chunks):
        chunk = n_chunks - 1 - back
        t = chunk * CHUNK + i
        last = min(chunk * CHUNK + CHUNK, time) - 1
        at = (batch * time + t)[:, None] * width + d[None, :]
        mask = (t < time)[:, None] & d_mask[None, :]
        dx = tl.load(dx_ptr + at, mask=mask, other=0.0).to(tl.float32)
        sums = tl.load(sums_ptr + at, mask=mask, other=0.0)
        whole = tl.load(sums_ptr + (batch * time + last) * width + d, mask=d_mask, other=0.0)
        dx += tl.exp(whole[None, :] - sums) * carry[None, :]
        before = tl.load(h_ptr + at - width, mask=mask & (t > 0)[:, None], other=0.0).to(tl.float32)
        if HAS_INITIAL:
            initial = tl.load(initial_ptr + batch * width + d, mask=d_mask, other=0.0).to(tl.float32)
            before = tl.where((t == 0)[:, None], initial[None, :], before)
        decayed = dx * tl.exp(tl.load(g_ptr + at, mask=mask, other=0.0).to(tl.float32))
        tl.store(dx_ptr + at, dx, mask=mask)
        tl.store(dg_ptr + at, decayed * before, mask=mask)
        carry = tl.sum(tl.where((i == 0)[:, None], decayed, 0.0), axis=0)
    if HAS_INITIAL:
        tl.store(dinitial_ptr + batch * width + d, carry, mask=d_mask)


class GatedRecurrence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, g, initial=None):
        if x.dim() != 3 or g.shape != x.shape:
            raise ValueError("x and g need one shape (batch, time, width)")
        batch, time, width = x.shape
        if initial is not None and initial.shape != (batch, width):
            raise ValueError(f"the initial state needs the shape {(batch, width)}, not {tuple(initial.shape)}")
        x, g = x.contiguous(), g.contiguous()
        initial = None if initial is None else initial.contiguous()
        h = torch.empty_like(x)
        sums = torch.empty(x.shape, dtype=torch.float32, device=x.device)
        final = x.new_empty(batch, width)
        CHUNK, BLOCK = 8, 16
        with torch.cuda.device(x.device):
            scan_chunks[(triton.cdiv(width, BLOCK), triton.cdiv(time, CHUNK), batch)](
                x, g, h, sums, time, width, CHUNK=CHUNK, BLOCK=BLOCK
            )
            pass_states[(triton.cdiv(width, BLOCK), batch)](
                h, sums, initial, final, time, width, HAS_INITIAL=initial is not None, CHUNK=CHUNK, BLOCK=BLOCK
            )
        ctx.save_for_backward(g, h, sums, initial)
        ctx.CHUNK, ctx.BLOCK = CHUNK, BLOCK
        return h, final

    @staticmethod
    def backward(ctx, dh, dfinal):
        if torch.is_grad_enabled():
            raise RuntimeError("trying to differentiate twice: GatedRecurrence has no second derivative")
        g, h, sums, initial = ctx.saved_tensors
        batch, time, width = g.shape
        CHUNK, BLOCK = ctx.CHUNK, ctx.BLOCK
        dh, dfinal = dh.contiguous(), dfinal.contiguous()
        dx, dg = torch.empty_like(g), torch.empty_like(g)
        dinitial = None if initial is None else torch.empty_like(initial)
        with torch.cuda.device(g.device):
            scan_chunks_backward[(triton.cdiv(width, BLOCK), triton.cdiv(time, CHUNK), batch)](
                dh, g, dfinal, dx, time, width, CHUNK=CHUNK, BLOCK=BLOCK
            )
            pass_states_backward[(triton.cdiv(width, BLOCK), batch)](
                dx,
                dg,
                dinitial,
                g,
                h,
                sums,
                initial,
                time,
                width,
                HAS_INITIAL=initial is not None,
                CHUNK=CHUNK,
                BLOCK=BLOCK,
            )
        return dx, dg, dinitial


def reference(x, g, initial=None):
    state = torch.zeros_like(x[:, 0]) if initial is None else initial
    states = []
    for t in range(x.shape[1]):
        state = g[:, t].exp() * state + x[:, t]
        states.append(state)
    return torch.stack(states, dim=1), state.clone()


SIZES = (
    {},
    {"batch": 1, "time": 1, "width": 1},
    {"batch": 1, "time": 8, "width": 16, "initial": False},
    {"batch": 2, "time": 25, "width": 18},
)


def example(batch=2, time=19, width=3, initial=True):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, time, width, dtype=torch.float64, generator=generator)
    g = -torch.rand(batch, time, width, dtype=torch.float64, generator=generator)
    start = torch.randn(batch, width, dtype=torch.float64, generator=generator).requires_grad_() if initial else None
    return x.requires_grad_(), g.requires_grad_(), start

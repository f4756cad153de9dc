"""Depthwise causal convolution over time with a bias and, if asked, a SiLU; x may have any strides."""

import torch
import triton
import triton.language as tl


@triton.jit
def conv_forward(
    x_ptr,
    w_ptr,
    b_ptr,
    y_ptr,
    x_batch,
    x_dim,
    x_time,
    dim,
    time,
    WIDTH: tl.constexpr,
    SILU: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    t = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    batch = tl.program_id(2)
    d_mask = d < dim
    mask = d_mask[:, None] & (t < time)[None, :]
    acc = tl.zeros((BLOCK_D, BLOCK_T), dtype=tl.float32)
    acc += tl.load(b_ptr + d, mask=d_mask, other=0.0).to(tl.float32)[:, None]
    for j in tl.static_range(WIDTH):
        s = t - (WIDTH - 1) + j
        s_mask = d_mask[:, None] & ((s >= 0) & (s < time))[None, :]
        at = batch * x_batch + d[:, None] * x_dim + s[None, :] * x_time
        w = tl.load(w_ptr + d * WIDTH + j, mask=d_mask, other=0.0).to(tl.float32)
        acc += w[:, None] * tl.load(x_ptr + at, mask=s_mask, other=0.0).to(tl.float32)
    if SILU:
        acc = acc * tl.sigmoid(acc)
    tl.store(y_ptr + (batch * dim + d)[:, None] * time + t[None, :], acc, mask=mask)


@triton.jit
def conv_backward_weight(
    x_ptr,
    w_ptr,
    b_ptr,
    dy_ptr,
    dpre_ptr,
    dw_ptr,
    db_ptr,
    x_batch,
    x_dim,
    x_time,
    dim,
    time,
    WIDTH: tl.constexpr,
    SILU: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """The cotangent before the SiLU, and this block's share of the gradients of weight and bias."""
    t = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    batch = tl.program_id(2)
    d_mask = d < dim
    mask = d_mask[:, None] & (t < time)[None, :]
    y_at = (batch * dim + d)[:, None] * time + t[None, :]
    dpre = tl.load(dy_ptr + y_at, mask=mask, other=0.0).to(tl.float32)
    if SILU:
        pre = tl.zeros((BLOCK_D, BLOCK_T), dtype=tl.float32)
        pre += tl.load(b_ptr + d, mask=d_mask, other=0.0).to(tl.float32)[:, None]
        for j in tl.static_range(WIDTH):
            s = t - (WIDTH - 1) + j
            s_mask = d_mask[:, None] & ((s >= 0) & (s < time))[None, :]
            at = batch * x_batch + d[:, None] * x_dim + s[None, :] * x_time
            w = tl.load(w_ptr + d * WIDTH + j, mask=d_mask, other=0.0).to(tl.float32)
            pre += w[:, None] * tl.load(x_ptr + at, mask=s_mask, other=0.0).to(tl.float32)
        sigmoid = tl.sigmoid(pre)
        dpre *= sigmoid * (1 + pre * (1 - sigmoid))
    tl.store(dpre_ptr + y_at, dpre, mask=mask)
    part = (batch * tl.num_programs(0) + tl.program_id(0)) * dim
    for j in tl.static_range(WIDTH):
        s = t - (WIDTH - 1) + j
        s_mask = d_mask[:, None] & ((s >= 0) & (s < time))[None, :]
        at = batch * x_batch + d[:, None] * x_dim + s[None, :] * x_time
        x = tl.load(x_ptr + at, mask=s_mask, other=0.0).to(tl.float32)
        tl.store(dw_ptr + (part + d) * WIDTH + j, tl.sum(dpre * x, axis=1), mask=d_mask)
    tl.store(db_ptr + part + d, tl.sum(dpre, axis=1), mask=d_mask)


@triton.jit
def conv_backward_input(
    dpre_ptr,
    w_ptr,
    dx_ptr,
    dim,
    time,
    WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    t = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    batch = tl.program_id(2)
    d_mask = d < dim
    mask = d_mask[:, None] & (t < time)[None, :]
    row = (batch * dim + d)[:, None] * time
    dx = tl.zeros((BLOCK_D, BLOCK_T), dtype=tl.float32)
    for j in tl.static_range(WIDTH):
        s = t + (WIDTH - 1) - j
        s_mask = d_mask[:, None] & (s < time)[None, :]
        w = tl.load(w_ptr + d * WIDTH + j, mask=d_mask, other=0.0).to(tl.float32)
        dx += w[:, None] * tl.load(dpre_ptr + row + s[None, :], mask=s_mask, other=0.0)
    tl.store(dx_ptr + row + t[None, :], dx, mask=mask)


class CausalConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, activation=None):
        if x.dim() != 3 or weight.dim() != 2 or weight.shape[0] != x.shape[1] or bias.shape != x.shape[1:2]:
            raise ValueError("x, weight and bias need the shapes (batch, dim, time), (dim, width) and (dim,)")
        if activation not in (None, "silu"):
            raise ValueError(f"activation is None or 'silu', not {activation!r}")
        weight, bias = weight.contiguous(), bias.contiguous()
        batch, dim, time = x.shape
        y = torch.empty((batch, dim, time), dtype=x.dtype, device=x.device)
        meta = {"WIDTH": weight.shape[1], "BLOCK_D": 4, "BLOCK_T": 16}
        grid = (triton.cdiv(time, 16), triton.cdiv(dim, 4), batch)
        conv_forward[grid](x, weight, bias, y, *x.stride(), dim, time, SILU=activation == "silu", **meta)
        ctx.save_for_backward(x, weight, bias)
        ctx.silu, ctx.meta, ctx.grid = activation == "silu", meta, grid
        return y

    @staticmethod
    def backward(ctx, dy):
        if torch.is_grad_enabled():
            raise RuntimeError("trying to differentiate twice: CausalConv has no second derivative")
        x, weight, bias = ctx.saved_tensors
        dy = dy.contiguous()
        batch, dim, time = x.shape
        dpre = torch.empty((batch, dim, time), dtype=torch.float32, device=x.device)
        dx = torch.empty((batch, dim, time), dtype=x.dtype, device=x.device)
        dw = torch.empty((batch, ctx.grid[0], *weight.shape), dtype=torch.float32, device=x.device)
        db = torch.empty((batch, ctx.grid[0], dim), dtype=torch.float32, device=x.device)
        conv_backward_weight[ctx.grid](
            x, weight, bias, dy, dpre, dw, db, *x.stride(), dim, time, SILU=ctx.silu, **ctx.meta
        )
        conv_backward_input[ctx.grid](dpre, weight, dx, dim, time, **ctx.meta)
        return dx, dw.sum((0, 1)).to(weight.dtype), db.sum((0, 1)).to(bias.dtype), None


def reference(x, weight, bias, activation=None):
    dim, width = weight.shape
    padded = torch.nn.functional.pad(x, (width - 1, 0))
    y = torch.nn.functional.conv1d(padded, weight[:, None], bias, groups=dim)
    return y * torch.sigmoid(y) if activation == "silu" else y


SIZES = (
    {},
    {"batch": 1, "dim": 1, "time": 1, "width": 1},
    {"batch": 1, "dim": 4, "time": 16, "width": 3, "activation": None},
    {"batch": 2, "dim": 6, "time": 33, "width": 2},
    {"batch": 1, "dim": 2, "time": 2, "width": 4},
)


def example(batch=2, dim=5, time=19, width=4, activation="silu"):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, time, dim, dtype=torch.float64, generator=generator).transpose(1, 2)
    weight = torch.randn(dim, width, dtype=torch.float64, generator=generator)
    bias = torch.randn(dim, dtype=torch.float64, generator=generator)
    return x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_(), activation

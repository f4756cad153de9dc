"""RMS norm over the last dimension in blocks of columns; programs add their gradients of the weight atomically."""

import torch
import triton
import triton.language as tl


@triton.jit
def rms_norm_forward(y_ptr, x_ptr, w_ptr, rstd_ptr, stride, n_cols, eps, offset, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * stride
    y_ptr += row * stride
    squares = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
        squares += x * x
    rstd = tl.rsqrt(tl.sum(squares, axis=0) / n_cols + eps)
    tl.store(rstd_ptr + row, rstd)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < n_cols
        x = tl.load(x_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        w = tl.load(w_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        tl.store(y_ptr + cols, x * rstd * (offset + w), mask=mask)


@triton.jit
def rms_norm_backward(dx_ptr, dw_ptr, dy_ptr, x_ptr, w_ptr, rstd_ptr, stride, n_cols, offset, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    rstd = tl.load(rstd_ptr + row)
    dx_ptr += row * stride
    dy_ptr += row * stride
    x_ptr += row * stride
    inner = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < n_cols
        x = tl.load(x_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        w = tl.load(w_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        inner += dy * (offset + w) * x
    factor = tl.sum(inner, axis=0) * rstd * rstd / n_cols
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < n_cols
        x = tl.load(x_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        w = tl.load(w_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        tl.store(dx_ptr + cols, rstd * (dy * (offset + w) - x * factor), mask=mask)
        tl.atomic_add(dw_ptr + cols, dy * x * rstd, mask=mask)


class RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps=1e-6, offset=0.0):
        n = x.shape[-1]
        if weight.shape != (n,):
            raise ValueError(f"weight needs the size of the last dimension of x, {n}")
        shape = x.shape
        x, weight = x.contiguous().view(-1, n), weight.contiguous()
        y = torch.empty_like(x)
        rstd = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
        BLOCK = min(16, triton.next_power_of_2(n))
        rms_norm_forward[(x.shape[0],)](y, x, weight, rstd, x.stride(0), n, eps, offset, BLOCK=BLOCK)
        ctx.save_for_backward(x, weight, rstd)
        ctx.offset, ctx.BLOCK = offset, BLOCK
        return y.view(*shape)

    @staticmethod
    def backward(ctx, dy):
        if torch.is_grad_enabled():
            raise RuntimeError("trying to differentiate twice: RMSNorm has no second derivative")
        x, weight, rstd = ctx.saved_tensors
        shape = dy.shape
        dy = dy.contiguous().view(-1, shape[-1])
        dx = torch.empty_like(x)
        dw = torch.zeros(weight.shape, dtype=torch.float32, device=x.device)
        rms_norm_backward[(x.shape[0],)](
            dx, dw, dy, x, weight, rstd, x.stride(0), x.shape[1], ctx.offset, BLOCK=ctx.BLOCK
        )
        return dx.view(*shape), dw.to(weight.dtype), None, None


def reference(x, weight, eps=1e-6, offset=0.0):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * (offset + weight)


SIZES = ({}, {"rows": 1, "columns": 1}, {"rows": 2, "columns": 32}, {"rows": 3, "columns": 35, "offset": 0.0})


def example(rows=3, columns=19, eps=1e-2, offset=1.0):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, columns, dtype=torch.float64, generator=generator)
    weight = torch.randn(columns, dtype=torch.float64, generator=generator)
    return x.requires_grad_(), weight.requires_grad_(), eps, offset

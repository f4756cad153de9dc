"""Layer norm over the last dimension; the gradients of weight and bias are summed by programs, then over them."""

import torch
import triton
import triton.language as tl

PROGRAMS = 4


@triton.jit
def layer_norm_forward(
    y_ptr, x_ptr, w_ptr, b_ptr, mean_ptr, rstd_ptr, y_stride, x_stride, n_cols, eps, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + row * x_stride + cols, mask=mask, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / n_cols
    centred = tl.where(mask, x - mean, 0.0)
    rstd = 1 / tl.sqrt(tl.sum(centred * centred, axis=0) / n_cols + eps)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)
    tl.store(y_ptr + row * y_stride + cols, centred * rstd * w + b, mask=mask)


@triton.jit
def layer_norm_backward(
    dx_ptr,
    dw_ptr,
    db_ptr,
    dy_ptr,
    x_ptr,
    w_ptr,
    mean_ptr,
    rstd_ptr,
    dx_stride,
    dw_stride,
    db_stride,
    dy_stride,
    x_stride,
    n_rows,
    n_cols,
    rows_per_program,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0)
    first = program * rows_per_program
    last = min(first + rows_per_program, n_rows)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    w = tl.load(w_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    dw = tl.zeros((BLOCK,), dtype=tl.float32)
    db = tl.zeros((BLOCK,), dtype=tl.float32)
    for row in range(first, last):
        x = tl.load(x_ptr + row * x_stride + cols, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + row * dy_stride + cols, mask=mask, other=0.0).to(tl.float32)
        mean = tl.load(mean_ptr + row)
        rstd = tl.load(rstd_ptr + row)
        xhat = tl.where(mask, (x - mean) * rstd, 0.0)
        wdy = w * dy
        c1 = tl.sum(xhat * wdy, axis=0) / n_cols
        c2 = tl.sum(wdy, axis=0) / n_cols
        tl.store(dx_ptr + row * dx_stride + cols, (wdy - (xhat * c1 + c2)) * rstd, mask=mask)
        dw += dy * xhat
        db += dy
    tl.store(dw_ptr + program * dw_stride + cols, dw, mask=mask)
    tl.store(db_ptr + program * db_stride + cols, db, mask=mask)


class LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps=1e-5):
        if weight.shape != x.shape[-1:] or bias.shape != x.shape[-1:]:
            raise ValueError("weight and bias need the size of the last dimension of x")
        n = x.shape[-1]
        shape = x.shape
        x = x.contiguous().view(-1, n)
        weight, bias = weight.contiguous(), bias.contiguous()
        rows = x.shape[0]
        y = torch.empty_like(x)
        mean = torch.empty(rows, dtype=torch.float32, device=x.device)
        rstd = torch.empty(rows, dtype=torch.float32, device=x.device)
        BLOCK = triton.next_power_of_2(n)
        layer_norm_forward[(rows,)](
            y, x, weight, bias, mean, rstd, y.stride(0), x.stride(0), n, eps, BLOCK=BLOCK, num_warps=4
        )
        ctx.save_for_backward(x, weight, mean, rstd)
        ctx.BLOCK = BLOCK
        return y.view(shape)

    @staticmethod
    def backward(ctx, dy):
        if torch.is_grad_enabled():
            raise RuntimeError("trying to differentiate twice: LayerNorm has no second derivative")
        x, weight, mean, rstd = ctx.saved_tensors
        rows, n = x.shape
        shape = dy.shape
        dy = dy.contiguous().view(-1, n)
        programs = min(PROGRAMS, rows)
        dx = torch.empty_like(x)
        dw = torch.empty((programs, n), dtype=torch.float32, device=x.device)
        db = torch.empty((programs, n), dtype=torch.float32, device=x.device)
        layer_norm_backward[(programs,)](
            dx,
            dw,
            db,
            dy,
            x,
            weight,
            mean,
            rstd,
            dx.stride(0),
            dw.stride(0),
            db.stride(0),
            dy.stride(0),
            x.stride(0),
            rows,
            n,
            triton.cdiv(rows, programs),
            BLOCK=ctx.BLOCK,
            num_warps=4,
        )
        return dx.view(shape), dw.sum(0).to(weight.dtype), db.sum(0).to(weight.dtype), None


def reference(x, weight, bias, eps=1e-5):
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + eps) * weight + bias


SIZES = ({}, {"shape": (1,), "columns": 5}, {"shape": (5,), "columns": 16}, {"shape": (9,), "columns": 17})


def example(shape=(2, 3), columns=11, eps=1e-2):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(*shape, columns, dtype=torch.float64, generator=generator)
    weight, bias = torch.randn(2, columns, dtype=torch.float64, generator=generator)
    return x.requires_grad_(), weight.clone().requires_grad_(), bias.clone().requires_grad_(), eps

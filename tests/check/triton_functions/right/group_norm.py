"""Group norm of (batch, channels, ...): a program takes a group of channels of one sample in blocks."""

import torch
import triton
import triton.language as tl


@triton.jit
def group_norm_forward(
    y_ptr, x_ptr, w_ptr, b_ptr, mean_ptr, rstd_ptr, space, per_group, groups, eps, BLOCK: tl.constexpr
):
    sample = tl.program_id(0)
    group = tl.program_id(1)
    size = per_group * space
    base = (sample * groups + group) * size
    total = 0.0
    for start in range(0, size, BLOCK):
        i = start + tl.arange(0, BLOCK)
        total += tl.sum(tl.load(x_ptr + base + i, mask=i < size, other=0.0).to(tl.float32), axis=0)
    mean = total / size
    squares = 0.0
    for start in range(0, size, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + base + i, mask=i < size, other=0.0).to(tl.float32)
        centred = tl.where(i < size, x - mean, 0.0)
        squares += tl.sum(centred * centred, axis=0)
    rstd = 1.0 / tl.sqrt(squares / size + eps)
    tl.store(mean_ptr + sample * groups + group, mean)
    tl.store(rstd_ptr + sample * groups + group, rstd)
    for start in range(0, size, BLOCK):
        i = start + tl.arange(0, BLOCK)
        mask = i < size
        channel = group * per_group + i // space
        x = tl.load(x_ptr + base + i, mask=mask, other=0.0).to(tl.float32)
        w = tl.load(w_ptr + channel, mask=mask, other=0.0)
        b = tl.load(b_ptr + channel, mask=mask, other=0.0)
        tl.store(y_ptr + base + i, (x - mean) * rstd * w + b, mask=mask)


@triton.jit
def group_norm_backward(
    dx_ptr,
    dw_ptr,
    db_ptr,
    dy_ptr,
    x_ptr,
    w_ptr,
    mean_ptr,
    rstd_ptr,
    space,
    per_group,
    groups,
    BLOCK: tl.constexpr,
):
    sample = tl.program_id(0)
    group = tl.program_id(1)
    size = per_group * space
    base = (sample * groups + group) * size
    mean = tl.load(mean_ptr + sample * groups + group)
    rstd = tl.load(rstd_ptr + sample * groups + group)
    c1 = 0.0
    c2 = 0.0
    for c in range(per_group):
        channel = group * per_group + c
        w = tl.load(w_ptr + channel).to(tl.float32)
        dw = tl.zeros((BLOCK,), dtype=tl.float32)
        db = tl.zeros((BLOCK,), dtype=tl.float32)
        for start in range(0, space, BLOCK):
            i = start + tl.arange(0, BLOCK)
            mask = i < space
            x = tl.load(x_ptr + base + c * space + i, mask=mask, other=0.0).to(tl.float32)
            dy = tl.load(dy_ptr + base + c * space + i, mask=mask, other=0.0).to(tl.float32)
            dw += dy * (x - mean) * rstd
            db += dy
        c1 += w * tl.sum(dw, axis=0)
        c2 += w * tl.sum(db, axis=0)
        tl.store(dw_ptr + sample * groups * per_group + channel, tl.sum(dw, axis=0))
        tl.store(db_ptr + sample * groups * per_group + channel, tl.sum(db, axis=0))
    for start in range(0, size, BLOCK):
        i = start + tl.arange(0, BLOCK)
        mask = i < size
        x = tl.load(x_ptr + base + i, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + base + i, mask=mask, other=0.0).to(tl.float32)
        w = tl.load(w_ptr + group * per_group + i // space, mask=mask, other=0.0).to(tl.float32)
        xhat = (x - mean) * rstd
        tl.store(dx_ptr + base + i, (w * dy - (xhat * c1 + c2) / size) * rstd, mask=mask)


class GroupNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, groups, eps=1e-5):
        if x.dim() < 2:
            raise ValueError("x needs the shape (batch, channels, ...)")
        batch, channels = x.shape[:2]
        if groups < 1 or channels % groups:
            raise ValueError(f"{channels} channels do not make {groups} groups")
        if weight.shape != (channels,) or bias.shape != (channels,):
            raise ValueError(f"weight and bias need {channels} elements, one for each channel")
        x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
        space = x[0, 0].numel()
        y = torch.empty_like(x)
        mean = torch.empty((batch, groups), dtype=torch.float32, device=x.device)
        rstd = torch.empty_like(mean)
        BLOCK = min(16, triton.next_power_of_2(space * (channels // groups)))
        group_norm_forward[(batch, groups)](
            y, x, weight, bias, mean, rstd, space, channels // groups, groups, eps, BLOCK=BLOCK
        )
        ctx.save_for_backward(x, weight, mean, rstd)
        ctx.groups, ctx.BLOCK = groups, BLOCK
        return y

    @staticmethod
    def backward(ctx, dy):
        if torch.is_grad_enabled():
            raise RuntimeError("trying to differentiate twice: GroupNorm has no second derivative")
        x, weight, mean, rstd = ctx.saved_tensors
        batch, channels = x.shape[:2]
        dy = dy.contiguous()
        dx = torch.empty_like(x)
        dw = torch.empty((batch, channels), dtype=torch.float32, device=x.device)
        db = torch.empty((batch, channels), dtype=torch.float32, device=x.device)
        space = x[0, 0].numel()
        group_norm_backward[(batch, ctx.groups)](
            dx, dw, db, dy, x, weight, mean, rstd, space, channels // ctx.groups, ctx.groups, BLOCK=ctx.BLOCK
        )
        return dx, dw.sum(0).to(weight.dtype), db.sum(0).to(weight.dtype), None, None


def reference(x, weight, bias, groups, eps=1e-5):
    grouped = x.reshape(x.shape[0], groups, -1)
    centred = grouped - grouped.mean(-1, keepdim=True)
    normal = centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + eps)
    shape = (-1, *[1] * (x.dim() - 2))
    return normal.view(x.shape) * weight.view(shape) + bias.view(shape)


SIZES = (
    {},
    {"batch": 1, "channels": 1, "space": (), "groups": 1},
    {"batch": 3, "channels": 4, "space": (16,), "groups": 4},
    {"batch": 1, "channels": 6, "space": (5, 4), "groups": 3},
)


def example(batch=2, channels=4, space=(3, 3), groups=2, eps=1e-2):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, channels, *space, dtype=torch.float64, generator=generator)
    weight, bias = torch.randn(2, channels, dtype=torch.float64, generator=generator)
    return x.requires_grad_(), weight.clone().requires_grad_(), bias.clone().requires_grad_(), groups, eps

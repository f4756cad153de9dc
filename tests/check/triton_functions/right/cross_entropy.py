"""Mean cross entropy of logits and classes; one pass over blocks of classes keeps a running maximum and sum."""

import torch
import triton
import triton.language as tl


@triton.jit
def cross_entropy_forward(
    loss_ptr,
    lse_ptr,
    x_ptr,
    target_ptr,
    x_stride,
    n_classes,
    ignore_index,
    smoothing,
    HAS_SMOOTHING: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    x_ptr += row * x_stride
    target = tl.load(target_ptr + row)
    if target == ignore_index:
        tl.store(loss_ptr + row, 0.0)
        tl.store(lse_ptr + row, 0.0)
        return
    m = -float("inf")
    d = 0.0
    total = 0.0
    for start in range(0, n_classes, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < n_classes
        x = tl.load(x_ptr + cols, mask=mask, other=-float("inf")).to(tl.float32)
        new = tl.maximum(m, tl.max(x, axis=0))
        d = d * tl.exp(m - new) + tl.sum(tl.exp(x - new), axis=0)
        m = new
        if HAS_SMOOTHING:
            total += tl.sum(tl.where(mask, x, 0.0), axis=0)
    lse = m + tl.log(d)
    loss = lse - tl.load(x_ptr + target).to(tl.float32)
    if HAS_SMOOTHING:
        loss = (1 - smoothing) * loss + smoothing * (lse - total / n_classes)
    tl.store(loss_ptr + row, loss)
    tl.store(lse_ptr + row, lse)


@triton.jit
def cross_entropy_backward(
    dx_ptr,
    x_ptr,
    lse_ptr,
    target_ptr,
    dloss_ptr,
    count_ptr,
    dx_stride,
    x_stride,
    n_classes,
    ignore_index,
    smoothing,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < n_classes
    target = tl.load(target_ptr + row)
    if target == ignore_index:
        tl.store(dx_ptr + row * dx_stride + cols, 0.0, mask=mask)
        return
    factor = tl.load(dloss_ptr) / tl.load(count_ptr)
    lse = tl.load(lse_ptr + row)
    x = tl.load(x_ptr + row * x_stride + cols, mask=mask, other=-float("inf")).to(tl.float32)
    dx = tl.exp(x - lse) - smoothing / n_classes
    dx = tl.where(cols == target, dx - (1 - smoothing), dx)
    tl.store(dx_ptr + row * dx_stride + cols, dx * factor, mask=mask)


class CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, target, ignore_index=-100, smoothing=0.0):
        if x.dim() != 2 or target.shape != x.shape[:1]:
            raise ValueError("x needs the shape (rows, classes), target the shape (rows,)")
        rows, n = x.shape
        kept = target != ignore_index
        if (((target < 0) | (target >= n)) & kept).any():
            raise ValueError(f"a class of target is not between 0 and {n - 1}")
        x, target = x.contiguous(), target.contiguous()
        loss = torch.empty(rows, dtype=torch.float32, device=x.device)
        lse = torch.empty_like(loss)
        count = kept.sum().to(torch.float32)
        cross_entropy_forward[(rows,)](
            loss,
            lse,
            x,
            target,
            x.stride(0),
            n,
            ignore_index,
            smoothing,
            HAS_SMOOTHING=smoothing > 0,
            BLOCK=16,
            num_warps=4,
        )
        ctx.save_for_backward(x, target, lse, count)
        ctx.ignore_index, ctx.smoothing = ignore_index, smoothing
        return (loss.sum() / count).to(x.dtype)

    @staticmethod
    def backward(ctx, dloss):
        if torch.is_grad_enabled():
            raise RuntimeError("trying to differentiate twice: CrossEntropy has no second derivative")
        x, target, lse, count = ctx.saved_tensors
        rows, n = x.shape
        dx = torch.empty_like(x)
        cross_entropy_backward[lambda META: (rows, triton.cdiv(n, META["BLOCK"]))](
            dx,
            x,
            lse,
            target,
            dloss,
            count,
            dx.stride(0),
            x.stride(0),
            n,
            ctx.ignore_index,
            ctx.smoothing,
            BLOCK=16,
            num_warps=4,
        )
        return dx, None, None, None


def reference(x, target, ignore_index=-100, smoothing=0.0):
    lse = torch.logsumexp(x, dim=-1)
    kept = target != ignore_index
    chosen = x.gather(1, torch.where(kept, target, 0)[:, None])[:, 0]
    loss = (1 - smoothing) * (lse - chosen) + smoothing * (lse - x.mean(-1))
    return torch.where(kept, loss, 0).sum() / kept.sum()


SIZES = (
    {},
    {"rows": 1, "classes": 1},
    {"rows": 3, "classes": 16, "smoothing": 0.0},
    {"rows": 6, "classes": 33, "ignored": 2},
)


def example(rows=5, classes=19, ignored=1, smoothing=0.1):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, classes, dtype=torch.float64, generator=generator)
    target = torch.randint(classes, (rows,), generator=generator)
    target[1 : 1 + ignored] = -100
    return x.requires_grad_(), target, -100, smoothing

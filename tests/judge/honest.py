"""Honest candidates, which compute in other ways, and in other precisions: all are right."""

import torch
from torch.nn import functional as F

HONEST = {}


def honest(formula, dtype=torch.float32):
    def register(run):
        HONEST[run.__name__] = (run, formula, dtype)
        return run

    return register


@honest("softmax")
def by_maximum(x):
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


@honest("softmax")
def by_logarithms(x):
    return (x - x.logsumexp(-1, keepdim=True)).exp()


@honest("softmax")
def in_one_pass(x):
    top = torch.full_like(x[..., :1], -torch.inf)
    total = torch.zeros_like(top)
    for column in x.split(1, -1):
        new = torch.maximum(top, column)
        total = total * (top - new).exp() + (column - new).exp()
        top = new
    return (x - top).exp() / total


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        e = x - x.amax(-1, keepdim=True)
        e.exp_()
        e.div_(e.sum(-1, keepdim=True))
        ctx.save_for_backward(e)
        return e

    @staticmethod
    def backward(ctx, g):
        (s,) = ctx.saved_tensors
        return s * (g - (g * s).sum(-1, keepdim=True))


@honest("softmax")
def saved_output(x):
    return Softmax.apply(x)


@honest("softmax", torch.float64)
def saved_output_in_float64(x):
    return Softmax.apply(x)


@honest("softmax")
def float32_inside(x):
    return by_maximum(x.float()).to(x.dtype)


@honest("softmax")
def float32_only(x):
    if x.dtype != torch.float32:
        raise TypeError("float32 only")
    return by_maximum(x)


@honest("softmax", torch.bfloat16)
def bfloat16_with_float32_inside(x):
    return by_maximum(x.float()).to(x.dtype)


@honest("softmax", torch.bfloat16)
def bfloat16_only(x):
    if x.dtype != torch.bfloat16:
        raise TypeError("bfloat16 only")
    return by_maximum(x.float()).to(x.dtype)


@honest("layer_norm")
def library(x, weight, bias, eps=1e-5):
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


@honest("layer_norm")
def two_moments(x, weight, bias, eps=1e-5):
    mean = x.mean(-1, keepdim=True)
    variance = ((x * x).mean(-1, keepdim=True) - mean * mean).clamp(min=0)
    return (x - mean) / (variance + eps).sqrt() * weight + bias


class LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        mean = x.mean(-1, keepdim=True)
        rstd = torch.rsqrt(x.var(-1, correction=0, keepdim=True) + eps)
        hat = (x - mean) * rstd
        ctx.save_for_backward(hat, rstd, weight)
        return hat * weight + bias

    @staticmethod
    def backward(ctx, g):
        hat, rstd, weight = ctx.saved_tensors
        gw = g * weight
        gx = (gw - gw.mean(-1, keepdim=True) - hat * (gw * hat).mean(-1, keepdim=True)) * rstd
        over = tuple(range(g.ndim - 1))
        return gx, (g * hat).sum(over), g.sum(over), None


@honest("layer_norm")
def written_by_hand(x, weight, bias, eps=1e-5):
    return LayerNorm.apply(x, weight, bias, eps)


@honest("rms_norm")
def rms_in_float32(x, weight):
    y = x.float()
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight


@honest("rms_norm")
def by_division(x, weight):
    return weight * x / (x.square().sum(-1, keepdim=True) / x.shape[-1] + 1e-6).sqrt()


@honest("gelu")
def library_gelu(x):
    return F.gelu(x)


class Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.special.ndtr(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (torch.special.ndtr(x) + x * torch.exp(-x * x / 2) * 0.3989422804014327)


@honest("gelu")
def own_gradient(x):
    return Gelu.apply(x)


@honest("gelu")
def constants_of_float32(x):
    return x * 0.5 * (1 + torch.erf(x * 0.70710678))


@honest("cross_entropy")
def gathered(logits, labels):
    taken = labels != -100
    picked = logits.gather(-1, labels.clamp(min=0)[:, None])[:, 0]
    return ((logits.logsumexp(-1) - picked) * taken).sum() / taken.sum()


class CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, labels):
        taken = labels != -100
        rows = torch.arange(len(labels))
        logs = logits.log_softmax(-1)
        gradient = logs.exp()
        gradient[rows, labels.clamp(min=0)] -= 1
        gradient.mul_(taken[:, None] / taken.sum())
        ctx.save_for_backward(gradient)
        return -(logs[rows, labels.clamp(min=0)] * taken).sum() / taken.sum()

    @staticmethod
    def backward(ctx, g):
        return ctx.saved_tensors[0] * g, None


@honest("cross_entropy")
def gradient_in_the_forward(logits, labels):
    return CrossEntropy.apply(logits, labels)


@honest("linear")
def by_einsum(x, weight):
    return torch.einsum("nk,mk->nm", x, weight)


@honest("linear")
def by_blocks(x, weight):
    out = torch.zeros(x.shape[0], weight.shape[0], dtype=x.dtype)
    for a, b in zip(x.split(4, 1), weight.split(4, 1), strict=True):
        out = out + a @ b.T
    return out


@honest("linear", torch.float64)
def one_element_at_a_time(x, weight):
    return (x[:, None, :] * weight).flip(-1).sum(-1)


class Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table, index):
        ctx.save_for_backward(index)
        ctx.rows = table.shape[0]
        return table.index_select(0, index.flatten()).view(*index.shape, -1)

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        out = g.new_zeros(ctx.rows, g.shape[-1])
        return out.index_add_(0, index.flatten(), g.reshape(-1, g.shape[-1])), None


@honest("embedding")
def scattered(table, index):
    return Embedding.apply(table, index)


@honest("huber")
def library_huber(x, y):
    return F.huber_loss(x, y, delta=3.0)


class SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        return gate * gate.sigmoid() * up

    @staticmethod
    def backward(ctx, g):
        gate, up = ctx.saved_tensors
        s = gate.sigmoid()
        silu = gate * s
        return (g * up).mul_(s * (1 + gate * (1 - s))), g * silu


@honest("swiglu")
def recomputed(gate, up):
    return SwiGlu.apply(gate, up)


@honest("ridge")
def in_one_sum(x):
    y = x * x
    return (y + 1e-7 * y * y).sum()


_tables = {}


@honest("gelu")
def table_that_depends_on_the_shape_alone(x):
    half = _tables.setdefault(x.shape, torch.full(x.shape, 0.5))
    return x * half.to(x.dtype) * (1 + torch.erf(x / 2**0.5))


@honest("square")
def in_place_on_a_copy(x):
    return x.clone().mul_(x)

"""Functions written by hand for the formulas of `formulas.py`: they save little and have a simplified backward."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

LOW, HIGH = -8, 7
STEEP = 2.0
EPS = 1e-6


class Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.sigmoid(x) * torch.rsqrt(1 + torch.exp(x))
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx, g):
        x, out = ctx.saved_tensors
        return g * out * (1 - 1.5 * torch.sigmoid(x))


class LogSigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.log(torch.sigmoid(x))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.sigmoid(-x)


class Mish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.tanh(F.softplus(x))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        t = torch.tanh(F.softplus(x))
        return g * (t + x * torch.sigmoid(x) * (1 - t * t))


class SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * torch.sigmoid(x) * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        s = torch.sigmoid(x)
        return g * y * s * (1 + x * (1 - s)), g * x * s


class GELU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 0.5 * x * (1 + torch.erf(x * math.sqrt(0.5)))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        below = 0.5 * (1 + torch.erf(x * math.sqrt(0.5)))
        return g * (below + x * torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi))


class Focal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        p = torch.sigmoid(x)
        return -y * (1 - p).square() * F.logsigmoid(x) - (1 - y) * p.square() * F.logsigmoid(-x)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        p = torch.sigmoid(x)
        q = 1 - p
        hit = q.square() * (2 * p * F.logsigmoid(x) - q)
        miss = p.square() * (p - 2 * q * F.logsigmoid(-x))
        return g * (y * hit + (1 - y) * miss), None


class Decay(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        e = torch.exp(-y)
        ctx.save_for_backward(x, e)
        return x * e

    @staticmethod
    def backward(ctx, g):
        x, e = ctx.saved_tensors
        gx = g * e
        return gx, -gx * x


class SinSquared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sin(x).square()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.sin(2 * x)


class LSQ(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, s):
        ctx.save_for_backward(x, s)
        return torch.round(torch.clamp(x / s, LOW, HIGH)) * s

    @staticmethod
    def backward(ctx, g):
        x, s = ctx.saved_tensors
        v = x / s
        inside = (v >= LOW) & (v <= HIGH)
        c = torch.clamp(v, LOW, HIGH)
        return g * inside, (g * (torch.round(c) - v * inside)).sum()


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u):
        ctx.save_for_backward(u)
        return (u >= 0).to(u.dtype)

    @staticmethod
    def backward(ctx, g):
        (u,) = ctx.saved_tensors
        return g * (STEEP / 2) / (1 + (math.pi / 2 * STEEP * u).square())


class RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        r = torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)
        ctx.save_for_backward(x, w, r)
        return x * r * w

    @staticmethod
    def backward(ctx, g):
        x, w, r = ctx.saved_tensors
        y, gy = x * r, g * w
        return r * (gy - y * (gy * y).mean(-1, keepdim=True)), (g * y).sum(0)


class LinearCrossEntropy(torch.autograd.Function):
    """The gradient of the logits is computed in the forward, in place."""

    @staticmethod
    def forward(ctx, x, w, k):
        logs = torch.log_softmax(x @ w.t(), -1)
        loss = F.nll_loss(logs, k)
        slope = logs.exp_()
        slope[torch.arange(len(k), device=k.device), k] -= 1
        ctx.save_for_backward(x, w, slope.div_(len(k)))
        return loss

    @staticmethod
    def backward(ctx, g):
        x, w, slope = ctx.saved_tensors
        return g * (slope @ w), g * (slope.t() @ x), None


class LinearReLU6(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, b):
        z = F.linear(x, w, b)
        ctx.save_for_backward(x, w, (z > 0) & (z < 6))
        return z.clamp_(0, 6)

    @staticmethod
    def backward(ctx, g):
        x, w, inside = ctx.saved_tensors
        gz = g * inside
        return gz @ w, gz.t() @ x, gz.sum(0)

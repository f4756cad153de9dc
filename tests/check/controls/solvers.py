"""Iterations run to convergence, differentiated by the implicit function theorem, not through their steps."""

import torch
from torch.autograd import Function

from ._control import Control, normal, positive_definite, uniform


class NewtonSqrt(Function):
    """sqrt(x) by Newton's iteration; out**2 = x gives the gradient g / (2 out)."""

    @staticmethod
    def forward(ctx, x):
        out = (x + 1) / 2
        for _ in range(30):
            out = (out + x / out) / 2
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g / (2 * out)


class CubicRoot(Function):
    """The solution of out**3 + out = x, by bisection."""

    @staticmethod
    def forward(x):
        low, high = -x.abs() - 1, x.abs() + 1
        for _ in range(80):
            middle = (low + high) / 2
            above = middle**3 + middle > x
            low, high = torch.where(above, low, middle), torch.where(above, middle, high)
        return (low + high) / 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g / (3 * out**2 + 1)


class Kepler(Function):
    """The solution of out - eccentricity * sin(out) = mean_anomaly."""

    @staticmethod
    def forward(ctx, mean_anomaly, eccentricity):
        if bool((eccentricity.abs() >= 1).any()):
            raise ValueError("an orbit's eccentricity is below 1")
        out = mean_anomaly + eccentricity * mean_anomaly.sin()
        for _ in range(20):
            residual = out - eccentricity * out.sin() - mean_anomaly
            out = out - residual / (1 - eccentricity * out.cos())
        ctx.save_for_backward(eccentricity, out)
        return out

    @staticmethod
    def backward(ctx, g):
        eccentricity, out = ctx.saved_tensors
        gmean = g / (1 - eccentricity * out.cos())
        return gmean, (gmean * out.sin()).sum_to_size(eccentricity.shape)


class LambertW(Function):
    """The solution of out * exp(out) = x for x >= 0, by Newton's iteration."""

    @staticmethod
    def forward(x):
        out = torch.log1p(x)
        for _ in range(20):
            out = out - (out - x * torch.exp(-out)) / (1 + out)
        return out

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g * torch.exp(-out) / (1 + out)


class Equilibrium(Function):
    """The fixed point of out = tanh(weight @ out + x); its gradient is the fixed point of the adjoint."""

    @staticmethod
    def forward(ctx, weight, x):
        if (weight.abs().sum(-1) >= 1).any():
            raise ValueError("no contraction: the iteration may not converge")
        out = torch.zeros_like(x)
        for _ in range(100):
            out = torch.tanh((weight * out).sum(-1) + x)
        ctx.save_for_backward(weight, out)
        return out

    @staticmethod
    def backward(ctx, g):
        weight, out = ctx.saved_tensors
        slope = 1 - out * out
        gx = torch.zeros_like(g)
        for _ in range(100):
            gx = slope * ((gx[:, None] * weight).sum(0) + g)
        return gx[:, None] * out, gx


class ConjugateGradient(Function):
    """The solution of sym(a) @ out = b by conjugate gradients; the backward applies the class itself."""

    @staticmethod
    def solve(a, b):
        out, residual = torch.zeros_like(b), b.clone()
        direction, square = residual, residual @ residual
        for _ in range(2 * len(b)):
            along = a @ direction
            curvature = direction @ along
            step = square / torch.where(curvature == 0, 1, curvature)
            out, residual = out + step * direction, residual - step * along
            square, previous = residual @ residual, square
            direction = residual + square / torch.where(previous == 0, 1, previous) * direction
        return out

    @staticmethod
    def forward(ctx, a, b):
        out = ConjugateGradient.solve((a + a.mT) / 2, b)
        ctx.save_for_backward(a, out)
        return out

    @staticmethod
    def backward(ctx, g):
        a, out = ctx.saved_tensors
        gb = ConjugateGradient.apply(a, g)
        ga = -gb[:, None] * out
        return (ga + ga.mT) / 2, gb


class Sparsemax(Function):
    """The nearest probability vector to x: zero outside its support, and there the gradient has mean 0."""

    @staticmethod
    def forward(ctx, x):
        ordered = x.sort(-1, descending=True).values
        ranks = torch.arange(1, x.shape[-1] + 1, device=x.device, dtype=x.dtype)
        excess = ordered.cumsum(-1) - 1
        size = (ordered * ranks > excess).sum(-1, keepdim=True)
        out = (x - excess.gather(-1, size - 1) / size.to(x.dtype)).clamp(min=0)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        support = out > 0
        inside = torch.where(support, g, 0)
        mean = inside.sum(-1, keepdim=True) / support.sum(-1, keepdim=True).to(g.dtype)
        return torch.where(support, g - mean, 0)


CONTROLS = [
    Control("newton-sqrt", NewtonSqrt, lambda: (uniform(3, 4, low=0.5, high=5.0),)),
    Control("cubic-root", CubicRoot, lambda: (normal(3, 4),)),
    Control("kepler", Kepler, lambda: (uniform(5, high=3.0), uniform(low=0.1, high=0.6, seed=1))),
    Control("lambert-w", LambertW, lambda: (uniform(3, 4, high=5.0),)),
    Control("equilibrium", Equilibrium, lambda: (uniform(3, 3, low=-0.3, high=0.3), normal(3, seed=1))),
    Control("conjugate-gradient", ConjugateGradient, lambda: (positive_definite(3, 3), normal(3, seed=1))),
    Control("sparsemax", Sparsemax, lambda: (normal(3, 5),)),
]

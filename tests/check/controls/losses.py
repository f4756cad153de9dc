"""Losses, reduced as a word says ("none", "sum" or "mean")."""

import math

import torch
import torch.nn.functional as F
from torch.autograd import Function

from ._control import Control, flags, integers, normal, uniform


def _reduce(terms, reduction):
    return {"none": torch.clone, "sum": torch.sum, "mean": torch.mean}[reduction](terms)


def _per_term(g, count, reduction):
    """The cotangent of each of `count` terms, up to broadcasting."""
    return g / max(count, 1) if reduction == "mean" else g


class MeanSquaredError(Function):
    """(x - y)**2, reduced."""

    @staticmethod
    def forward(ctx, x, y, reduction):
        ctx.reduction = reduction
        ctx.save_for_backward(x, y)
        return _reduce((x - y) ** 2, reduction)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        gx = 2 * _per_term(g, x.numel(), ctx.reduction) * (x - y)
        return gx, -gx, None


class Huber(Function):
    """Half the squared difference up to delta, linear beyond, averaged."""

    @staticmethod
    def forward(ctx, x, y, delta):
        ctx.delta = delta
        ctx.save_for_backward(x, y)
        return F.huber_loss(x, y, delta=delta)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        gx = g * (x - y).clamp(-ctx.delta, ctx.delta) / max(x.numel(), 1)
        return gx, -gx, None


class LogCosh(Function):
    """log(cosh(x)), summed; stable for large |x|."""

    @staticmethod
    def forward(x):
        size = x.abs()
        return (size + torch.log1p(torch.exp(-2 * size)) - math.log(2)).sum()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.tanh(x)


class Charbonnier(Function):
    """sqrt((x - y)**2 + eps**2), averaged."""

    @staticmethod
    def forward(x, y, eps):
        return torch.sqrt((x - y) ** 2 + eps**2).mean()

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y, ctx.eps = inputs
        ctx.save_for_backward(x, y)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        difference = x - y
        gx = g * difference / torch.sqrt(difference**2 + ctx.eps**2) / max(x.numel(), 1)
        return gx, -gx, None


class Pinball(Function):
    """The quantile loss: a slope of q above the prediction and of 1 - q below, reduced."""

    @staticmethod
    def forward(ctx, x, y, q, reduction):
        ctx.q, ctx.reduction = q, reduction
        ctx.save_for_backward(x, y)
        return _reduce(torch.maximum(q * (y - x), (q - 1) * (y - x)), reduction)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        per_term = _per_term(g, x.numel(), ctx.reduction)
        gy = torch.where(y > x, ctx.q * per_term, (ctx.q - 1) * per_term)
        return -gy, gy, None, None


class CrossEntropy(Function):
    """-log softmax(logits)[target], averaged over rows; the targets are integers."""

    @staticmethod
    def forward(logits, target):
        chosen = logits.gather(1, target[:, None])[:, 0]
        return (torch.logsumexp(logits, 1) - chosen).mean()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        logits, target = ctx.saved_tensors
        chosen = F.one_hot(target, logits.shape[1]).to(logits.dtype)
        return g * (torch.softmax(logits, 1) - chosen) / max(logits.shape[0], 1), None


class SmoothedCrossEntropy(Function):
    """The cross-entropy with smoothed labels, over the rows whose target is not to be ignored, reduced."""

    @staticmethod
    def forward(ctx, logits, target, smoothing, ignored, reduction):
        ctx.smoothing, ctx.ignored, ctx.reduction = smoothing, ignored, reduction
        ctx.save_for_backward(logits, target)
        return F.cross_entropy(logits, target, ignore_index=ignored, label_smoothing=smoothing, reduction=reduction)

    @staticmethod
    def backward(ctx, g):
        logits, target = ctx.saved_tensors
        classes = logits.shape[1]
        kept = target != ctx.ignored
        chosen = F.one_hot(torch.where(kept, target, 0), classes).to(logits.dtype)
        wanted = (1 - ctx.smoothing) * chosen + ctx.smoothing / classes
        per_row = g / kept.sum().to(g.dtype) if ctx.reduction == "mean" else g
        difference = (torch.softmax(logits, 1) - wanted).masked_fill(~kept[:, None], 0)
        return per_row[..., None] * difference, None, None, None, None


class BinaryCrossEntropy(Function):
    """softplus(logit) - logit * target, summed; the target is a probability and has a gradient too."""

    @staticmethod
    def forward(logit, target):
        return (F.softplus(logit) - logit * target).sum()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        logit, target = ctx.saved_tensors
        return g * (torch.sigmoid(logit) - target), -g * logit


class FocalLoss(Function):
    """-alpha_t (1 - p)**gamma log(p), p being the probability of the true class, in log space, averaged."""

    @staticmethod
    def forward(ctx, logit, target, alpha, gamma):
        ctx.alpha, ctx.gamma = alpha, gamma
        ctx.save_for_backward(logit, target)
        signed = torch.where(target, logit, -logit)
        weight = torch.where(target, alpha, 1 - alpha).to(logit.dtype)
        return (-weight * torch.exp(gamma * F.logsigmoid(-signed)) * F.logsigmoid(signed)).mean()

    @staticmethod
    def backward(ctx, g):
        logit, target = ctx.saved_tensors
        signed = torch.where(target, logit, -logit)
        weight = torch.where(target, ctx.alpha, ctx.alpha - 1).to(logit.dtype)
        focus = torch.exp(ctx.gamma * F.logsigmoid(-signed))
        p = torch.sigmoid(signed)
        slope = focus * (ctx.gamma * p * F.logsigmoid(signed) - torch.sigmoid(-signed))
        return g * weight * slope / max(logit.numel(), 1), None, None, None


class KlDivergence(Function):
    """target * (log(target) - log_q), summed over classes and averaged over rows."""

    @staticmethod
    def forward(log_q, target):
        return (target * (target.log() - log_q)).sum() / max(target.shape[0], 1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        log_q, target = ctx.saved_tensors
        g = g / max(target.shape[0], 1)
        return -g * target, g * (target.log() + 1 - log_q)


class DiceLoss(Function):
    """1 - 2 sum(p t) / (sum(p) + sum(t) + eps)."""

    @staticmethod
    def forward(ctx, p, t, eps):
        ctx.eps = eps
        ctx.save_for_backward(p, t)
        return 1 - 2 * (p * t).sum() / (p.sum() + t.sum() + eps)

    @staticmethod
    def backward(ctx, g):
        p, t = ctx.saved_tensors
        size = p.sum() + t.sum() + ctx.eps
        ratio = (p * t).sum() / size
        scaled = 2 * g / size
        return scaled * (ratio - t), scaled * (ratio - p), None


class TripletMargin(Function):
    """max(|a - p|**2 - |a - n|**2 + margin, 0), averaged over rows."""

    @staticmethod
    def violation(anchor, positive, negative, margin):
        return (anchor - positive).square().sum(1) - (anchor - negative).square().sum(1) + margin

    @staticmethod
    def forward(ctx, anchor, positive, negative, margin):
        ctx.margin = margin
        ctx.save_for_backward(anchor, positive, negative)
        return TripletMargin.violation(anchor, positive, negative, margin).clamp(min=0).mean()

    @staticmethod
    def backward(ctx, g):
        anchor, positive, negative = ctx.saved_tensors
        active = TripletMargin.violation(anchor, positive, negative, ctx.margin) > 0
        scaled = 2 * g * active.to(g.dtype)[:, None] / max(anchor.shape[0], 1)
        ganchor = scaled * (negative - positive)
        return ganchor, scaled * (positive - anchor), scaled * (anchor - negative), None


class GaussianNll(Function):
    """((y - mean)**2 exp(-log_variance) + log_variance) / 2, averaged."""

    @staticmethod
    def forward(mean, log_variance, y):
        return 0.5 * ((y - mean) ** 2 * torch.exp(-log_variance) + log_variance).mean()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        mean, log_variance, y = ctx.saved_tensors
        g = g / max(y.numel(), 1)
        scaled = (y - mean) * torch.exp(-log_variance)
        return -g * scaled, 0.5 * g * (1 - scaled * (y - mean)), g * scaled


CONTROLS = [
    Control("mse-mean", MeanSquaredError, lambda: (normal(3, 4), normal(3, 4, seed=1), "mean")),
    Control("mse-none", MeanSquaredError, lambda: (normal(3, 4), normal(3, 4, seed=1), "none")),
    Control("huber", Huber, lambda: (normal(3, 4), normal(3, 4, seed=1), 0.8)),
    Control("log-cosh", LogCosh, lambda: (normal(3, 4),)),
    Control("charbonnier", Charbonnier, lambda: (normal(3, 4), normal(3, 4, seed=1), 0.1)),
    Control("pinball", Pinball, lambda: (normal(3, 4), normal(3, 4, seed=1), 0.8, "mean")),
    Control("cross-entropy", CrossEntropy, lambda: (normal(5, 3), integers(5, high=3))),
    Control(
        "smoothed-cross-entropy",
        SmoothedCrossEntropy,
        lambda: (normal(6, 3), integers(6, high=3), 0.1, 0, "mean"),
    ),
    Control("binary-cross-entropy", BinaryCrossEntropy, lambda: (normal(3, 4), uniform(3, 4, seed=1))),
    Control("focal", FocalLoss, lambda: (normal(3, 4), flags(3, 4), 0.25, 2.0)),
    Control("focal-gamma-half", FocalLoss, lambda: (normal(3, 4), flags(3, 4), 0.25, 0.5)),
    Control("kl-divergence", KlDivergence, lambda: (normal(3, 4), uniform(3, 4, low=0.1, seed=1))),
    Control("dice", DiceLoss, lambda: (uniform(3, 4), uniform(3, 4, seed=1), 1.0)),
    Control(
        "triplet-margin",
        TripletMargin,
        lambda: (normal(4, 3), normal(4, 3, seed=1), normal(4, 3, seed=2), 0.5),
    ),
    Control("gaussian-nll", GaussianNll, lambda: (normal(3, 4), normal(3, 4, seed=1), normal(3, 4, seed=2))),
]

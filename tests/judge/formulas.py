"""Formulas that candidates are judged against, each with the example of a call."""

import torch
from torch.nn import functional as F

from ..check.making import normal


def softmax(x):
    return torch.softmax(x, -1)


def layer_norm(x, weight, bias, eps=1e-5):
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps) * weight + bias


def rms_norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def gelu(x):
    return x * 0.5 * (1 + torch.erf(x / 2**0.5))


def cross_entropy(logits, labels):
    return F.cross_entropy(logits, labels)


def linear(x, weight):
    return x @ weight.T


def embedding(table, index):
    return table[index]


def huber(x, y):
    d = x - y
    return torch.where(d.abs() < 3, d * d / 2, 3 * (d.abs() - 1.5)).mean()


def swiglu(gate, up):
    return F.silu(gate) * up


def scale(x, factor=2.0):
    return x * factor


def ridge(x):
    return x.square().sum() + 1e-7 * x.pow(4).sum()


def square(x):
    return x * x


torch_erf = torch.erf


def example(name, dtype=torch.float32):
    """The arguments of an example call."""
    x, labels = normal(4, 6).to(dtype), torch.tensor([0, 5, 2, 2])
    return {
        "softmax": (x,),
        "layer_norm": (x, normal(6).to(dtype), normal(6).to(dtype)),
        "rms_norm": (x, normal(6).to(dtype)),
        "gelu": (x,),
        "cross_entropy": (x, labels),
        "linear": (x, normal(3, 6).to(dtype)),
        "embedding": (normal(7, 3).to(dtype), torch.tensor([[0, 6, 2], [2, 3, 3]])),
        "huber": (0.3 * x, 0.3 * x.roll(1)),
        "swiglu": (x, x.roll(2)),
        "scale": (x, 2.0),
        "square": (x,),
        "torch_erf": (x,),
        "ridge": (x,),
    }[name]

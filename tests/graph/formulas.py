"""A formula in a file, where its source can be read."""

import torch


def gate(x):
    return torch.sigmoid(x) * torch.rsqrt(1 + torch.exp(x))

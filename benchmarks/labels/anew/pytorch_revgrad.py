"""pytorch-revgrad: what is known of its custom function.

`RevGrad` is covered by itself and by its module. Truth: the gradient is the negative cotangent times the factor.
Strided inputs and cotangents, one argument frozen, two backwards, checkpoints, changes in place.
"""

import torch

from labels import Call, Package

PACKAGE = Package("pytorch-revgrad", "0.2.0", "domain adaptation")

REVERSED = "by design: the gradient is reversed"
DOUBTFUL = {
    **dict.fromkeys(("PB101", "PB110", "PB401", "PB404", "PB604"), REVERSED),
    **dict.fromkeys(("PB205", "PB209"), "the input is saved, and no gradient depends on it"),
    "PB107": "the factor is a constant",
    "PB207": "the output is the input: changing it in place raises, with PyTorch's message on views",
}


def function():
    from pytorch_revgrad.functional import RevGrad

    torch.manual_seed(0)
    return RevGrad, (torch.randn(3, 4), torch.tensor(1.0))


def module():
    from pytorch_revgrad import RevGrad

    torch.manual_seed(0)
    return RevGrad(0.5), (torch.randn(3, 4),)


CALLS = (Call(function, "other", doubtful=DOUBTFUL), Call(module, "other", doubtful=DOUBTFUL))

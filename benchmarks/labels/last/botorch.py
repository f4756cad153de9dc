"""botorch: what is known of its custom functions.

Covered are those that run without a C++ compiler. Truth: the formulas; the gradient is that of the output. Half
precision, strided inputs and cotangents, double backward, changes in place.
"""

import torch

from labels import Call, Package
from labels.blind import bare

PACKAGE = Package("botorch", "0.18.1", "Bayesian optimisation")


def _rounding():
    bare("botorch", "botorch.utils")
    from botorch.utils import rounding

    return rounding


def _points():
    torch.manual_seed(0)
    return 3 * torch.rand(2, 3, 4, dtype=torch.float64)


# Straight-through, right.
def rounding():
    return _rounding().RoundSTE, (_points(),)


# Straight-through, right.
def one_hot():
    return _rounding().OneHotArgmaxSTE, (_points(),)


CALLS = (Call(rounding, "other"), Call(one_hot, "other"))

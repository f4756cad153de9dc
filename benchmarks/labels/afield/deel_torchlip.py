"""deel_torchlip: what is known of its custom function.

`SqrtEpsGrad` is covered with the default eps, and with a large one and zeros. Its gradient is that of the root with eps
added to its denominator, by design, so that it is finite at 0; held against that, twice, in float64.
"""

import torch

from labels import Call, Package
from labels.blind import bare

PACKAGE = Package("deel-torchlip", "1.0.5", "robust networks")

BY_DESIGN = "by design: eps is added to the denominator, so that the gradient is finite at 0"
DOUBTFUL = dict.fromkeys(("PB101", "PB110", "PB301", "PB302", "PB303", "PB305", "PB401"), BY_DESIGN)


def _root():
    bare("deel", "deel.torchlip", "deel.torchlip.utils")
    from deel.torchlip.utils.sqrt_eps import sqrt_with_gradeps

    torch.manual_seed(0)
    return sqrt_with_gradeps


def values():
    return _root(), (torch.rand(3, 4) + 0.1,)


def zeros():
    return _root(), (torch.rand(3, 4).sub(0.5).relu(), 1e-3)


CALLS = tuple(Call(make, "other", doubtful=DOUBTFUL) for make in (values, zeros))

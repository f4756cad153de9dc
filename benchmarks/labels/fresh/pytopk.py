"""pytopk: what is known of its custom function.

It has one, the mean of the k-th largest numbers under given noise, called as its module calls it. Truth: float64 central
differences (2e-8) in both positions of the dimension; its second derivative is 0.
"""

import torch

from labels import Call, Package

PACKAGE = Package("pytopk", "0.1.0", "top-k losses")

NOISE = "the noise is a sample, and gets no gradient"
TIE = "where two numbers are equal under the noise, the gradient is that of one order"
DOUBTFUL = {"PB107": NOISE, "PB205": NOISE, "PB305": TIE, "PB302": TIE}


def _largest(size, dim, offset):
    from pytopk.noised_topk import _NoisedTopK

    torch.manual_seed(0)
    return _NoisedTopK, (torch.randn(size), torch.randn(*size, 5), 2, 1.0, dim, offset)


def last_dimension():
    return _largest((2, 4), -1, -1)


def first_dimension():
    return _largest((4, 2), 0, 0)


CALLS = (
    Call(
        last_dimension,
        doubtful=DOUBTFUL,
        judged={"PB119": (False, "dim = 0 with an offset of -1 is the dimension of the noise: nothing that it is for")},
    ),
    Call(first_dimension, doubtful=DOUBTFUL),
)

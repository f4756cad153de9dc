"""mambapy: what is known of its custom function.

It has one, the parallel scan. Truth: float64 central differences (below 1e-10) at lengths 1, 2, 4, 5 and 8, that is a
power of two and not.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import second_raises

PACKAGE = Package("mambapy", "1.2.0", "state-space models")

VIEW = "the output is a view: adding to it in place raises, with PyTorch's message on views"
CHANGED = "double backward raises, of a change in place, without saying that it is not supported"
BATCH = "a vectorised backward raises: the scan works in place"
DOUBTFUL = {"PB207": VIEW, "PB209": VIEW, "PB408": BATCH, "PB703": "what is saved is the memory of the output"}


def _scan(length):
    from mambapy.pscan import PScan

    torch.manual_seed(0)
    return PScan, (0.1 + 0.8 * torch.rand(1, length, 2, 3), torch.randn(1, length, 2, 3))


# First order right: differences (3e-11).
def scan_of_eight():
    return _scan(8)


# First order right: differences (2e-11).
def scan_of_five():
    return _scan(5)


def _bugs(make):
    return (Bug(CHANGED, ("PB403", "PB203"), partial(second_raises, make, "modified by an inplace")),)


CALLS = (
    Call(scan_of_eight, bugs=_bugs(scan_of_eight), doubtful=DOUBTFUL),
    Call(scan_of_five, bugs=_bugs(scan_of_five), doubtful=DOUBTFUL),
)

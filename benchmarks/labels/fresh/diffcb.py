"""diffcb: what is known of its custom functions.

The layer for one sample and the search for folds are covered; the batched one does the same for each row. Truth: float64
central differences with steps from 1e-4 to 1e-2, which agree.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import first_is_wrong, second_is_wrong

PACKAGE = Package("diffcb", "0.1.15", "statistics", needs=("scipy==1.17.1",))

COARSE = "the bandwidth comes from a search in float32: differences of it with a small step have few digits"
BATCH = "a vectorised backward raises: it branches on numbers"
DOUBTFUL = {"PB303": COARSE, "PB408": BATCH}


def _sample():
    torch.manual_seed(0)
    return torch.cat([torch.randn(12) * 0.5 - 1.5, torch.randn(12) * 0.5 + 1.5])


# First order right: differences (5e-8).
def largest_fold():
    from dcb._fold_search import fold_h_crit_z

    def bandwidth(sample):
        return fold_h_crit_z(sample)

    return bandwidth, (_sample(),)


# Wrong: differences, with the layer's defaults.
def critical_bandwidth():
    from dcb import DCBLayer

    return DCBLayer(), (_sample(),)


def _lost(make):
    return Bug(
        "the second derivative is wrong: the point that the search finds is saved, without its graph",
        ("PB401", "PB404", "PB604", "PB403"),
        partial(second_is_wrong, make),
    )


CALLS = (
    Call(largest_fold, bugs=(_lost(largest_fold),), doubtful=DOUBTFUL),
    Call(
        critical_bandwidth,
        bugs=(
            Bug(
                "the gradient is that of a smoothed count, and off by per cents for the bandwidth that is returned, "
                "where it is documented to be exact",
                ("PB101",),
                partial(first_is_wrong, critical_bandwidth, 0, tolerance=0.02, eps=1e-3),
            ),
        ),
        doubtful={**DOUBTFUL, "PB401": "the second derivative is off with the first", "PB404": "as PB401"},
    ),
)

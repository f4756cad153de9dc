"""axial-attention: what is known of its custom function.

`_ReversibleFunction` is covered by the sequence that applies it, with weights that are trained and with frozen ones.
Truth: float64 central differences. Weights that the sequence holds, double backward, strided inputs and cotangents, two
backwards, checkpoints, changes in place.
"""

from functools import partial

import torch
from torch.nn import Conv1d, ModuleList, Sequential, Tanh

from labels import Bug, Call, Package
from labels.fresh import second_is_wrong
from labels.unseen import nothing_is_trained_without, weights_get_none

PACKAGE = Package("axial-attention", "0.6.1", "attention")

ITERATED = "what is computed again from the outputs has lost the last digits"


def _sequence(trained):
    from axial_attention.reversible import ReversibleSequence

    torch.manual_seed(0)
    blocks = ModuleList(ModuleList(Sequential(Conv1d(3, 3, 1), Tanh()) for _ in range(2)) for _ in range(2))
    sequence = ReversibleSequence(blocks).double().requires_grad_(trained)
    return sequence, (torch.randn(2, 3, 4, dtype=torch.float64),)


# First order right: differences.
def trained():
    return _sequence(True)


# First order right: differences.
def frozen():
    return _sequence(False)


def _detached(make):
    return Bug(
        "the backward computes again on detached tensors: the second derivative is silently wrong",
        ("PB401", "PB402", "PB404", "PB604"),
        partial(second_is_wrong, make),
    )


DOUBTFUL = {"PB303": ITERATED, "PB209": "the output is kept on ctx, and the sequence hands out its mean only"}
CALLS = (
    Call(
        trained,
        bugs=(
            Bug(
                "torch.autograd.grad gives the weights None, and the backward adds to their .grad",
                ("PB118", "PB210", "PB107", "PB604"),
                partial(weights_get_none, trained, lambda given: list(given[0].parameters())),
            ),
            Bug(
                "where the input needs no gradient, the output needs none either: silently, the weights are not trained",
                ("PB118", "PB113", "PB604"),
                partial(nothing_is_trained_without, trained),
            ),
            _detached(trained),
        ),
        doubtful=DOUBTFUL,
    ),
    Call(frozen, bugs=(_detached(frozen),), doubtful=DOUBTFUL),
)

"""revtorch: what is known of its custom function.

`_ReversibleModuleFunction` is covered by the sequence that applies it: with variables discarded in the backward, which
is the default, with variables kept, and with the seed of the forward used again. Truth: float64 central differences.
Weights that the sequence holds, double backward, strided inputs and cotangents, two backwards, checkpoints, changes in
place.
"""

import random
from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import output_change_is_unnoticed
from labels.last import derivative_of_backward_is_wrong
from labels.unseen import nothing_is_trained_without, weights_get_none

PACKAGE = Package("revtorch", "0.2.4", "reversible networks")

DISCARDED = "by design: what the backward needs is deleted by it, unless eagerly_discard_variables is false"
ITERATED = "what is computed again from the outputs has lost the last digits"
ASSERTED = "double backward with a cotangent that needs a gradient ends in an assertion that says so"


def _sequence(trained, eager=True, seed=False):
    from revtorch import ReversibleBlock, ReversibleSequence

    def inner():
        return torch.nn.Sequential(torch.nn.Conv2d(2, 2, 3, padding=1), torch.nn.Tanh())

    torch.manual_seed(0)
    blocks = torch.nn.ModuleList(ReversibleBlock(inner(), inner(), fix_random_seed=seed) for _ in range(2))
    sequence = ReversibleSequence(blocks, eager).double().requires_grad_(trained)
    torch.manual_seed(1)
    return sequence, (torch.randn(1, 4, 2, 3, dtype=torch.float64),)


# First order right: differences.
def discarded():
    return _sequence(True)


# First order right: differences.
def kept():
    return _sequence(False, eager=False)


# First order right: differences.
def seeded():
    return _sequence(False, eager=False, seed=True)


def seed_is_changed():
    """Whether numbers drawn after a call do not follow from the seed of PyTorch's generator."""
    function, (x,) = seeded()
    drawn = []
    for k in range(2):
        random.seed(k)
        torch.manual_seed(0)
        function(x)
        drawn.append(torch.rand(()))
    return bool(drawn[0] != drawn[1])


def _common(make):
    return (
        Bug(
            "the backward computes again on detached tensors: the second derivative is silently wrong",
            ("PB401", "PB402", "PB404", "PB604"),
            partial(derivative_of_backward_is_wrong, make),
        ),
        Bug(
            "the output is kept on ctx: changing it in place silently changes the gradient",
            ("PB201", "PB209"),
            partial(output_change_is_unnoticed, make),
        ),
    )


CALLS = (
    Call(
        discarded,
        bugs=(
            Bug(
                "torch.autograd.grad gives the weights None, and the backward adds to their .grad",
                ("PB118", "PB210", "PB107", "PB604"),
                partial(weights_get_none, discarded, lambda given: list(given[0].parameters())),
            ),
            Bug(
                "where the input needs no gradient, the output needs none either: silently, the weights are not trained",
                ("PB118", "PB113", "PB604"),
                partial(nothing_is_trained_without, discarded),
            ),
            *_common(discarded),
        ),
        doubtful={
            **dict.fromkeys(("PB206", "PB408", "PB119"), DISCARDED),
            "PB303": ITERATED,
            "PB403": ASSERTED,
        },
    ),
    Call(kept, bugs=_common(kept), doubtful={"PB303": ITERATED, "PB403": ASSERTED}),
    Call(
        seeded,
        bugs=(
            *_common(seeded),
            Bug(
                "the forward seeds PyTorch's generator from Python's, and leaves it so: a seed silently no longer holds",
                ("PB603", "PB601"),
                seed_is_changed,
            ),
        ),
        doubtful={"PB303": ITERATED, "PB403": ASSERTED},
    ),
)

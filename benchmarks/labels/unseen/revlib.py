"""revlib: what is known of its custom functions.

`_ReversibleHalfResidualSwapFn` and `_ReplaceGrad` are covered by the sequence that applies them, with both couplings
that it documents; `_ReplaceGrad` and `TensorOffload` by themselves. Truth: float64 central differences. Weights that the
sequence holds, double backward, strided inputs and cotangents, two backwards, checkpoints, changes in place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import first_is_wrong
from labels.last import derivative_of_backward_is_wrong
from labels.unseen import nothing_is_trained_without, weights_get_none

PACKAGE = Package("revlib", "1.7.2", "reversible networks")

VIEW = "the output is the input: changing it in place raises, with PyTorch's message on views"
ITERATED = "what is computed again from the outputs has lost the last digits"


def _sequence(trained, **couplings):
    import revlib

    torch.manual_seed(0)
    blocks = [torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh()) for _ in range(4)]
    sequence = revlib.ReversibleSequential(*blocks, split_dim=-1, **couplings).double().requires_grad_(trained)
    torch.manual_seed(1)
    return sequence, (torch.randn(2, 6, dtype=torch.float64),)


# First order right: differences.
def additive():
    return _sequence(True)


# Wrong.
def momentum():
    def forward(x, f):
        return 0.9 * x + 0.1 * f

    def inverse(y, f):
        return (y - 0.1 * f) / 0.9

    return _sequence(False, coupling_forward=[forward], coupling_inverse=[inverse])


# Identity; what the other two get is no gradient, by design.
def replaced():
    from revlib.core import _ReplaceGrad

    torch.manual_seed(1)
    return _ReplaceGrad, tuple(torch.randn(4, 2, 3).unbind())


# Right, twice: differences.
def offloaded():
    from revlib.core import TensorOffload

    torch.manual_seed(1)
    return TensorOffload, (torch.randn(2, 3), torch.empty(0, dtype=torch.int64))


def _detached(make):
    return Bug(
        "the backward computes again on detached tensors: the second derivative is silently wrong",
        ("PB401", "PB402", "PB404", "PB604"),
        partial(derivative_of_backward_is_wrong, make),
    )


CALLS = (
    Call(
        additive,
        bugs=(
            Bug(
                "torch.autograd.grad gives the weights None, and the backward adds to their .grad",
                ("PB118", "PB210", "PB107", "PB604"),
                partial(weights_get_none, additive, lambda given: list(given[0].parameters())),
            ),
            Bug(
                "where the input needs no gradient, the output needs none either: silently, the weights are not trained",
                ("PB118", "PB113", "PB604"),
                partial(nothing_is_trained_without, additive),
            ),
            _detached(additive),
        ),
        doubtful={"PB303": ITERATED},
    ),
    Call(
        momentum,
        bugs=(
            Bug(
                "the backward takes any coupling for the additive one: the documented one for momentum gets another gradient",
                ("PB101",),
                partial(first_is_wrong, momentum, 0),
            ),
            _detached(momentum),
        ),
        doubtful={"PB303": ITERATED},
    ),
    Call(
        replaced,
        "other",
        doubtful={
            **dict.fromkeys(("PB101", "PB109", "PB401", "PB404"), "by design: activations are sent back as gradients"),
            **dict.fromkeys(("PB111", "PB110", "PB604"), "by design: activations are sent back as gradients"),
            "PB207": VIEW,
        },
    ),
    Call(offloaded, doubtful={"PB207": VIEW}),
)

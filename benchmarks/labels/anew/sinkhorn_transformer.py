"""sinkhorn-transformer: what is known of its custom function.

`_ReversibleFunction` is covered by the sequence that applies it: with weights that are trained, with frozen ones, with
dropout, and in evaluation. Truth: float64 central differences. Weights that the sequence holds, double backward,
strided inputs and cotangents, two forwards before a backward, two backwards, checkpoints, changes in place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.anew import bare
from labels.fresh import far, gradients, linear, raises
from labels.last import derivative_of_backward_is_wrong
from labels.unseen import nothing_is_trained_without, weights_get_none

PACKAGE = Package("sinkhorn-transformer", "0.11.4", "language models")

DOUBTFUL = {"PB303": "what is computed again from the outputs has lost the last digits"}


def _sequence(trained, *layers, training=True):
    bare("sinkhorn_transformer")
    from sinkhorn_transformer.reversible import ReversibleSequence

    torch.manual_seed(0)
    blocks = [
        torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(3, 3), *layers) for _ in range(2)) for _ in range(2)
    ]
    sequence = ReversibleSequence(torch.nn.ModuleList(blocks)).double().requires_grad_(trained).train(training)
    torch.manual_seed(1)
    return sequence, (torch.randn(2, 4, 3, dtype=torch.float64),)


# First order right: differences.
def trained():
    return _sequence(True, torch.nn.Tanh())


# First order right: differences.
def frozen():
    return _sequence(False, torch.nn.Tanh())


# First order right: differences, from the same state of the generator.
def dropout():
    return _sequence(False, torch.nn.Tanh(), torch.nn.Dropout(0.3))


def evaluated():
    return _sequence(False, torch.nn.Tanh(), training=False)


def state_is_shared():
    """Whether a second forward, between the forward and the backward of the first, silently changes its gradient."""
    found = []
    for is_between in (False, True):
        sequence, (x,) = dropout()
        x.requires_grad_()
        torch.manual_seed(0)
        value = linear([sequence(x)])
        if is_between:
            sequence(x)
        found.append(torch.autograd.grad(value, x)[0])
    return far(found[1], found[0], 0.01)


def _detached(make):
    return Bug(
        "the backward computes again on detached tensors: the second derivative is silently wrong",
        ("PB401", "PB402", "PB404", "PB604"),
        partial(derivative_of_backward_is_wrong, make),
    )


COMPUTED = {"PB209": (True, "the inputs are computed from the output, which may have been changed by then")}

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
        judged=COMPUTED,
    ),
    Call(frozen, bugs=(_detached(frozen),), doubtful=DOUBTFUL, judged=COMPUTED),
    Call(
        dropout,
        bugs=(
            _detached(dropout),
            Bug(
                "the state of the generator is kept by the layers, not by the call: after a second forward the first "
                "one's gradient silently is another mask's",
                ("PB120", "PB602", "PB507"),
                state_is_shared,
            ),
        ),
        doubtful=DOUBTFUL,
        judged=COMPUTED,
    ),
    Call(
        evaluated,
        bugs=(
            Bug(
                "in evaluation no state of the generator is recorded, and the backward sets it: it raises, always",
                ("PB119", "PB101"),
                lambda: raises(lambda: gradients(evaluated), "NoneType", "None"),
            ),
        ),
    ),
)

"""performer-pytorch: what is known of its custom function.

`_ReversibleFunction` is covered by the sequence that applies it: in training, in evaluation, and with a context that
some layers read. The package is entered without its `__init__`, which needs packages that take no part. Truth: float64
central differences, for the weights plain backward. Double backward, each argument frozen, strided inputs and
cotangents, two backwards, checkpoints, changes in place.
"""

from functools import partial
from importlib import import_module

import torch

from labels import Bug, Call, Package
from labels.blind import bare
from labels.fresh import gradients, input_change_is_unnoticed, raises
from labels.last import derivative_of_backward_is_wrong
from labels.unseen import argument_gets_none, nothing_is_trained_without, weights_get_none

PACKAGE = Package("performer-pytorch", "1.1.4", "language models")

ITERATED = "what is computed again from the outputs has lost the last digits"


class _Block(torch.nn.Module):
    """A layer, whose output a context multiplies."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())

    def forward(self, x, context=None):
        return self.layers(x) * (1 if context is None else context)


def _sequence(**options):
    bare("performer_pytorch")
    torch.manual_seed(0)
    blocks = torch.nn.ModuleList(torch.nn.ModuleList([_Block(), _Block()]) for _ in range(2))
    return import_module("performer_pytorch.reversible").ReversibleSequence(blocks, **options).double()


def _x():
    torch.manual_seed(1)
    return torch.randn(2, 4, 3, dtype=torch.float64)


# First order right, of the weights too: differences.
def training():
    return _sequence(), (_x(),)


# Wrong.
def evaluating():
    return _sequence().eval(), (_x(),)


# First order right of the first argument: differences.
def with_context():
    sequence = _sequence(args_route={"context": ((True, False), (True, False))})

    def called(x, context):
        return sequence(x, context=context)

    called.sequence = sequence
    return called, (_x(), 2 + torch.randn(2, 1, 3, dtype=torch.float64))


def _reversible(make, weights):
    return (
        Bug(
            "torch.autograd.grad gives the weights None, and the backward adds to their .grad",
            ("PB118", "PB210", "PB107", "PB604"),
            partial(weights_get_none, make, weights),
        ),
        Bug(
            "the backward computes again on detached tensors: the second derivative is silently wrong",
            ("PB401", "PB402", "PB404", "PB604"),
            partial(derivative_of_backward_is_wrong, make),
        ),
    )


CALLS = (
    Call(
        training,
        bugs=(
            *_reversible(training, lambda given: list(given[0].parameters())),
            Bug(
                "where the input needs no gradient, the output needs none either: silently, the weights are not trained",
                ("PB118", "PB113", "PB604"),
                partial(nothing_is_trained_without, training),
            ),
        ),
        doubtful={"PB303": ITERATED},
        judged={"PB209": (True, "the inputs are computed from the output, which may have been changed by then")},
    ),
    Call(
        evaluating,
        bugs=(
            Bug(
                "in evaluation no state of the generator is kept, and the backward, which sets it, raises",
                ("PB119", "PB101"),
                lambda: raises(lambda: gradients(evaluating), "ByteTensor"),
            ),
        ),
        doubtful={**dict.fromkeys(("PB118", "PB210", "PB604"), "the backward does not get that far")},
    ),
    Call(
        with_context,
        bugs=(
            *_reversible(with_context, lambda given: list(given[0].sequence.parameters())),
            Bug(
                "torch.autograd.grad gives the context None, and the backward adds to its .grad",
                ("PB107", "PB118", "PB210", "PB604"),
                partial(argument_gets_none, with_context, 1),
            ),
            Bug(
                "the context is kept on ctx: changed in place before the backward, it silently changes the gradient",
                ("PB209", "PB201", "PB412"),
                partial(input_change_is_unnoticed, with_context, 1),
            ),
        ),
        doubtful={"PB303": ITERATED, "PB113": "where the input needs no gradient, the output needs none either"},
        judged={
            "PB102": (True, "nor has the context a tangent"),
            "PB411": (False, "the context's gradient is added to .grad with and without a checkpoint"),
        },
    ),
)

"""torchgpipe: what is known of its custom functions.

`Checkpoint` and `Recompute` are covered by the checkpoint of one and of two tensors and by a pipeline on the CPU, which
also applies `Fork`, `Join`, `Copy` and `Wait`; these are covered by themselves too. The portals of skip connections are
not covered. Truth: float64 central differences, for the weights plain backward. Double backward, each argument frozen,
one output alone, strided inputs and cotangents, two backwards, checkpoints, changes in place, autocast, dropout.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import raises_when_frozen
from labels.last import derivative_of_backward_is_wrong, second_backward_raises
from labels.outside import one_output_raises
from labels.unseen import weights_get_none

PACKAGE = Package("torchgpipe", "0.0.7", "pipelines and checkpoints")

EMPTY = "pop from an empty deque"
NESTED = "raises within another checkpoint: a checkpoint within a checkpoint"
VIEW = "the output is the input: changing it in place raises, with PyTorch's message on views"
DETACHED = "by design a detached input, whose version is shared; a pipeline passes nothing that its caller holds"


def _layers():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double()


class _Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = _layers()

    def forward(self, given):
        x, y = given
        return self.layers(x).tanh() * y, torch.sin(y)


# First order right, of the weights too: differences.
def checkpoint_of_one():
    from torchgpipe.checkpoint import checkpoint

    return partial(checkpoint, _layers()), (torch.randn(5, 3, dtype=torch.float64),)


# First order right: differences.
def checkpoint_of_two():
    from torchgpipe.checkpoint import checkpoint

    block = _Two()

    def called(x, y):
        return checkpoint(block, (x, y))

    called.block = block
    return called, (torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64))


# First order right, of the weights too: differences.
def pipeline():
    from torchgpipe import GPipe

    layers = _layers()
    model = GPipe(layers, [2, 1], devices=["cpu", "cpu"], chunks=2, checkpoint="always")
    return model, (torch.randn(4, 3, dtype=torch.float64),)


# Right, twice: identity.
def copy():
    from torchgpipe.copy import Copy
    from torchgpipe.stream import CPUStream

    torch.manual_seed(0)
    return Copy, (CPUStream, CPUStream, torch.randn(2, 3), torch.randn(2))


# Right, twice: identity.
def wait():
    from torchgpipe.copy import Wait
    from torchgpipe.stream import CPUStream

    torch.manual_seed(0)
    return Wait, (CPUStream, CPUStream, torch.randn(2, 3), torch.randn(2))


# Right, twice: identity.
def fork_and_join():
    from torchgpipe.dependency import fork, join

    torch.manual_seed(0)

    def ordered(x, y):
        x, phony = fork(x)
        return x, join(y, phony)

    return ordered, (torch.randn(2, 3), torch.randn(2, 3))


def _checkpointed(make, weights):
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
        Bug(
            "a second backward over a retained graph raises: the state of the generator is gone",
            ("PB206", "PB408", "PB411", "PB120"),
            partial(second_backward_raises, make, EMPTY),
        ),
    )


NEST = dict.fromkeys(("PB411", "PB408", "PB406"), NESTED)
CALLS = (
    Call(
        checkpoint_of_one,
        bugs=_checkpointed(checkpoint_of_one, lambda given: list(given[0].args[0].parameters())),
        doubtful={**NEST, "PB207": DETACHED},
    ),
    Call(
        checkpoint_of_two,
        bugs=(
            *_checkpointed(checkpoint_of_two, lambda given: list(given[0].block.parameters())),
            Bug(
                "where an output needs no gradient because an input needs none, the backward raises",
                ("PB113", "PB119"),
                lambda: raises_when_frozen(checkpoint_of_two, 0, "does not require grad"),
            ),
            Bug(
                "where the second output alone is used, nothing was computed again, and the backward raises",
                ("PB112", "PB114", "PB119"),
                lambda: one_output_raises(checkpoint_of_two, 1, EMPTY),
            ),
        ),
        doubtful={**NEST, "PB207": DETACHED},
    ),
    Call(
        pipeline,
        bugs=_checkpointed(pipeline, lambda given: list(given[0].parameters())),
        doubtful={**NEST, "PB207": DETACHED},
    ),
    Call(copy, doubtful={"PB207": VIEW}),
    Call(wait, doubtful={"PB207": DETACHED}),
    Call(fork_and_join, doubtful={"PB207": DETACHED}),
)

"""torchshard: what is known of its custom functions.

In a group of one process: `Copy` and `Gather` by the functions that apply them, `ParallelCrossEntropy` with two
reductions. `Scatter` and `Reduce` are made as the first two are. Truth: float64 central differences. Double backward,
strided inputs and cotangents, two backwards, checkpoints, in place, dtypes. Not in a larger group.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.beyond import alone
from labels.fresh import second_is_wrong

PACKAGE = Package("torchshard", "0.1.0", "training in parallel", ("six",))

VIEW = "alone the output is the input: changing it in place raises, with PyTorch's message on views"


def _start():
    from torchshard import distributed

    alone()
    if not distributed.is_initialized():
        distributed.init_process_group(1)
    torch.manual_seed(0)


# Right, twice: differences.
def copied():
    from torchshard.distributed import comm

    _start()
    return comm.copy, (torch.randn(3, 4),)


# Right, twice: differences.
def gathered():
    from torchshard.distributed import comm

    _start()
    return comm.gather, (torch.randn(3, 4),)


def _loss(reduction):
    from torchshard import set_attribute
    from torchshard.nn.functional import parallel_cross_entropy

    _start()
    target = torch.tensor([1, 3, 0])

    def loss(logits):
        logits = logits * 1
        set_attribute(logits, -1)
        return parallel_cross_entropy(logits, target, reduction=reduction)

    return loss, (torch.randn(3, 4),)


# First order right: differences.
def mean():
    return _loss("mean")


# First order right: differences.
def each():
    return _loss("none")


def _detached(make):
    return Bug(
        "the backward uses the saved softmax, which has no graph: the second derivative is silently wrong",
        ("PB401", "PB402", "PB404", "PB604"),
        partial(second_is_wrong, make),
    )


GROUP = {"PB001": (False, "the audit runs in another process, without the group that was made here")}

CALLS = (
    *(Call(make, doubtful={"PB207": VIEW}) for make in (copied, gathered)),
    *(Call(make, bugs=(_detached(make),), judged=GROUP) for make in (mean, each)),
)

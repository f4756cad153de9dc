"""fairscale: what is known of its custom functions.

Six are covered, of 28: the cross entropy of a split vocabulary and the batch norm of several processes, both in a
group of one process, and the fused output layer, which applies four. What copies from torchgpipe, and what needs a GPU,
is not covered. Truth: float64 central differences, for the fused layer plain PyTorch in float64. Double backward, each
argument frozen, strided inputs and cotangents, two backwards, checkpoints, changes in place, autocast, tied weights.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.beyond import alone, second_is_wrong_in_single
from labels.fresh import called, linear, prepared
from labels.last import derivative_of_backward_is_wrong, second_backward_raises
from labels.outside import argument_is_changed
from labels.unseen import weights_get_none

PACKAGE = Package("fairscale", "0.4.13", "training at large scale")

ALONE = "what processes exchange takes no batch"
LAYOUT = "logits of other strides raise in the forward, with PyTorch's message on views"
SECOND = ("PB401", "PB402", "PB404", "PB604")
ASSERTED = "an assertion tells that the input must need a gradient"


def _parallel():
    alone()
    from fairscale.nn.model_parallel import initialize

    if not initialize.model_parallel_is_initialized():
        initialize.initialize_model_parallel(1)


# First order right: differences.
def vocab_parallel_cross_entropy():
    _parallel()
    from fairscale.nn.model_parallel.cross_entropy import _VocabParallelCrossEntropy

    torch.manual_seed(0)
    return _VocabParallelCrossEntropy, (torch.randn(3, 2, 5), torch.randint(5, (3, 2)))


# First order right: differences.
def sync_batch_norm():
    alone()
    from fairscale.experimental.nn import SyncBatchNorm

    def normalised(x, weight, bias):
        norm = SyncBatchNorm(3).to(x.dtype)
        del norm.weight, norm.bias
        norm.weight, norm.bias = weight, bias
        return norm(x)

    torch.manual_seed(0)
    return normalised, (torch.randn(4, 3, 2, 2), torch.rand(3), torch.randn(3))


def _loss(**options):
    from fairscale.experimental.nn import MEVO

    torch.manual_seed(0)
    layer = MEVO(torch.nn.Parameter(torch.randn(8, 4)), tile_factor=2, **options)
    target = torch.randint(8, (1, 6))

    def loss(x):
        return layer(x if x.requires_grad else x.detach().requires_grad_(), target)

    loss.layer = layer
    return loss


def _states():
    torch.manual_seed(1)
    return (torch.randn(1, 6, 4),)


# First order right, of the weights too: plain PyTorch.
def fused_output():
    return _loss(), _states()


# First order right, of the weights too: plain PyTorch.
def output_with_margin():
    return _loss(margin=0.2, scale=4.0), _states()


def bias_gets_none():
    """Whether the bias gets no gradient where the weight is frozen."""
    function, arguments, _ = prepared(sync_batch_norm)
    bias = arguments[2].requires_grad_()
    value = linear(called(function, arguments))
    return value.requires_grad and torch.autograd.grad(value, bias, allow_unused=True) == (None,)


def _frozen_weight_raises(make):
    loss, (x,) = make()
    loss.layer.proj_weight.requires_grad_(False)
    value = loss(x.requires_grad_())
    try:
        value.backward()
    except AssertionError as error:
        return not str(error)
    return False


def _fused(make):
    return Call(
        make,
        bugs=(
            Bug(
                "torch.autograd.grad gives the weights None, and the backward adds to their .grad",
                ("PB118", "PB210", "PB107", "PB604"),
                partial(weights_get_none, make, lambda given: [given[0].layer.proj_weight]),
            ),
            Bug(
                "the backward computes again on detached tensors: the second derivative is silently wrong",
                SECOND,
                partial(second_is_wrong_in_single, make),
            ),
            Bug(
                "where the weights are frozen, an assertion without a message raises in the backward",
                ("PB113", "PB119"),
                partial(_frozen_weight_raises, make),
            ),
        ),
        doubtful={
            "PB117": ASSERTED,
            "PB303": "the layer computes in float32, whatever it is given",
            "PB105": "the layer computes in float32, whatever it is given",
            "PB102": "what needs no gradient is detached here, before the layer",
        },
        judged={
            "PB413": (True, "of bfloat16 the forward of autocast is taken, and the backward, outside of it, raises")
        },
    )


CALLS = (
    Call(
        vocab_parallel_cross_entropy,
        bugs=(
            Bug(
                "the forward subtracts the maximum from the logits in place, and does not say so: they silently change",
                ("PB202", "PB411", "PB412", "PB209"),
                partial(argument_is_changed, vocab_parallel_cross_entropy),
            ),
            Bug(
                "the backward writes to what it has saved: a second backward over a retained graph raises",
                ("PB206", "PB203", "PB408"),
                partial(second_backward_raises, vocab_parallel_cross_entropy, "modified by an inplace operation"),
            ),
            Bug(
                "the softmax is saved, and is no output: the second derivative is silently wrong",
                SECOND,
                partial(derivative_of_backward_is_wrong, vocab_parallel_cross_entropy),
            ),
        ),
        doubtful={**dict.fromkeys(("PB501", "PB119"), LAYOUT), **dict.fromkeys(("PB406", "PB405"), ALONE)},
        judged={"PB001": (False, "the audit runs in another process, without the group that was made here")},
    ),
    Call(
        sync_batch_norm,
        bugs=(
            Bug(
                "where the weight is frozen, the bias silently gets no gradient",
                ("PB113", "PB107"),
                bias_gets_none,
            ),
            Bug(
                "mean and deviation are constants to the backward: the second derivative is silently wrong",
                SECOND,
                partial(derivative_of_backward_is_wrong, sync_batch_norm),
            ),
        ),
        doubtful=dict.fromkeys(("PB406", "PB408", "PB405"), ALONE),
    ),
    *map(_fused, (fused_output, output_with_margin)),
)

"""warprnnt-numba: what is known of its custom functions.

`_RNNTNumba` is covered by itself and by the loss that applies it, with FastEmit; the loss in NumPy with `_RNNT`; and
the clipping's own `LogSoftmaxGradModification`. Truth: a loss in PyTorch's operations and float64 central
differences. Double backward, strided and expanded inputs and cotangents, two backwards, checkpoints, changes in
place, autocast, sizes of 1.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.last import derivative_of_backward_is_wrong

PACKAGE = Package("warprnnt-numba", "0.4.1", "speech recognition", ("numba==0.68.1", "llvmlite==0.50.0"))

CONTIGUOUS = "only contiguous inputs, which the forward says"
BY_DESIGN = "by design: the gradient is scaled or clipped"
DOUBTFUL = {
    **dict.fromkeys(("PB405", "PB406", "PB407"), "torch.func does not take it: it has no setup_context"),
    "PB501": CONTIGUOUS,
    **dict.fromkeys(("PB409", "PB410", "PB415"), "numba and NumPy are not traced: compiling them may raise"),
    "PB603": "numba's number of threads is halved, and stays so",
    "PB303": "sums in the input's dtype, or in float32",
    "PB105": "a loss in NumPy, in float32",
    "PB117": "the loss is the same; without gradients less is computed",
}
OTHER = {**DOUBTFUL, **dict.fromkeys(("PB101", "PB109", "PB110", "PB401", "PB404", "PB604"), BY_DESIGN)}


def _batch():
    torch.manual_seed(0)
    activations = torch.randn(2, 4, 3, 5)
    labels = torch.tensor([[1, 2], [3, 1]], dtype=torch.int32)
    lengths = (torch.tensor([4, 3], dtype=torch.int32), torch.tensor([2, 1], dtype=torch.int32))
    return activations, labels, *lengths


def _loss(*options):
    from warprnnt_numba.rnnt_loss.rnnt_pytorch import rnnt_loss

    activations, *rest = _batch()
    return (lambda x: rnnt_loss(x, *rest, 0, *options)), (activations,)


# First order right: differences, and a loss in PyTorch.
def transducer():
    from warprnnt_numba.rnnt_loss.rnnt_pytorch import _RNNTNumba

    activations, *rest = _batch()
    return _RNNTNumba, (activations.log_softmax(-1), *rest, 0, "none", 0.0, 0.0)


# Scaled by design.
def fast_emit():
    return _loss("mean", 0.1)


# First order right, in float32: the other loss.
def in_numpy():
    from warprnnt_numba.rnnt_loss.rnnt_numpy import RNNTLoss

    activations, *rest = _batch()
    return (lambda x: RNNTLoss()(x, *rest)), (activations,)


# Clipped by design.
def clipping():
    from warprnnt_numba.rnnt_loss.utils.cpu_utils.cpu_rnnt import LogSoftmaxGradModification

    return LogSoftmaxGradModification, (_batch()[0], 0.1)


def numpy_second_is_cut():
    """Whether the derivative of the loss in NumPy, at log-probabilities, silently has none itself."""
    from warprnnt_numba.rnnt_loss.rnnt_numpy import _RNNT

    activations, *rest = _batch()
    x = activations.log_softmax(-1).requires_grad_()
    (first,) = torch.autograd.grad(_RNNT.apply(x, *rest, 0, 0.0).sum() + x.square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x)
    # Of the square alone, as if the loss were linear.
    return torch.allclose(second, 4 * first.detach())


def output_is_the_input():
    """Whether a change of the output in place changes the input."""
    function, (x, clamp) = clipping()
    before = x.clone()
    y = function.apply(x.requires_grad_() * 1, clamp)
    z = x.detach() * 1
    function.apply(z, clamp).mul_(2)
    return y.grad_fn is not None and torch.equal(z, 2 * before)


def _cut(make, proof=None):
    return Bug(
        "the gradient is computed by the forward, and kept as a constant: the second derivative is silently wrong",
        ("PB401", "PB402", "PB404", "PB604", "PB201"),
        proof or partial(derivative_of_backward_is_wrong, make),
    )


CALLS = (
    Call(transducer, bugs=(_cut(transducer),), doubtful=DOUBTFUL),
    Call(in_numpy, bugs=(_cut(in_numpy, numpy_second_is_cut),), doubtful=DOUBTFUL),
    Call(fast_emit, "other", doubtful=OTHER),
    Call(
        clipping,
        "other",
        bugs=(
            Bug(
                "the output, meant to be a copy, lies in the input's memory: changing one silently changes the other",
                ("PB207",),
                output_is_the_input,
            ),
        ),
        doubtful=OTHER,
    ),
)

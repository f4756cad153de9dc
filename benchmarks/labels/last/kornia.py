"""kornia: what is known of its custom functions.

Both are covered. Truth: float64 central differences (below 1e-6) and `log_softmax` with `gather`; the basis of a null
space is unique up to rotation, and the gradient is that of the subspace, so its projector is differentiated. Half
precision, strided inputs and cotangents, double backward, `torch.func`, `torch.compile`, frozen arguments, changes.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.blind import stub
from labels.fresh import second_is_wrong

PACKAGE = Package("kornia", "0.9.0", "computer vision")


def _logits():
    stub("kornia_rs", io=None)
    from kornia.losses.focal import _TargetLogSoftmax

    torch.manual_seed(0)
    return _TargetLogSoftmax, torch.randn(2, 3, 1, 3), torch.tensor([[[[0, 2, 1]]], [[[1, 1, 0]]]])


# First and second order right: differences, `log_softmax`.
def target_log_softmax():
    function, logits, target = _logits()
    return function, (logits, target, None)


# As above; where the mask is false the gradient is 0, as documented.
def masked_target_log_softmax():
    function, logits, target = _logits()
    return function, (logits, target, torch.tensor([[[[True, False, True]]], [[[True, True, True]]]]))


# First order right: differences.
def null_space():
    stub("kornia_rs", io=None)
    from kornia.geometry.epipolar.essential import _NullSpaceBasis

    def projector(design):
        basis = _NullSpaceBasis.apply(design)[0]
        return basis @ basis.mT

    torch.manual_seed(0)
    return projector, (torch.randn(2, 6, 9, dtype=torch.float64),)


CALLS = (
    Call(target_log_softmax),
    Call(masked_target_log_softmax),
    Call(
        null_space,
        bugs=(
            Bug(
                "singular values and vectors are saved without a graph: the second derivative is silently wrong",
                ("PB401", "PB404"),
                partial(second_is_wrong, null_space),
            ),
        ),
        doubtful={"PB301": "documented: where the gap between singular values is 0 there is no gradient"},
    ),
)

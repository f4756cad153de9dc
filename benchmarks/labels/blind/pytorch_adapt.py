"""pytorch-adapt: what is known of its custom function.

Truth: the gradient is that of the output times the negative weight, in every dtype; strided inputs, double backward.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.blind import bare
from labels.fresh import input_change_is_unnoticed

PACKAGE = Package("pytorch-adapt", "0.0.83", "domain adaptation", ("tqdm", "pytorch-metric-learning"))

REVERSED = "by design: the gradient is reversed"
VIEW = "the output is the input: changing it in place raises, with PyTorch's message on views"


# Right, but for what is labelled. The module passes its buffer, which `update_weight` changes in place.
def gradient_reversal():
    bare("pytorch_adapt", "pytorch_adapt.layers", "pytorch_adapt.utils")
    from pytorch_adapt.layers.gradient_reversal import _GradientReversal

    torch.manual_seed(0)
    return _GradientReversal, (torch.randn(4, 3), torch.tensor([0.5]))


CALLS = (
    Call(
        gradient_reversal,
        "other",
        bugs=(
            Bug(
                "the weight is kept on ctx: updating it, which is done in place, silently changes the gradient",
                ("PB201", "PB209"),
                partial(input_change_is_unnoticed, gradient_reversal, 1),
            ),
        ),
        doubtful={"PB101": REVERSED, "PB401": REVERSED, "PB207": VIEW},
    ),
)

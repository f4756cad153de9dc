"""torch-vectorized: what is known of its custom functions.

All four are covered, of matrices that are made symmetric as the package does. Truth: central differences of what is
float32, PyTorch's error. Double backward, strided inputs and cotangents, two backwards, checkpoints, changes in place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.anew import SECOND
from labels.beyond import second_is_wrong_in_single
from labels.fresh import gradients, raises

PACKAGE = Package("torch-vectorized", "0.1.18", "diffusion tensors")

SINGLE = "it computes in float64 and returns float32, whatever it is given"
DOUBTFUL = {
    **dict.fromkeys(("PB105", "PB303", "PB101", "PB413", "PB301"), SINGLE),
    **dict.fromkeys(("PB405", "PB406", "PB407", "PB408"), "torch.func does not take it: it has no setup_context"),
    **dict.fromkeys(("PB205", "PB117"), "the argument is saved for its size alone"),
    **dict.fromkeys(("PB503", "PB504", "PB505"), "a volume has nine channels in five dimensions"),
}


def _volume(name):
    from torchvectorized import nn
    from torchvectorized.utils import sym

    torch.manual_seed(0)
    x = torch.randn(1, 3, 3, 2, 1, 2)
    x = torch.einsum("bijdhw,bkjdhw->bikdhw", x, x) + 0.5 * torch.eye(3)[..., None, None, None]
    function = getattr(nn, name)
    return (lambda volume: function.apply(sym(volume))), (x.reshape(1, 9, 2, 1, 2),)


# First order right: differences.
def eigenvalues():
    return _volume("EigValsFunc")


# Wrong.
def logarithm():
    return _volume("LogmFunc")


# Wrong.
def exponential():
    return _volume("ExpmFunc")


# Wrong.
def both():
    return _volume("ExpmLogmFunc")


def _elsewhere(make):
    return Bug(
        "the backward puts a matrix on the GPU, wherever the volume is: on the CPU it raises, always",
        ("PB119", "PB101"),
        lambda: raises(lambda: gradients(make, None), "CUDA", "NVIDIA", "device"),
    )


CALLS = (
    Call(
        eigenvalues,
        bugs=(
            Bug(
                "the backward uses the eigenvectors of the forward: the second derivative is silently wrong",
                SECOND,
                partial(second_is_wrong_in_single, eigenvalues),
            ),
        ),
        doubtful=DOUBTFUL,
    ),
    *(Call(make, bugs=(_elsewhere(make),), doubtful=DOUBTFUL) for make in (logarithm, exponential, both)),
)

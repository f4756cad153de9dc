"""hippynn: what is known of its custom functions.

All three are covered, with the kernels of PyTorch that the package also compiles; each is the backward of another. Truth:
float64 central differences (below 4e-11, second order 3e-10), with repeated atoms.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import raises_in_autocast

PACKAGE = Package("hippynn", "0.1.3", "interatomic potentials")

VIEW = "the output is a view: changing it in place raises, with PyTorch's message on views"
REFUSED = "under autocast the forward refuses to add bfloat16 to float32, and says so"
DOUBTFUL = {"PB207": VIEW, "PB209": VIEW}

FIRST, SECOND = torch.tensor([0, 0, 1, 2, 2]), torch.tensor([1, 2, 0, 0, 1])


def _operation(name, *shapes):
    from hippynn.custom_kernels.env_pytorch import pytorch_kernels_wrapped

    function = getattr(pytorch_kernels_wrapped, name)

    def operation(a, b, first, second):
        return function(a, b, first, second)

    torch.manual_seed(0)
    return operation, (*(torch.randn(shape) for shape in shapes), FIRST, SECOND)


# First and second order right: differences (8e-12, 2e-10).
def envsum():
    return _operation("envsum", (5, 2), (3, 4))


# First and second order right: differences (4e-11, 2e-10).
def sensesum():
    return _operation("sensesum", (3, 2, 4), (3, 4))


# First and second order right: differences (9e-12, 2e-10).
def featsum():
    return _operation("featsum", (3, 2, 4), (5, 2))


CALLS = (
    Call(envsum, doubtful=DOUBTFUL),
    Call(
        sensesum,
        bugs=(
            Bug(
                "after a forward under autocast the backward raises: a bfloat16 cotangent meets float32",
                ("PB413",),
                partial(raises_in_autocast, sensesum, "scalar type"),
            ),
        ),
        doubtful=DOUBTFUL,
    ),
    Call(featsum, doubtful={**DOUBTFUL, "PB413": REFUSED}),
)

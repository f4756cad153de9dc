"""pylops: what is known of its custom function.

`_TorchOperator` is covered by `TorchOperator`, which applies it, with four operators. Truth: float64 central
differences. Double backward, strided inputs and cotangents, two backwards, checkpoints, changes in place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import second_is_wrong
from labels.outside import input_changes_with_output

PACKAGE = Package("pylops", "2.8.0", "linear operators of signal processing", ("scipy==1.17.1",))

NARROW = "NumPy has no bfloat16: the forward says so"
DOUBTFUL = {
    **dict.fromkeys(("PB119", "PB413", "PB105"), NARROW),
    "PB103": "the backward returns one None too many, which PyTorch drops",
    **dict.fromkeys(("PB406", "PB408", "PB405"), "torch.func and a vectorised backward raise: NumPy takes no batch"),
}


def _operator(operator, *shape, **options):
    import pylops

    torch.manual_seed(0)
    return pylops.TorchOperator(operator, **options), (torch.randn(*shape, dtype=torch.float64),)


# First order right: differences.
def matrix():
    import pylops

    torch.manual_seed(1)
    return _operator(pylops.MatrixMult(torch.randn(4, 3, dtype=torch.float64).numpy()), 2, 3, batch=True)


# First order right: differences.
def second_derivative():
    import pylops

    return _operator(pylops.SecondDerivative((5, 4), axis=0), 5, 4, flatten=False)


# First order right: differences.
def fourier():
    from pylops.signalprocessing import FFT

    return _operator(FFT(8, real=True), 8)


# First order right.
def identity():
    import pylops

    return _operator(pylops.Identity(6), 6)


def _cut(make):
    return Bug(
        "the backward goes through NumPy and returns a new leaf: the second derivative is silently wrong",
        ("PB401", "PB402", "PB604"),
        partial(second_is_wrong, make),
    )


CALLS = (
    *(Call(make, bugs=(_cut(make),), doubtful=DOUBTFUL) for make in (matrix, second_derivative)),
    Call(
        fourier,
        bugs=(_cut(fourier),),
        doubtful=DOUBTFUL,
        judged={
            "PB502": (True, "a cotangent that is conjugated lazily, as y.conj() gives one, raises: it goes to NumPy")
        },
    ),
    Call(
        identity,
        bugs=(
            _cut(identity),
            Bug(
                "the output lies in the input's memory, and autograd is not told: changing one silently changes the other",
                ("PB207",),
                partial(input_changes_with_output, identity),
            ),
        ),
        doubtful=DOUBTFUL,
    ),
)

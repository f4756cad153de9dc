"""sigpy: what is known of its custom function.

`LinopFunction`, made anew for each linear operator, is covered with five operators. Truth: float64 central differences.
Double backward, strided inputs and cotangents, two backwards, checkpoints, changes in place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import second_is_wrong

PACKAGE = Package(
    "sigpy", "0.1.27", "MRI", ("numba==0.68.1", "llvmlite==0.50.0", "PyWavelets", "tqdm", "scipy==1.17.1")
)

NARROW = "NumPy has no bfloat16, and complex numbers no half precision: the forward says so"
DOUBTFUL = {
    **dict.fromkeys(("PB119", "PB413", "PB105"), NARROW),
    "PB408": "a vectorised backward raises: NumPy takes no batch",
    "PB406": "torch.func does not take it: it has no setup_context",
    "PB303": "an interpolation of the non-uniform transform is known to some digits only",
}


def _function(linop, *is_complex):
    from sigpy.pytorch import to_pytorch_function

    torch.manual_seed(0)
    return to_pytorch_function(linop, *is_complex)


# First order right: differences.
def fourier():
    from sigpy import linop

    return _function(linop.FFT((4, 6)), True, True), (torch.randn(4, 6, 2),)


# First order right: differences.
def finite_differences():
    from sigpy import linop

    return _function(linop.FiniteDifference((4, 6))), (torch.randn(4, 6),)


# First order right: differences.
def reshape():
    from sigpy import linop

    return _function(linop.Reshape((24,), (4, 6))), (torch.randn(4, 6),)


# First order right: differences.
def sensitivities():
    from sigpy import linop

    torch.manual_seed(1)
    maps = torch.randn(3, 4, 4, dtype=torch.complex64).numpy()
    operator = linop.FFT((3, 4, 4), axes=(-1, -2)) * linop.Multiply((4, 4), maps)
    return _function(operator, True, True), (torch.randn(4, 4, 2),)


# First order right: differences.
def non_uniform_fourier():
    from sigpy import linop

    torch.manual_seed(1)
    points = (4 * torch.rand(7, 2) - 2).numpy()
    return _function(linop.NUFFT((4, 4), points), True, True), (torch.randn(4, 4, 2),)


def input_changes_with_output():
    """Whether an ordinary change of the output in place changes the input, and its version does not tell."""
    function, (x,) = reshape()
    x.requires_grad_()
    before, version = x.detach().clone(), x._version
    function.apply(x).mul_(2)
    return torch.equal(x.detach(), 2 * before) and x._version == version


def _cut(make):
    return Bug(
        "the backward goes through NumPy and returns a new leaf: the second derivative is silently wrong",
        ("PB401", "PB402", "PB604"),
        partial(second_is_wrong, make),
    )


CALLS = (
    *(
        Call(make, bugs=(_cut(make),), doubtful=DOUBTFUL)
        for make in (fourier, finite_differences, sensitivities, non_uniform_fourier)
    ),
    Call(
        reshape,
        bugs=(
            _cut(reshape),
            Bug(
                "the output lies in the input's memory, and autograd is not told: changing one silently changes the other",
                ("PB207",),
                input_changes_with_output,
            ),
        ),
        doubtful=DOUBTFUL,
    ),
)

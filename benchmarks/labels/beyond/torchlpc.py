"""torchlpc: what is known of its custom functions.

`LPC` is covered with two orders, with a state at rest, and with complex numbers; the other function needs a GPU. Truth:
float64 central differences of first and second derivatives, for complex numbers `torch.autograd.gradcheck`, and
`gradgradcheck`; forward mode, `torch.func`, each argument frozen, strided inputs and cotangents, two backwards,
checkpoints, changes in place, a single step, fewer steps than coefficients.
"""

import torch

from labels import Call, Package

PACKAGE = Package("torchlpc", "0.6", "audio", ("numba==0.68.1", "llvmlite==0.50.0"))

NARROW = "NumPy has no bfloat16, and Numba no half precision: the forward says so"
DOUBTFUL = {
    **dict.fromkeys(("PB119", "PB413", "PB105"), NARROW),
    "PB408": "a vectorised backward by the old interface raises; that of torch.func is right",
    "PB303": "a recursion in float32 is known to some digits only",
}


def _arguments(order, dtype=torch.float64):
    torch.manual_seed(0)
    return (
        torch.randn(2, 7, dtype=dtype),
        0.3 * torch.randn(2, 7, order, dtype=dtype),
        torch.randn(2, order, dtype=dtype),
    )


# Right, twice: differences.
def two_coefficients():
    from torchlpc.core import LPC

    return LPC, _arguments(2)


# Right, twice: differences.
def one_coefficient():
    from torchlpc import sample_wise_lpc

    return sample_wise_lpc, _arguments(1)


# Right, twice: differences.
def at_rest():
    from torchlpc import sample_wise_lpc

    return (lambda x, a: sample_wise_lpc(x, a)), _arguments(3)[:2]


# Right, twice: gradcheck and gradgradcheck.
def complex_coefficients():
    from torchlpc.core import LPC

    return LPC, _arguments(2, torch.complex128)


CALLS = tuple(
    Call(make, doubtful=DOUBTFUL) for make in (two_coefficients, one_coefficient, at_rest, complex_coefficients)
)

"""meent: what is known of its custom functions.

Two of three are covered (the third, `Compress`, is empty and says that it is not to be used): the eigenvectors are
normalised, as any quantity that they are used for does not depend on their length and phase. Truth: float64 central
differences (real and imaginary parts; below 3e-10, second order 9e-10).
"""

import torch

from labels import Call, Package

PACKAGE = Package("meent", "0.13.2", "wave optics")

BROAD = "by design: a gap of eigenvalues is broadened, so that the gradient stays finite where two are (nearly) equal"
NARROW = "float16 and bfloat16 are refused: no eigenvalues in that width"
SAVED = "the output is saved: changing it in place raises, with PyTorch's message"
PHASE = "without the normalisation, length and phase of eigenvectors are arbitrary"
EIGEN = {
    "PB303": BROAD,
    "PB301": BROAD,
    "PB302": BROAD,
    "PB305": BROAD,
    "PB413": NARROW,
    "PB209": SAVED,
    "PB109": PHASE,
}
SINGULAR = "documented: the derivative is that of the inverse, exact where the matrix is (nearly) invertible"
INVERSE = {"PB303": SINGULAR, "PB305": SINGULAR, "PB101": SINGULAR, "PB413": NARROW, "PB209": SAVED}


def _matrix(dtype):
    torch.manual_seed(0)
    return torch.randn(4, 4, dtype=torch.complex128).to(dtype)


def _eigenpairs(matrix):
    from meent.on_torch.emsolver.primitives import Eig

    values, vectors = Eig.apply(matrix)
    return values, vectors / vectors[:1]


# First and second order right: differences (1e-10, 3e-10).
def eigenpairs():
    return _eigenpairs, (_matrix(torch.complex128),)


# First and second order right: differences (3e-10, 9e-10).
def eigenpairs_of_real():
    return _eigenpairs, (_matrix(torch.complex128).real.clone(),)


def _inverse():
    from meent.on_torch.emsolver.primitives import RobustPinv

    return RobustPinv


# First and second order right: differences (4e-10, 2e-9).
def inverse():
    return _inverse(), (_matrix(torch.complex128),)


# First and second order right: differences (1e-9).
def inverse_of_real_batch():
    torch.manual_seed(0)
    return _inverse(), (torch.randn(2, 3, 3) + 2 * torch.eye(3),)


CALLS = (
    Call(eigenpairs, doubtful=EIGEN),
    Call(eigenpairs_of_real, doubtful=EIGEN),
    Call(
        inverse,
        doubtful=INVERSE,
        judged={
            "PB409": (True, "aot_eager computes another value, too, off by 2.9: PyTorch's own, for complex matrices")
        },
    ),
    Call(inverse_of_real_batch, doubtful=INVERSE),
)

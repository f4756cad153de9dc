"""torcwa: what is known of its custom function.

It has one, the eigendecomposition of a complex matrix; the eigenvectors are normalised, as any quantity that they are
used for does not depend on their length and phase. Truth: float64 central differences (real and imaginary parts; below
2e-10, second order 3e-10).
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import far, is_kept

PACKAGE = Package("torcwa", "0.1.4.2", "wave optics")

BROAD = "documented: a gap of eigenvalues is broadened, so that the gradient stays finite where two are (nearly) equal"
DOUBTFUL = {"PB303": BROAD, "PB301": BROAD, "PB302": BROAD, "PB305": BROAD}


# First and second order right: differences (1e-10, 3e-10).
def eigenpairs():
    from torcwa.torch_eig import Eig

    def eigenpairs(matrix):
        values, vectors = Eig.apply(matrix)
        return values, vectors / vectors[:1]

    torch.manual_seed(0)
    return eigenpairs, (torch.randn(4, 4, dtype=torch.complex128),)


# First and second order right: differences (1e-10).
def eigenvalues():
    from torcwa.torch_eig import Eig

    def eigenvalues(matrix):
        return Eig.apply(matrix)[0]

    torch.manual_seed(0)
    return eigenvalues, (torch.randn(4, 4, dtype=torch.complex128),)


def value_change_is_unnoticed():
    function, (matrix,) = eigenpairs()
    matrix.requires_grad_()
    values, vectors = function(matrix)
    values.mul_(2)
    weight = torch.arange(16.0).view(4, 4)
    (found,) = torch.autograd.grad((vectors * weight).real.sum() + (values / 2).real.sum(), matrix)
    _, vectors = function(matrix)
    (expected,) = torch.autograd.grad((vectors * weight).real.sum() + function(matrix)[0].real.sum(), matrix)
    return far(found, expected, 0.01)


def _bugs(make):
    return (
        Bug(
            "eigenvalues and -vectors are kept on ctx, in a reference cycle: they are not freed before the garbage "
            "collector runs",
            ("PB204", "PB201"),
            partial(is_kept, make),
        ),
        Bug(
            "eigenvalues and -vectors are kept on ctx: changing them in place silently changes the gradient",
            ("PB209", "PB201"),
            value_change_is_unnoticed,
        ),
    )


CALLS = (
    Call(eigenpairs, bugs=_bugs(eigenpairs), doubtful=DOUBTFUL),
    Call(
        eigenvalues,
        bugs=_bugs(eigenvalues)[:1],
        doubtful=DOUBTFUL,
        judged={"PB209": (True, "the eigenvalues are kept on ctx: changed in place, they change the gradient")},
    ),
)

"""torchspin: what is known of its custom function.

`_EighDegenerateSafe` is covered by `eigh`, which applies it, with complex and real matrices, and with equal eigenvalues.
Eigenvectors enter as they do in a spectrum, where their phase does not matter. Truth: float64 central differences.
Double backward, strided inputs and cotangents, two backwards, checkpoints, changes in place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import first_is_wrong

PACKAGE = Package("torchspin", "0.6.0", "electron spin resonance", ("scipy==1.17.1",))

EQUAL = "where two levels are equal, they and their vectors have no derivative of their own"
DOUBTFUL = {
    **dict.fromkeys(("PB405", "PB406", "PB407"), "torch.func does not take it: it has no setup_context"),
    **dict.fromkeys(("PB301", "PB302", "PB304", "PB305", "PB303"), EQUAL),
    "PB105": "LAPACK has no half precision, and PyTorch says so",
}


def _parts():
    torch.manual_seed(0)
    return (torch.randn(3, 2, 4, 4, dtype=torch.float64),)


def _decomposed(h):
    from torchspin._linalg import eigh

    h = torch.complex(h[:, 0], h[:, 1])
    return eigh(h + h.mH)


# Right, twice: differences.
def levels():
    return (lambda h: _decomposed(h)[0]), _parts()


# Right, twice: differences.
def intensities():
    def spectrum(h):
        values, vectors = _decomposed(h)
        return values, vectors.abs().square()

    return spectrum, _parts()


def _density(h):
    from torchspin._linalg import eigh

    values, vectors = eigh(h + h.mT)
    return (vectors * torch.exp(-values).unsqueeze(-2)) @ vectors.mT


# Right, twice: differences.
def density():
    torch.manual_seed(0)
    return _density, (torch.randn(3, 4, 4, dtype=torch.float64),)


# Wrong.
def degenerate():
    return _density, (torch.diag(torch.tensor([0.5, 0.5, 1.0], dtype=torch.float64)),)


CALLS = (
    *(Call(make, doubtful=DOUBTFUL) for make in (levels, intensities)),
    Call(density, doubtful=DOUBTFUL, judged={"PB101": (True, "of zeros, whose levels are equal, as in `degenerate`")}),
    Call(
        degenerate,
        bugs=(
            Bug(
                "where two levels are equal, a change that mixes them gets 0, though the density changes with it: silently",
                ("PB101", "PB302", "PB303", "PB305", "PB401", "PB404"),
                partial(first_is_wrong, degenerate, 0),
            ),
        ),
        doubtful=DOUBTFUL,
        judged={"PB102": (True, "there the tangent is NaN")},
    ),
)

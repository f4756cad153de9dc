"""pytorch-finufft: what is known of its custom functions.

`FinufftType1` and `FinufftType2` are covered with planes, in batches, in both orders of the modes, as their functions
apply them; read and compared in one and three dimensions, too. Truth: float64 central differences, with values as
pairs of real numbers. Double backward, strided, expanded and lazily conjugated inputs and cotangents, arguments
frozen, two backwards, checkpoints, changes in place, sizes of 1.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import raises, second_is_wrong

PACKAGE = Package("pytorch-finufft", "0.1.0", "MRI", ("finufft==2.5.1", "scipy==1.17.1"))

NARROW = "points and values must be of one precision, single or double: the forward says so"
DOUBTFUL = {
    **dict.fromkeys(("PB105", "PB413"), NARROW),
    "PB103": "two None too many, which autograd drops",
    "PB104": "points of one dimension get a gradient of two, which autograd reduces",
    **dict.fromkeys(("PB405", "PB406", "PB408"), "a transformed backward raises: NumPy takes no wrapped tensor"),
    "PB207": "the output is a view of what NumPy made: changing it in place raises, with PyTorch's message on views",
    **dict.fromkeys(("PB409", "PB410", "PB415"), "NumPy is not traced"),
    "PB303": "a non-uniform transform is known to the digits that it was asked for",
}


def _points(dim, points=7):
    torch.manual_seed(0)
    return 6 * torch.rand(dim, points, dtype=torch.float64) - 3


def _type1(dim, batch, shape, **options):
    from pytorch_finufft.functional import finufft_type1

    points = _points(dim)
    values = torch.randn(*batch, 7, dtype=torch.complex128)
    return (lambda p, v: finufft_type1(p, v, shape, eps=1e-12, **options)), (points, values)


def _type2(batch, shape, points=7, **options):
    from pytorch_finufft.functional import finufft_type2

    where = _points(len(shape), points)
    targets = torch.randn(*batch, *shape, dtype=torch.complex128)
    return (lambda p, t: finufft_type2(p, t, eps=1e-12, **options)), (where, targets)


# First order right: differences.
def to_planes():
    return _type1(2, (3,), (4, 5))


# First order right: differences.
def to_centred_modes():
    return _type1(2, (), (4, 5), modeord=0, isign=1)


# First order right: differences.
def planes_to_points():
    return _type2((3,), (4, 5))


def _backward(make, cotangent=torch.ones_like):
    function, arguments = make()
    y = function(*[a.requires_grad_() for a in arguments])
    y.backward(cotangent(y))


def _lazily_conjugated(y):
    return torch.full_like(y, 1 + 1j).conj()


def _cut(make):
    return Bug(
        "the transforms of the backward go through NumPy: the second derivative by the points is silently wrong",
        ("PB401", "PB402", "PB604"),
        partial(second_is_wrong, make),
    )


def _one(make, texts):
    return Bug(
        "the backward drops sizes of 1, also that of a mode or of the points: it raises",
        ("PB119", "PB504"),
        lambda: raises(lambda: _backward(make), *texts),
    )


def _conjugated(make):
    return Bug(
        "where the cotangent is lazily conjugated, as y.conj() makes it, the backward raises",
        ("PB119", "PB502", "PB116"),
        lambda: raises(lambda: _backward(make, _lazily_conjugated), "conjugate bit"),
    )


ONE_MODE = _one(lambda: _type1(2, (3,), (1, 5)), ("is invalid for input", "FINUFFT"))
ONE_POINT = _one(lambda: _type2((), (4, 5), 1), ("FINUFFT c.ndim",))

CALLS = (
    Call(to_planes, bugs=(_cut(to_planes), ONE_MODE), doubtful=DOUBTFUL),
    Call(
        to_centred_modes,
        bugs=(_cut(to_centred_modes), ONE_MODE, _conjugated(to_centred_modes)),
        doubtful=DOUBTFUL,
    ),
    Call(
        planes_to_points,
        bugs=(_cut(planes_to_points), ONE_POINT, _conjugated(planes_to_points)),
        doubtful=DOUBTFUL,
    ),
)

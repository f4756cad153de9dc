"""torch-linode: what is known of its custom function.

`_Adjoint` is covered by `odeint_adjoint`, which applies it, with both integrators, and both ways to look up the
solution between the steps. Truth: float64 central differences, and for a constant matrix its exponential. Double
backward, strided inputs and cotangents, frozen arguments, two backwards, checkpoints, changes in place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import first_is_wrong, raises_when_frozen, second_is_wrong

PACKAGE = Package("torch-linode", "0.3.0", "linear differential equations", ("scipy==1.17.1",))

STEPS = "as exact as the steps of the solver"
DOUBTFUL = {
    **dict.fromkeys(("PB405", "PB406", "PB407"), "torch.func does not take it: it has no setup_context"),
    **dict.fromkeys(("PB408", "PB409"), "the solver looks at its error after each step"),
    "PB207": "the output is a view: changing it in place raises, with PyTorch's message on views",
    **dict.fromkeys(
        ("PB105", "PB413", "PB119"),
        "neither the matrices nor the steps are made for half precision, and PyTorch says so",
    ),
    **dict.fromkeys(("PB303", "PB601"), STEPS),
}
NAIVE = {"dense_output_method": "naive"}


def _homogeneous(t, p):
    t = torch.as_tensor(t, dtype=p.dtype)
    return torch.sin(t)[..., None, None] * p - 0.5 * p.mT


def _forced(t, p):
    t = torch.as_tensor(t, dtype=p.dtype)
    return torch.sin(t)[..., None, None] * p, torch.cos(t)[..., None] * p[0]


def _rotation(t, p):
    t = torch.as_tensor(t, dtype=p.dtype)
    return (p - p.mT) + 0 * t[..., None, None]


def _call(system, until=1.0, scale=1.0, **options):
    from torch_linode import odeint_adjoint

    def solve(y, p):
        return odeint_adjoint(system, y, torch.linspace(0, until, 3, dtype=y.dtype), p, **options)

    torch.manual_seed(0)
    return solve, (torch.randn(3, dtype=torch.float64), scale * torch.randn(3, 3, dtype=torch.float64))


# First order right: differences.
def homogeneous():
    return _call(_homogeneous, **NAIVE)


# First order right: differences.
def by_gauss_legendre():
    return _call(_homogeneous, quad_method="gl", **NAIVE)


# First order right: differences.
def forced():
    return _call(_forced, method="glrk", **NAIVE)


# Wrong.
def rotation():
    return _call(_rotation, 4.0, 3.0)


def _frozen(make):
    return Bug(
        "where the parameters need no gradient, the backward differentiates by none, and raises",
        ("PB113", "PB119"),
        partial(raises_when_frozen, make, 0, "leaves"),
    )


def _cut(make):
    return Bug(
        "the backward integrates without a graph of the parameters: the second derivative is silently wrong",
        ("PB401", "PB402", "PB403", "PB404", "PB604"),
        partial(second_is_wrong, make, 1),
    )


CALLS = (
    Call(homogeneous, bugs=(_cut(homogeneous), _frozen(homogeneous)), doubtful=DOUBTFUL),
    Call(
        by_gauss_legendre,
        bugs=(_cut(by_gauss_legendre),),
        doubtful=DOUBTFUL,
        judged={"PB109": (False, "the steps are chosen by the cotangent, up to a tolerance")},
    ),
    Call(forced, bugs=(_cut(forced), _frozen(forced)), doubtful=DOUBTFUL),
    Call(
        rotation,
        bugs=(
            Bug(
                "the solution between the steps is a polynomial, whose error is in no tolerance: silently, another gradient",
                ("PB101", "PB303"),
                partial(first_is_wrong, rotation, 1, 0.1),
            ),
            _frozen(rotation),
        ),
        doubtful=DOUBTFUL | dict.fromkeys(("PB401", "PB404"), "what the first derivative has wrong"),
    ),
)

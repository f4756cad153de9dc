"""mlipops: what is known of its custom function.

`ReciprocalFunction` is covered by the sum that applies it, in single precision, which it always uses: charges, a batch
of two systems of charges, and dipoles with splines of the orders 5 and 4. Truth: central differences, with a step of
1e-2. Double backward, strided inputs, two backwards, frozen arguments, checkpoints.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.beyond import second_is_wrong_in_single
from labels.fresh import called, first_is_wrong, gradients, linear, prepared, raises

PACKAGE = Package("mlipops", "0.6.0", "molecular simulation")

SINGLE = "in single precision: the forward says so"
SETUP = "torch.func does not take it: it has no setup_context"
BOX = "documented: by the box it is not differentiable"
GRID = "the grid of charges is a spline: sums of single precision"
DOUBTFUL = {
    **dict.fromkeys(("PB105", "PB413"), SINGLE),
    **dict.fromkeys(("PB107", "PB118"), BOX),
    **dict.fromkeys(("PB303", "PB301", "PB302", "PB503"), GRID),
    **dict.fromkeys(("PB405", "PB406", "PB407", "PB408"), SETUP),
}


def _sum(multipole, order, systems):
    from mlipops import NeighborList
    from mlipops.coulombpme import CoulombPME, ReciprocalFunction

    pme = CoulombPME(NeighborList(1.0), None, 8, 9, 10, order, 3.0, 1.0, max_multipole=multipole)
    torch.manual_seed(0)
    positions, charges, dipoles = 3 * torch.rand(4, 3), torch.randn(4), torch.randn(4, 3)
    box, batch = torch.diag(torch.tensor([2.0, 2.2, 2.5])), None
    if systems > 1:
        box, batch = box.expand(systems, 3, 3).contiguous(), torch.arange(4) // (4 // systems)

    def call(positions, charges, dipoles=None):
        return ReciprocalFunction.apply(pme, positions, charges, dipoles, box, batch, systems)

    return call, (positions, charges - charges.mean(), *([dipoles] if multipole == "dipole" else []))


# First order right: differences.
def charges():
    return _sum("charge", 5, 1)


# Wrong.
def batch_of_charges():
    return _sum("charge", 5, 2)


# First order right: differences.
def dipoles():
    return _sum("dipole", 5, 1)


# Wrong.
def dipoles_of_order_four():
    return _sum("dipole", 4, 1)


def _backward_of_one(make, free):
    function, arguments, which = prepared(make, torch.float32)
    arguments[which[free]].requires_grad_()
    linear(called(function, arguments)).backward()


def _second(make):
    return Bug(
        "the backward uses values of the forward: the second derivative, for which an error is promised, is silently wrong",
        ("PB401", "PB402", "PB404", "PB604"),
        partial(second_is_wrong_in_single, make),
    )


def _frozen(make):
    return Bug(
        "where the positions are frozen, the backward reads a variable that it has not set: it raises",
        ("PB113", "PB119"),
        lambda: raises(lambda: _backward_of_one(make, 1), "pos_deriv"),
    )


CALLS = (
    Call(charges, bugs=(_second(charges),), doubtful=DOUBTFUL),
    Call(
        batch_of_charges,
        bugs=(
            Bug(
                "the cotangents of the systems are multiplied by the gradients of the charges: it raises",
                ("PB119", "PB101"),
                lambda: raises(lambda: gradients(batch_of_charges, torch.float32), "must match the size"),
            ),
        ),
        doubtful=DOUBTFUL,
    ),
    Call(dipoles, bugs=(_second(dipoles), _frozen(dipoles)), doubtful=DOUBTFUL),
    Call(
        dipoles_of_order_four,
        bugs=(
            Bug(
                "the second derivatives of the splines are those of order 5, whatever the order is",
                ("PB101",),
                partial(first_is_wrong, dipoles_of_order_four, 0, 0.2, torch.float32, 1e-2),
            ),
            _second(dipoles_of_order_four),
            _frozen(dipoles_of_order_four),
        ),
        doubtful=DOUBTFUL,
    ),
)

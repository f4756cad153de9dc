"""torchcurves: what is known of its custom function.

`_BSplineFunction` is covered by the function that applies it: of control points alone, for three degrees and with
knots of its own, and of parameters and control points. Truth: float64 central differences. Double backward, strided
inputs and cotangents, two backwards, checkpoints, changes in place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import second_raises

PACKAGE = Package("torchcurves", "0.3.3", "spline curves")

VIEW = "the output is a squeezed view: changing it in place raises, with PyTorch's message on views"
KNOT = "at a knot the curve may have a kink"
KNOTS = "by its knots a curve is not differentiable here"
SETUP = "torch.func does not take it: it has no setup_context"
DOUBTFUL = {"PB207": VIEW, "PB107": KNOTS, "PB118": KNOTS, **dict.fromkeys(("PB405", "PB406", "PB407"), SETUP)}


def _parameters():
    torch.manual_seed(0)
    return 2 * torch.rand(7, 2) - 1


def _points(degree):
    from torchcurves.functional import bspline_curves

    u = _parameters()
    return (lambda points: bspline_curves(u.to(points.dtype), points, None, degree)), (torch.randn(2, 6, 3),)


# Right, twice: differences.
def cubic_points():
    return _points(3)


# Right, twice: differences.
def linear_points():
    return _points(1)


# Right, twice: differences.
def quadratic_points_with_knots():
    from torchcurves.functional import bspline_curves

    u, knots = _parameters(), torch.tensor([-1.0, -1.0, -1.0, -0.6, 0.1, 0.3, 1.0, 1.0, 1.0])

    def call(points):
        return bspline_curves(u.to(points), points, knots.to(points), 2)

    return call, (torch.randn(2, 6, 3),)


# First order right: differences.
def parameters_and_points():
    from torchcurves.functional import bspline_curves

    return bspline_curves, (_parameters(), torch.randn(2, 6, 3))


CALLS = (
    Call(cubic_points, doubtful=DOUBTFUL),
    Call(linear_points, doubtful=DOUBTFUL),
    Call(
        quadratic_points_with_knots,
        doubtful=DOUBTFUL,
        judged={"PB119": (False, "fewer points than the knots are for: the forward takes them by accident")},
    ),
    Call(
        parameters_and_points,
        bugs=(
            Bug(
                "the backward writes to tensors given as out=, which double backward refuses: it raises",
                ("PB403", "PB401", "PB404"),
                partial(second_raises, parameters_and_points, "out=... arguments"),
            ),
        ),
        doubtful={**DOUBTFUL, "PB305": KNOT, "PB303": KNOT},
    ),
)

"""hypll: what is known of its custom function.

It has one, the Fréchet mean in the Poincaré ball, called here through `frechet_mean` and `frechet_variance`. Truth:
float64 central differences of points and curvature (below 1e-8, to the tolerance of the iteration), for other positions
of the dimensions, for points on a line, for equal points.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import far, gradients, raises, second_is_wrong

PACKAGE = Package("hypll", "0.1.1", "hyperbolic geometry")

VIEW = (
    "input and output are saved as views, or are views: changing them in place raises, with PyTorch's message on views"
)
NARROW = "float16 and bfloat16 are refused by a KeyError: they have no tolerance"
BATCH = "a vectorised backward raises"
EQUAL = "where all points are equal, the gradient of the curvature is not quite 0"
DOUBTFUL = {"PB207": VIEW, "PB209": VIEW, "PB413": NARROW, "PB408": BATCH, "PB303": EQUAL, "PB302": EQUAL}


def _points(*shape):
    torch.manual_seed(0)
    x = torch.randn(*shape)
    return 0.6 * x / (1 + x.norm(dim=-1, keepdim=True))


def _call(name, shape, **options):
    import hypll.manifolds.poincare_ball.math.stats as stats

    function = getattr(stats, name)

    def call(x, c):
        return function(x, c, **options)

    return call, (_points(*shape), torch.tensor(1.0))


# First order right: differences (5e-11).
def mean():
    return _call("frechet_mean", (5, 3))


# First order right: differences (1e-8).
def mean_of_batch():
    return _call("frechet_mean", (2, 5, 3), batch_dim=1)


# First and second order right: differences (2e-10).
def variance():
    return _call("frechet_variance", (5, 3))


# The backward never works.
def variance_of_batch():
    return _call("frechet_variance", (2, 5, 3), batch_dim=1)


def float32_is_far_off(name, part):
    """Whether a part of ten samples of points that lie close together have a value in float32 that is off by a tenth."""
    function, _ = _call(name, (4, 3))
    off = 0
    for seed in range(10):
        torch.manual_seed(seed)
        points = torch.tensor([0.1, 0.2, -0.1]) + 1e-4 * torch.randn(4, 3)
        exact = function(points.double(), torch.tensor(1.0, dtype=torch.float64))
        off += far(function(points, torch.tensor(1.0)).double(), exact, 0.1)
    return off > part * 10


def _close(name, part, how_often):
    return Bug(
        f"in float32 the value is {how_often} off by more than a tenth where points are 1e-4 apart: their distances are 0",
        ("PB303", "PB301", "PB302", "PB101"),
        partial(float32_is_far_off, name, part),
    )


def _lost(make):
    return Bug(
        "the gradient comes without a graph under create_graph: what it adds to a second derivative is lost",
        ("PB401", "PB404", "PB403", "PB604"),
        partial(second_is_wrong, make),
    )


CALLS = (
    Call(mean, bugs=(_close("frechet_mean", 0, "now and then"), _lost(mean)), doubtful=DOUBTFUL),
    Call(mean_of_batch, bugs=(_lost(mean_of_batch),), doubtful=DOUBTFUL),
    Call(variance, bugs=(_close("frechet_variance", 0.5, "nearly always"),), doubtful=DOUBTFUL),
    Call(
        variance_of_batch,
        bugs=(
            Bug(
                "with keepdim, which the variance asks for, and a batch before the points the backward raises",
                ("PB119", "PB104"),
                partial(raises, partial(gradients, variance_of_batch), "Mismatch in shape"),
            ),
        ),
        doubtful=DOUBTFUL,
    ),
)

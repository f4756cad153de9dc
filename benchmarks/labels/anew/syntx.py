"""syntx: what is known of its custom functions.

All three are covered. Truth: float64 central differences. Double backward, strided inputs and cotangents, two
backwards, checkpoints, changes in place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.anew import SECOND, cut
from labels.blind import bare
from labels.fresh import first_is_wrong

PACKAGE = Package("syntx", "5.4.15", "registration of medical images", ("scipy==1.17.1",))

PSEUDO = "by design: the toolkit's pseudo-derivative"
SAMPLED = "by design: the image's own gradient is sampled in the place of the sample's, and the image gets none"


def _images():
    bare("syntx", "syntx.core")
    torch.manual_seed(0)
    return torch.rand(1, 1, 7, 6), torch.rand(1, 1, 7, 6)


# Wrong.
def correlation():
    images = _images()
    from syntx.core.losses import AnalyticalLNCC

    return AnalyticalLNCC, (*images, None, 3)


def pseudo():
    images = _images()
    from syntx.core.losses import ANTsPseudoLNCC

    return ANTsPseudoLNCC, (*images, None, 3)


def sampled():
    image, _ = _images()
    from syntx.core.grid import AnalyticalGridSample

    torch.manual_seed(1)
    return AnalyticalGridSample, (image, 1.6 * torch.rand(1, 4, 3, 2) - 0.8, "bilinear", "border", True)


def _slopes_the_other_way():
    """Whether the gradient near the border of a ramp has the sign of what lies on the opposite side."""
    function, _ = sampled()
    image = torch.arange(6.0, dtype=torch.float64).expand(1, 1, 7, 6)
    grid = torch.tensor([[[[-0.99, 0.0]]]], dtype=torch.float64, requires_grad=True)
    found, expected = (
        torch.autograd.grad(f(image, grid, "bilinear", "border", True).sum(), grid)[0][..., 0]
        for f in (function.apply, torch.nn.functional.grid_sample)
    )
    return bool(found < 0 < expected)


CALLS = (
    Call(
        correlation,
        bugs=(
            Bug(
                "called exact, the gradient leaves out the windows that a pixel lies in without being their middle",
                ("PB101",),
                partial(first_is_wrong, correlation, 0),
            ),
            cut(correlation, "the backward uses intermediates of the forward"),
        ),
    ),
    Call(
        pseudo,
        "other",
        doubtful=dict.fromkeys((*SECOND, "PB101", "PB110", "PB305", "PB303"), PSEUDO),
    ),
    Call(
        sampled,
        "other",
        bugs=(
            Bug(
                "the image's gradient wraps around: near the border the gradient silently has the wrong sign",
                ("PB101",),
                _slopes_the_other_way,
            ),
        ),
        doubtful=dict.fromkeys((*SECOND, "PB107", "PB106", "PB305", "PB101"), SAMPLED),
    ),
)

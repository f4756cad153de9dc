"""torch-interpol: what is known of its custom functions.

All six are covered, called through the package's own functions. Truth: float64 central differences, with the splines of
order 1 to 3 (filter: 2, 3, 5) and the boundary conditions zero, replicate, dct1, dct2, dst1, dst2 and dft, at points
within and beyond the image, with `extrapolate` and without: all below 2e-10 but for what is labelled.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import first_is_wrong, gradients, raises

PACKAGE = Package("torch-interpol", "0.3.0", "medical images")

SCRIPT = (
    "double backward raises, from TorchScript (out=, views changed in place), without saying that it isn't supported"
)
VIEW = "the output is a view: changing it in place raises, with PyTorch's message on views"
BATCH = "a vectorised backward raises: it scatters in place"
KINK = "linear interpolation has kinks at the voxels; its derivative there is that of one side"
DOUBTFUL = {"PB403": SCRIPT, "PB207": VIEW, "PB408": BATCH, "PB305": KINK}
WIDTH = "the filter runs in float16 and bfloat16 as well as those hold it"


def _image():
    torch.manual_seed(0)
    return torch.randn(1, 2, 5, 6)


def _grid(spread=1.0):
    torch.manual_seed(1)
    points = torch.rand(1, 3, 4, 2) * (torch.tensor([5.0, 6.0]) - 2) + 0.6
    return 2.5 + spread * (points - 2.5)


# First order right: differences (4e-11).
def pull_linear():
    from interpol import grid_pull

    def pull(image, grid):
        return grid_pull(image, grid, interpolation="linear", bound="dct2", extrapolate=True)

    return pull, (_image(), _grid())


# First order right: differences (8e-11).
def pull_cubic_beyond_the_image():
    from interpol import grid_pull

    def pull(image, grid):
        return grid_pull(image, grid, interpolation=3, bound="dst2", extrapolate=True)

    return pull, (_image(), _grid(2.0))


# First order right: differences (9e-11).
def push_cubic():
    from interpol import grid_push

    def push(values, grid):
        return grid_push(values, grid, shape=(5, 6), interpolation=3, bound="dct1", extrapolate=True)

    torch.manual_seed(0)
    return push, (torch.randn(1, 2, 3, 4), _grid())


# First order right: differences (7e-11).
def count_quadratic():
    from interpol import grid_count

    def count(grid):
        return grid_count(grid, shape=(5, 6), interpolation=2, bound="dct2", extrapolate=True)

    return count, (_grid(),)


# First order right: differences (4e-11).
def gradient_cubic():
    from interpol import grid_grad

    def gradient(image, grid):
        return grid_grad(image, grid, interpolation=3, bound="dct2", extrapolate=True)

    return gradient, (_image(), _grid())


# The backward never works.
def coefficients():
    from interpol import spline_coeff

    def coefficients(image):
        return spline_coeff(image, interpolation=3, bound="dct2")

    return coefficients, (_image(),)


def _coefficients_nd(bound):
    from interpol import spline_coeff_nd

    def coefficients(image):
        return spline_coeff_nd(image, interpolation=3, bound=bound, dim=2)

    return coefficients, (_image(),)


# First and second order right: differences (6e-11, 9e-10).
def coefficients_nd():
    return _coefficients_nd("dct2")


# First and second order right: differences (9e-11, 8e-10).
def coefficients_nd_periodic():
    return _coefficients_nd("dft")


# Wrong: differences. The filter is its own transpose with the other two boundary conditions, not with this one.
def coefficients_nd_mirrored():
    return _coefficients_nd("dct1")


CALLS = (
    Call(pull_linear, doubtful=DOUBTFUL),
    Call(pull_cubic_beyond_the_image, doubtful=DOUBTFUL),
    Call(push_cubic, doubtful=DOUBTFUL),
    Call(count_quadratic, doubtful=DOUBTFUL),
    Call(gradient_cubic, doubtful=DOUBTFUL),
    Call(
        coefficients,
        bugs=(
            Bug(
                "the backward returns a list, which counts as one gradient where five are wanted: it raises",
                ("PB103", "PB119"),
                partial(raises, partial(gradients, coefficients), "incorrect number of gradients"),
            ),
        ),
    ),
    Call(coefficients_nd, doubtful={"PB413": WIDTH, "PB207": VIEW}),
    Call(coefficients_nd_periodic, doubtful={"PB413": WIDTH, "PB207": VIEW}),
    Call(
        coefficients_nd_mirrored,
        bugs=(
            Bug(
                "the filter is taken to be symmetric, which it isn't with this boundary condition: the gradient is wrong",
                ("PB101",),
                partial(first_is_wrong, coefficients_nd_mirrored, 0),
            ),
        ),
        doubtful={"PB401": "the second derivative is wrong with the first", "PB413": WIDTH, "PB207": VIEW},
    ),
)

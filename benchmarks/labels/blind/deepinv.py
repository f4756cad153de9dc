"""deepinv: what is known of its custom functions.

Seven are covered; the others need further programs (ASTRA, parallelproj, NUFFT), several processes, or are not looked at
(a scattering solver, the adjoint of any function). The package is entered without its `__init__`, which needs
torchvision. Truth: float64 central differences of first and second derivatives, frozen and strided arguments, changes
in place, autocast.
"""

import sys
from functools import partial
from importlib import import_module

import torch

from labels import Bug, Call, Package
from labels.blind import bare, stub
from labels.fresh import differences, far, gradients, linear, prepared, raises, raises_in_autocast, second_is_wrong

PACKAGE = Package("deepinv", "0.5.0", "imaging", ("tqdm",))

ONCE = "documented: first order only; torch.autograd.grad may leave the term out"
SOLVER = "as exact as the iteration of the solver (1e-5)"
BEYOND = "beyond the outermost knots the piece is chosen by rounding, where the step is no binary fraction"
KNOT = "at a knot there is a kink"
NARROW = "PyTorch has no distances in bfloat16"
VIEW = "the output is a view: changing it in place raises, with PyTorch's message on views"
NOT_ADJOINT = "documented: the backward is an approximate adjoint of the discrete transform, 8 % off"
SPLINE = {"PB303": BEYOND, "PB305": KNOT, "PB101": BEYOND}


def _module(name):
    folders = "models", "physics", "physics.functional", "optim", "utils", "datasets"
    bare("deepinv", *(f"deepinv.{folder}" for folder in folders))
    for folder, attribute in (("physics", "Denoising"), ("physics", "LinearPhysics"), ("models", "Denoiser")):
        setattr(sys.modules[f"deepinv.{folder}"], attribute, torch.nn.Module)
    stub("deepinv.datasets.base", batch_as_dict=None)
    stub("deepinv.models.utils", load_state_dict_from_url=None)
    return import_module(f"deepinv.{name}")


def _spline(name, knots):
    function = getattr(_module("models.deal"), name)

    def spline(x, coefficients):
        low, high = torch.tensor([-1.0], dtype=x.dtype), torch.tensor([1.0], dtype=x.dtype)
        return function.apply(x, coefficients, low, high, knots, knots * torch.arange(2))

    torch.manual_seed(0)
    return spline, (0.5 * torch.randn(2, 2, 1, 3, 3), torch.randn(2, knots))


# First order right in both: differences.
def linear_spline():
    return _spline("LinearSplineFunc", 5)


# The backward never works with one knot, of which the forward has a case.
def constant_spline():
    return _spline("LinearSplineFunc", 1)


# The backward never works.
def spline_derivative():
    return _spline("LinearSplineDerivativeFunc", 5)


# First order right in both: differences.
def quadratic_spline():
    return _spline("QuadraticSplineFunc", 5)


# First order right in image and noise level: differences (1e-10).
def mean_of_posterior():
    function = _module("models.mmse").MMSEFunction
    torch.manual_seed(0)
    images = torch.randn(6, 8)

    def denoised(x, sigma):
        return function.apply(x, sigma, images, torch.device("cpu"), x.dtype, False)

    return denoised, (torch.randn(3, 2, 2, 2), torch.tensor([[0.8], [1.2], [1.0]]))


class _Physics(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("matrix", torch.randn(4, 5, dtype=torch.float64))

    def forward(self, x):
        return x @ self.matrix.to(x.dtype).mT

    A = forward

    def A_adjoint(self, y):  # noqa: N802
        return y @ self.matrix.to(y.dtype)

    def A_A_adjoint(self, y):  # noqa: N802
        return self.A(self.A_adjoint(y))

    def A_adjoint_A(self, x):  # noqa: N802
        return self.A_adjoint(self.A(x))


# First order right in measurement, prior mean and weight, to the tolerance of the solver: differences (5e-6).
def least_squares():
    solve = _module("optim.linear.least_squares").least_squares_implicit_backward
    physics = _Physics()

    def solution(y, z, gamma):
        return solve(physics, y, z, gamma=gamma, max_iter=50, tol=1e-12)

    torch.manual_seed(1)
    return solution, (torch.randn(2, 4), torch.randn(2, 5), torch.tensor([0.7, 1.5]))


# An approximate adjoint, by design.
def radon():
    module = _module("physics.functional.radon")
    angles = torch.linspace(0, 180, 11)[:-1]

    def sinogram(x):
        forward, back = (
            transform(8, angles.to(x.dtype), circle=False, dtype=x.dtype) for transform in (module.Radon, module.IRadon)
        )
        return module.ApplyRadon.apply(x, forward, back, False)

    torch.manual_seed(0)
    return sinogram, (torch.randn(1, 1, 8, 8),)


def strided_cotangent_raises():
    function, arguments, which = prepared(mean_of_posterior)
    leaves = [arguments[i].requires_grad_() for i in which]
    output = function(*arguments)
    cotangent = torch.randn(3, 2, 2, 2, dtype=output.dtype).to(memory_format=torch.channels_last)
    return raises(lambda: torch.autograd.grad(output, leaves, cotangent), "view")


def strided_image_raises():
    function, arguments, _ = prepared(mean_of_posterior)
    arguments[0] = arguments[0].to(memory_format=torch.channels_last)
    return raises(lambda: function(*arguments), "view")


def _second(make, why):
    return Bug(
        f"the second derivative is silently wrong: {why}", ("PB401", "PB404", "PB604"), partial(second_is_wrong, make)
    )


def mixed_second_is_wrong():
    """Whether the gradient of the coefficients, as a function of the input, has another derivative than differences."""
    function, (x, coefficients), _ = prepared(linear_spline)
    coefficients.requires_grad_()

    def number(x, create_graph=False):
        value = function(x, coefficients).square().sum()
        return linear(torch.autograd.grad(value, coefficients, create_graph=create_graph))

    found = torch.autograd.grad(number(x.requires_grad_(), True), x, allow_unused=True)[0]
    return far(found, differences(number, x), 0.01)


CALLS = (
    Call(
        linear_spline,
        bugs=(
            Bug(
                "the mixed second derivative is silently wrong: the position in a piece is saved",
                ("PB401", "PB404"),
                mixed_second_is_wrong,
            ),
        ),
        judged={
            "PB119": (True, "the backward views its input: it raises for one with batch and channels swapped in memory")
        },
        doubtful=SPLINE,
    ),
    Call(
        constant_spline,
        bugs=(
            Bug(
                "with one knot the backward raises: it looks for the next one",
                ("PB119",),
                partial(raises, partial(gradients, constant_spline), "out of bounds"),
            ),
        ),
        doubtful=SPLINE,
    ),
    Call(
        spline_derivative,
        bugs=(
            Bug(
                "the backward raises, as the gradient of the coefficients is flat; it also ignores the cotangent",
                ("PB104", "PB119", "PB111", "PB101"),
                partial(raises, partial(gradients, spline_derivative), "invalid gradient"),
            ),
        ),
        doubtful=SPLINE,
    ),
    Call(quadratic_spline, bugs=(_second(quadratic_spline, "the slope is saved"),), doubtful=SPLINE),
    Call(
        mean_of_posterior,
        bugs=(
            _second(mean_of_posterior, "weights and distances are saved"),
            Bug(
                "an image that is channels-last makes the forward raise: it views it", ("PB501",), strided_image_raises
            ),
            Bug(
                "a cotangent that is channels-last makes the backward raise: it views it",
                ("PB502", "PB119"),
                strided_cotangent_raises,
            ),
            Bug(
                "the backward raises after a forward under autocast, whose product is bfloat16",
                ("PB413", "PB119"),
                partial(raises_in_autocast, mean_of_posterior, "same dtype"),
            ),
        ),
        doubtful={
            "PB209": "the data are kept on ctx, and nobody changes them in between",
            "PB207": VIEW,
            "PB119": NARROW,
        },
    ),
    Call(
        least_squares,
        doubtful={
            **dict.fromkeys(("PB401", "PB402", "PB403", "PB404"), ONCE),
            "PB303": SOLVER,
            "PB101": SOLVER,
            "PB210": "documented: gradients of the physics' buffers are written by hand",
            "PB413": "a product of bfloat16 numbers under autocast",
        },
    ),
    Call(
        radon,
        "other",
        doubtful={"PB101": NOT_ADJOINT, "PB401": NOT_ADJOINT, "PB207": VIEW},
        judged={
            "PB413": (
                True,
                "by hand: of a bfloat16 image under autocast the sinogram is float32, and the backward raises",
            )
        },
    ),
)

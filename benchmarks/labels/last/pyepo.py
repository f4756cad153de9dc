"""pyepo: what is known of its custom functions.

Six are covered, of nine, through their modules, with a problem whose solutions are known: the cheapest two of five.
Three are estimates; truth of the others: float64 central differences (below 3e-6), and for the regularised solution the
projection onto the polytope. Two backwards, strided inputs and cotangents, double backward, half precision, changes.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.blind import raises_in, stub
from labels.fresh import second_is_wrong

PACKAGE = Package("pyepo", "2.2.7", "predict, then optimise", ("tqdm",))

RIDGE = "a ridge of 1e-6 is in the gradient, by design, and iterations end at a tolerance"
SOLVER = "costs go to the solver as NumPy arrays, which have no bfloat16, and no batch"
STEP = "by design: a solution at costs that the cotangent moves"
NUMPY = {"PB413": SOLVER, "PB408": SOLVER, "PB405": SOLVER, "PB406": SOLVER, "PB409": SOLVER}


def _model():
    stub("pathos")
    stub("pathos.multiprocessing", ProcessingPool=None)
    from pyepo.model.opt import optModel

    class CheapestTwo(optModel):
        def _getModel(self):  # noqa: N802 - as pyepo calls it
            self.cost = None
            return None, range(5)

        def setObj(self, c):  # noqa: N802
            self.cost = torch.as_tensor(c, dtype=torch.float64)

        def solve(self):
            cost, items = self.cost.topk(2, largest=False)
            return torch.zeros(5, dtype=torch.float64).scatter(0, items, 1.0).numpy(), float(cost.sum())

        @property
        def num_cost(self):
            return 5

    return CheapestTwo()


def _costs():
    torch.manual_seed(0)
    predicted, true = 2 * torch.rand(2, 3, 5, dtype=torch.float64)
    cost, items = true.topk(2, largest=False)
    return predicted, true, torch.zeros_like(true).scatter(1, items, 1.0), cost.sum(1, keepdim=True)


def _module(name, **options):
    model = _model()
    import pyepo.func

    return getattr(pyepo.func, name)(model, **options)


# First and second order right: differences.
def spo_plus():
    module, (predicted, true, solution, objective) = _module("SPOPlus", reduction="none"), _costs()
    return (lambda predicted: module(predicted, true, solution, objective)), (predicted,)


# An estimate, right for what it is.
def black_box():
    return _module("blackboxOpt", lambd=1.0), _costs()[:1]


# An estimate, right for what it is.
def negative_identity():
    return _module("negativeIdentity"), _costs()[:1]


# First and second order right, the noise being the same: differences.
def perturbed_fenchel_young():
    predicted, _, solution, _ = _costs()

    def function(predicted):
        module = _module("perturbedFenchelYoung", n_samples=10, sigma=0.5, reduction="none")
        return module(predicted, solution)

    return function, (predicted,)


# First and second order right: differences, the projection.
def regularised():
    return _module("regularizedFrankWolfeOpt", lambd=1.5, tol=1e-12), _costs()[:1]


# First order right: differences.
def regularised_fenchel_young():
    module = _module("regularizedFrankWolfeFenchelYoung", lambd=1.5, tol=1e-12, reduction="none")
    predicted, _, solution, _ = _costs()
    return (lambda predicted: module(predicted, solution)), (predicted,)


CALLS = (
    Call(spo_plus, doubtful=NUMPY),
    Call(black_box, "other", doubtful={**NUMPY, "PB109": STEP, "PB401": STEP, "PB403": STEP, "PB604": STEP}),
    Call(negative_identity, "other", doubtful=NUMPY),
    Call(
        perturbed_fenchel_young,
        doubtful=NUMPY,
        judged={"PB101": (False, "it draws from a generator of its own: in float64 other numbers than in float32")},
    ),
    Call(
        regularised,
        bugs=(
            Bug(
                "in float16, which the forward takes, the backward raises: there is no such solver",
                ("PB119",),
                partial(raises_in, regularised, torch.float16, "not implemented for 'Half'"),
            ),
        ),
        doubtful={**NUMPY, "PB101": RIDGE, "PB303": RIDGE, "PB401": RIDGE, "PB404": RIDGE},
    ),
    Call(
        regularised_fenchel_young,
        bugs=(
            Bug(
                "the residual is saved, to which no graph leads: the second derivative of the loss is silently 0",
                ("PB401", "PB404"),
                partial(second_is_wrong, regularised_fenchel_young),
            ),
        ),
        doubtful=NUMPY,
    ),
)

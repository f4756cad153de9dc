"""odl: what is known of its custom function.

It has one, which makes a function of any operator. Truth: float64 central differences (below 5e-11; functionals, whose
value is float32, 2e-4) with operators that are linear or not, with domain and range weighted or not.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import first_is_wrong, second_is_wrong

PACKAGE = Package(
    "odl", "1.0.0", "inverse problems", needs=("future", "array-api-compat", "packaging", "scipy==1.17.1")
)

VIEW = "the output is a view: changing it in place raises, with PyTorch's message on views"
EXPORT = "double backward raises: 'Can't export tensors that require gradient'"
BATCH = "a vectorised backward raises: the operator takes no batch"
NARROW = "float16 and bfloat16 are refused: the operator's library has no such numbers"
ONE = "an input of another shape than the operator's is refused, with a clear message"
DOUBTFUL = {"PB207": VIEW, "PB408": BATCH, "PB413": NARROW, "PB503": ONE, "PB504": ONE}


def _function(operator, *shape):
    from odl.contrib.torch import OperatorFunction

    def function(x):
        return OperatorFunction.apply(operator, x)

    torch.manual_seed(0)
    return function, (torch.randn(shape, dtype=torch.float64),)


def _matrix():
    import numpy

    return numpy.random.RandomState(0).randn(2, 3)


def _image():
    import odl

    return odl.uniform_discr([0, 0], [1, 1], (4, 5), dtype="float64")


# First order right: differences (3e-12).
def matrix():
    import odl

    return _function(odl.MatrixOperator(_matrix()), 3)


# First order right: differences (1e-11).
def matrix_of_batch():
    import odl

    return _function(odl.MatrixOperator(_matrix()), 4, 3)


# Wrong: differences.
def matrix_with_weighted_range():
    import odl

    return _function(odl.MatrixOperator(_matrix(), range=odl.rn(2, weighting=3.0)), 3)


# First order right: differences (4e-11).
def partial_derivative_of_batch():
    import odl

    return _function(odl.PartialDerivative(_image(), axis=0), 2, 4, 5)


# First order right: differences (2e-11).
def cube():
    import odl

    return _function(odl.PowerOperator(odl.rn(3), 3), 3)


# First order right: differences (2e-5, in float32).
def squared_norm():
    import odl

    return _function(odl.functionals.L2NormSquared(_image()), 4, 5)


def value_is_float32():
    function, (x,) = squared_norm()
    exact = (x.square().sum() / 20).item()
    return abs(function(x).item() / exact - 1) > 1e-10 and function(x).dtype == torch.float32


def _lost(make):
    return Bug(
        "the gradient comes without a graph under create_graph: what it adds to a second derivative is lost",
        ("PB401", "PB404", "PB403", "PB604"),
        partial(second_is_wrong, make),
    )


CALLS = (
    Call(matrix, bugs=(_lost(matrix),), doubtful=DOUBTFUL),
    Call(matrix_of_batch, doubtful={**DOUBTFUL, "PB403": EXPORT}),
    Call(
        matrix_with_weighted_range,
        bugs=(
            Bug(
                "the gradient is too small by the weight of the range, which this operator's adjoint leaves out",
                ("PB101",),
                partial(first_is_wrong, matrix_with_weighted_range, 0),
            ),
            _lost(matrix_with_weighted_range),
        ),
        doubtful=DOUBTFUL,
    ),
    Call(partial_derivative_of_batch, doubtful={**DOUBTFUL, "PB403": EXPORT}),
    Call(cube, bugs=(_lost(cube),), doubtful=DOUBTFUL),
    Call(
        squared_norm,
        bugs=(
            _lost(squared_norm),
            Bug("of a float64 input the value of a functional is float32", ("PB303", "PB105"), value_is_float32),
        ),
        doubtful={**DOUBTFUL, "PB101": "the value is float32: differences of it have few digits"},
    ),
)

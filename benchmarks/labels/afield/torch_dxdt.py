"""torch-dxdt: what is known of its custom function.

`WhittakerFunction` is covered by itself, with the three penalties that it has, and by the derivative that applies it.
Truth: float64 central differences. Double backward, strided inputs and cotangents, two backwards, checkpoints, changes
in place.
"""

import torch

from labels import Call, Package

PACKAGE = Package("torch-dxdt", "0.1.1", "derivatives of time series", ("scipy==1.17.1",))

VIEW = "the output is a transposed view: changing it in place raises, with PyTorch's message on views"
NARROW = "under autocast the forward rounds its matrix to half precision; PyTorch has no Cholesky decomposition in that"
DOUBTFUL = {
    "PB207": VIEW,
    "PB118": "the times give a step, which is a number",
    **dict.fromkeys(("PB119", "PB413", "PB105", "PB303"), NARROW),
    **dict.fromkeys(("PB405", "PB406", "PB407"), "torch.func does not take it: it has no setup_context"),
    **dict.fromkeys(("PB503", "PB504", "PB505"), "a series is longer than its penalty, and has two dimensions"),
}


def _smoothed(order):
    from torch_dxdt.whittaker import WhittakerFunction

    torch.manual_seed(0)
    return (lambda x: WhittakerFunction.apply(x, 100.0, order)), (torch.randn(3, 8),)


# Right, twice: differences.
def first_differences():
    return _smoothed(1)


# Right, twice: differences.
def second_differences():
    return _smoothed(2)


# Right, twice: differences.
def third_differences():
    return _smoothed(3)


# Right, twice: differences.
def derivative():
    from torch_dxdt.whittaker import Whittaker

    torch.manual_seed(0)
    smoother, times = Whittaker(10.0), torch.linspace(0, 1, 8)
    return (lambda x: smoother.d(x, times)), (torch.randn(2, 3, 8),)


CALLS = tuple(
    Call(make, doubtful=DOUBTFUL) for make in (first_differences, second_differences, third_differences, derivative)
)

"""torchtoolbox: what is known of its custom function.

`SwishOP` is covered by itself, and with another factor. Truth: float64 central differences of first and second order.
Strided inputs and cotangents, two backwards, checkpoints, changes in place, large inputs, other dtypes, autocast.
"""

import torch

from labels import Bug, Call, Package
from labels.fresh import prepared

PACKAGE = Package("torchtoolbox", "0.1.8.2", "training tools")


def _swish(*factor):
    from torchtoolbox.nn.operators import SwishOP

    torch.manual_seed(0)
    return SwishOP, (torch.randn(3, 4), *factor)


# Right, twice, where the exponential does not overflow: differences.
def swish():
    return _swish()


# Right, twice, where the exponential does not overflow: differences.
def sharp():
    return _swish(1.5)


def overflows(make, dtype, number):
    """Whether the gradient at a negative number, which is almost 0, is NaN."""
    function, (_, *factor), _ = prepared(make)
    x = torch.tensor([number], dtype=dtype, requires_grad=True)
    y = function(x, *factor)
    return bool(y.isfinite().all()) and bool(torch.autograd.grad(y.sum(), x)[0].isnan().all())


def _overflow(make):
    return Bug(
        "exp(-x) overflows, at -89 in single and -12 in half precision: the gradient is silently NaN",
        ("PB301", "PB304", "PB101"),
        lambda: overflows(make, torch.float32, -100.0) and overflows(make, torch.float16, -12.0),
    )


CALLS = tuple(Call(make, bugs=(_overflow(make),)) for make in (swish, sharp))

"""phiml: what is known of its custom functions.

`TorchCustomFunction`, which carries each gradient that the package defines, is covered with three of them. Truth:
float64 central differences. Double backward, frozen arguments, strided inputs and cotangents, two backwards, changes in
place.
"""

import torch

from labels import Call, Package

PACKAGE = Package("phiml", "1.16.1", "differentiable physics")

ITERATED = "a solution of iterations"
DOUBTFUL = {
    **dict.fromkeys(("PB303", "PB105"), "the package computes in the precision that is set, here float64"),
    "PB406": "torch.func does not take it: it has no setup_context",
    "PB205": "arguments and outputs are all saved, whatever the gradient takes",
}


def _values(x):
    from phiml import math

    return math.reshaped_tensor(x, [math.spatial(x=len(x))], convert=False)


def _precise(f):
    def call(*arguments):
        from phiml import math

        math.use("torch")
        math.set_global_precision(64)
        return f(*map(_values, arguments)).native("x")

    return call


# Right, twice: differences.
def safe_product():
    from phiml import math

    torch.manual_seed(0)
    return _precise(math.safe_mul), (torch.randn(4, dtype=torch.float64), torch.randn(4, dtype=torch.float64))


# Right, twice: differences.
def own_gradient():
    from phiml import math
    from phiml.backend.torch import TORCH

    function = TORCH.custom_gradient(lambda x: (x.sin(),), gradient=lambda x, y, dy: (dy[0] * x[0].cos(),))

    def call(x):
        math.set_global_precision(64)
        return function(x)[0]

    torch.manual_seed(0)
    return call, (torch.randn(4, dtype=torch.float64),)


# Right: differences.
def solution():
    from phiml import math

    torch.manual_seed(0)
    diagonal = torch.rand(4, dtype=torch.float64) + 1

    def solve(right):
        factor = _values(diagonal.to(right.native("x").dtype))
        how = math.Solve("CG", 1e-12, 1e-12, x0=math.zeros_like(right))
        return math.solve_linear(lambda x: factor * x, right, how)

    return _precise(solve), (torch.randn(4, dtype=torch.float64),)


CALLS = (
    Call(safe_product, doubtful=DOUBTFUL),
    Call(own_gradient, doubtful=DOUBTFUL),
    Call(solution, doubtful={**DOUBTFUL, **dict.fromkeys(("PB301", "PB302", "PB119"), ITERATED)}),
)

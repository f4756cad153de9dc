"""torch-diffsim: what is known of its custom functions.

`ImplicitFunction`, made anew for each solution, is covered by the method that applies it, with two residuals; the
gradient of a barrier needs a toolkit that is not here. Truth: float64 central differences. Double backward, strided
inputs and cotangents, frozen arguments, two backwards, checkpoints, changes in place.
"""

import torch

from labels import Call, Package
from labels.anew import NARROW, NO_FUNC, cut
from labels.blind import bare

PACKAGE = Package("torch-diffsim", "0.2.0", "elastic bodies")

DETACHED = "the backward solves at a detached solution and detached parameters"
DOUBTFUL = {
    **dict.fromkeys(("PB119", "PB413", "PB105", "PB303"), NARROW),
    **dict.fromkeys(("PB405", "PB406", "PB407", "PB408"), NO_FUNC),
    **dict.fromkeys(("PB503", "PB505"), "the solver of the call takes a vector"),
}


def _solved(residual):
    bare("diffsim")
    from diffsim.diff_physics import ImplicitDifferentiation

    def solved(*parameters):
        with torch.no_grad():
            x = torch.zeros_like(parameters[0])
            for _ in range(20):
                slopes = torch.autograd.functional.jacobian(lambda x: residual(x, *parameters), x)
                x = x - torch.linalg.solve(slopes, residual(x, *parameters))
        return ImplicitDifferentiation.implicit_backward(residual, x, parameters)

    return solved


# First order right: differences.
def load():
    torch.manual_seed(0)
    return _solved(lambda x, load: x + x**3 + 0.3 * x.roll(1) - load), (torch.randn(3, dtype=torch.float64),)


# First order right: differences.
def stiffness():
    torch.manual_seed(0)
    given = torch.randn(3, dtype=torch.float64), 1 + torch.rand(3, dtype=torch.float64)
    return _solved(lambda x, load, stiffness: stiffness * x + x**3 + 0.3 * x.roll(1) - load), given


CALLS = tuple(Call(make, bugs=(cut(make, DETACHED),), doubtful=DOUBTFUL) for make in (load, stiffness))

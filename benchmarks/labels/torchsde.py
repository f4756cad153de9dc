"""torchsde: what is known of its custom function, the stochastic adjoint `_SdeintAdjointMethod`.

Called as `sdeint_adjoint`, on a fixed Brownian path. With the reversible Heun method the gradient is that of the
discrete solution; with the others it is that of the continuous equation, "only approximate" in the words of the
package, and goes to the former as the step goes to 0 (which was tried). Also tried: all noise types, `extra=True`
with cotangents of all outputs, and `logqp=True`.
"""

import torch

from labels import Bug, Call, Package

PACKAGE = Package("torchsde", "0.2.6", "stochastic differential equations", needs=("trampoline==0.1.2",))

CONTINUOUS = (
    "the adjoint of the continuous equation: off the derivative of the discrete solution by the order of the step"
)
CYCLE = "the wrapped equation, and with it the parameters, is in a reference cycle; no output and no state is"


class _Equation(torch.nn.Module):
    def __init__(self, rate, width, noise_type, sde_type):
        super().__init__()
        self.rate, self.width, self.noise_type, self.sde_type = rate, width, noise_type, sde_type

    def f(self, t, y):
        return torch.sin(self.rate * y) + t

    def g(self, t, y):
        if self.noise_type == "diagonal":
            return 0.3 * torch.sigmoid(self.width * y)
        columns = torch.arange(1.0, 4.0, dtype=y.dtype)
        return 0.3 * torch.sigmoid((self.width * y).unsqueeze(-1) * columns)


def _call(noise_type, sde_type, method=None):
    def solution(y0, rate, width):
        import torchsde

        size = (y0.shape[0], y0.shape[1] if noise_type == "diagonal" else 3)
        area = "space-time"
        path = torchsde.BrownianInterval(0.0, 0.2, size=size, dtype=y0.dtype, entropy=7, levy_area_approximation=area)
        return torchsde.sdeint_adjoint(
            _Equation(rate, width, noise_type, sde_type),
            y0,
            torch.tensor([0.0, 0.1, 0.2], dtype=y0.dtype),
            bm=path,
            method=method,
            dt=0.02,
            adjoint_params=(rate, width),
        )

    torch.manual_seed(0)
    return solution, (torch.randn(2, 3), torch.randn(3), torch.randn(3))


# Right to the discretisation at first and second order: differences in float64 (2e-5 for a step of 1e-2, 1e-6 for 1e-3).
def stratonovich_diagonal():
    return _call("diagonal", "stratonovich")


# Right to the discretisation at first and second order: differences in float64 (8e-5 for a step of 1e-2).
def stratonovich_general():
    return _call("general", "stratonovich")


# Right to the discretisation: differences in float64 (2e-3 for a step of 1e-2, 2e-4 for 1e-3).
def ito_diagonal():
    return _call("diagonal", "ito")


# First order right: differences in float64 (1e-9).
def reversible_heun():
    return _call("diagonal", "stratonovich", "reversible_heun")


def reversible_heun_second_raises():
    function, inputs = reversible_heun()
    leaves = [x.clone().requires_grad_() for x in inputs]
    gradients = torch.autograd.grad((function(*leaves) ** 2).sum(), leaves, create_graph=True)
    try:
        torch.autograd.grad(sum(g.sum() for g in gradients), leaves)
    except RuntimeError as error:
        return str(error) == "Please report a bug to torchsde."
    return False


def reversible_heun_raises_for_an_empty_batch():
    function, (y0, rate, width) = reversible_heun()
    y0 = y0[:0].clone().requires_grad_()
    output = function(y0, rate, width)
    try:
        torch.autograd.grad(output.sum(), y0)
    except RuntimeError as error:
        return output.shape == (3, 0, 3) and "storage" in str(error)
    return False


TANGENT = {"PB102": (True, "forward_ad gives no tangent for a parameter of the equation, and says nothing")}

CALLS = (
    Call(stratonovich_diagonal, doubtful={"PB101": CONTINUOUS, "PB401": CONTINUOUS, "PB204": CYCLE}, judged=TANGENT),
    Call(stratonovich_general, doubtful={"PB101": CONTINUOUS, "PB401": CONTINUOUS, "PB204": CYCLE}, judged=TANGENT),
    Call(
        ito_diagonal,
        doubtful={
            "PB101": CONTINUOUS,
            "PB204": CYCLE,
            "PB403": "documented for Stratonovich only; raises 'Adjoint `f_and_g` not defined. Please report a bug'",
        },
        judged=TANGENT,
    ),
    Call(
        reversible_heun,
        bugs=(
            Bug(
                "double backward, documented for Stratonovich equations, raises 'Please report a bug to torchsde'",
                ("PB403",),
                reversible_heun_second_raises,
            ),
            Bug(
                "the backward raises for an empty batch, which the forward and the other methods take",
                ("PB503", "PB119"),
                reversible_heun_raises_for_an_empty_batch,
            ),
        ),
        doubtful={"PB204": CYCLE},
        judged={"PB101": (False, "1e-4 off, since its times stay float32 where the audit makes the state float64")},
    ),
)

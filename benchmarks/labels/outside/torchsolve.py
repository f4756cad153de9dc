"""torchsolve: what is known of its custom function.

`_ImplicitSolve` is covered by the solver that applies it: a right-hand side alone, one with weights of the system, a
regularised batch, and a complex system. Truth: float64 central differences. Double backward, strided and expanded
inputs and cotangents, arguments frozen, two backwards, checkpoints, changes in place, float32, bfloat16, autocast.
"""

import torch

from labels import Call, Package

PACKAGE = Package("torchsolve", "0.0.1", "inverse problems")

ONCE = "once_differentiable: backward() raises, torch.autograd.grad may leave the term out"
DOUBTFUL = {
    **dict.fromkeys(("PB405", "PB406", "PB407"), "torch.func does not take it: it has no setup_context"),
    **dict.fromkeys(("PB401", "PB402", "PB404", "PB604"), ONCE),
    **dict.fromkeys(("PB303", "PB101"), "an iteration that ends at a residual, or after a number of steps"),
    "PB408": "a vectorised backward raises: the iteration looks at numbers",
    "PB413": "an iteration whose system comes out in another dtype: the forward says so",
    "PB118": "what a system holds gets a gradient only where it is named, as documented",
    "PB105": "a complex system has one dtype",
    **dict.fromkeys(
        ("PB109", "PB301", "PB302"), "squares of a cotangent of 1e20, or 1e-20, leave the range of float32"
    ),
}


def _system(n=5, dtype=torch.float64):
    torch.manual_seed(0)
    a = torch.randn(n, n, dtype=dtype)
    torch.manual_seed(1)
    return a @ a.mH / n + torch.eye(n, dtype=dtype)


def _solve(normal, b, **options):
    from torchsolve import conjugate_gradient

    return conjugate_gradient(normal, b, max_iter=20, rtol=1e-12, **options).solution


# Right: differences.
def right_hand_side():
    system = _system()
    return (lambda b: _solve(lambda v: system.to(v) @ v, b)), (torch.randn(5),)


# Right: differences.
def with_weights():
    system = _system()

    def solve(b, weights):
        return _solve(lambda v: system.to(v) @ v + weights.square() * v, b, parameters=[weights])

    return solve, (torch.randn(5), torch.randn(5))


# Right: differences.
def regularised_batch():
    system = _system()

    def solve(b, weights):
        from torchsolve import Regularizer

        def normal(v):
            return v @ system.to(v) + weights.square() * v

        return _solve(normal, b, batch_dim=0, regularizers=[Regularizer(0.3)], parameters=[weights])

    return solve, (torch.randn(3, 5), torch.randn(5))


# Right: differences, of pairs of real numbers.
def complex_system():
    system = _system(dtype=torch.complex128)

    def solve(b, weights):
        pairs = torch.view_as_complex(b.to(torch.float64).contiguous())
        weights = weights.to(torch.float64)
        found = _solve(lambda v: system @ v + weights.square() * v, pairs, parameters=[weights])
        return torch.view_as_real(found)

    return solve, (torch.randn(5, 2, dtype=torch.float64), torch.randn(5, dtype=torch.float64))


CALLS = tuple(
    Call(make, doubtful=DOUBTFUL) for make in (right_hand_side, with_weights, regularised_batch, complex_system)
)

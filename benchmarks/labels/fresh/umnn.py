"""UMNN: what is known of its custom functions.

Both are covered, the integral in parallel and step by step, with an integrand of one layer. The package itself always
integrates from 0. Truth: float64 central differences (1e-4 in the limits, whose gradient is the integrand's value and not
the derivative of the quadrature; 5e-7 in the rest).
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import first_is_wrong, gradients, raises, raises_when_frozen, second_is_wrong

PACKAGE = Package("umnn", "1.71", "monotonic networks")

NODES = "nodes and weights of the quadrature are float32"
LIMIT = "by design: the gradient of a limit is the integrand's value, not the derivative of the quadrature (1e-4)"
FREED = "that of the parameters raises, of a graph that was freed"
DOUBTFUL = {"PB303": f"{NODES}; {LIMIT}", "PB403": FREED}


class Integrand(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner = torch.nn.Parameter(torch.randn(3, 4))
        self.outer = torch.nn.Parameter(torch.randn(4, 1))

    def forward(self, x, h):
        inner = torch.tanh(torch.cat([x, h], 1) @ self.inner.to(x.dtype))
        return torch.nn.functional.elu(inner @ self.outer.to(x.dtype)) + 1.05


def _numbers(seed, *size):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def _integral(name, *options, is_from_zero=True):
    from importlib import import_module

    module = import_module(f"UMNN.{name}")
    function, flatten, integrand = getattr(module, name), module._flatten, Integrand()

    def integral(x, h, *start):
        x0 = torch.zeros_like(x) if is_from_zero else start[0]
        return function.apply(x0, x, integrand, flatten(integrand.parameters()), h, 20, *options)

    start = () if is_from_zero else (_numbers(2, 3, 1),)
    return integral, (_numbers(0, 3, 1), _numbers(1, 3, 2), *start)


# First order right: differences (1e-4 in the limit, 5e-11 in the conditions).
def parallel():
    return _integral("ParallelNeuralIntegral")


# First order right: differences (1e-4 in the limit, 5e-11 in the conditions).
def sequential():
    return _integral("NeuralIntegral")


# Right in the limits, wrong in the rest: differences.
def parallel_from_elsewhere():
    return _integral("ParallelNeuralIntegral", is_from_zero=False)


# The backward never works.
def parallel_inverse():
    return _integral("ParallelNeuralIntegral", True)


def _lost(make):
    return Bug(
        "the gradient of the conditions comes without a graph under create_graph: its second derivative is lost",
        ("PB401", "PB404", "PB604"),
        partial(second_is_wrong, make, 1),
    )


FROZEN = "where the parameters of the integrand are frozen, the backward raises"

CALLS = (
    Call(
        parallel,
        bugs=(_lost(parallel),),
        doubtful={**DOUBTFUL, "PB101": LIMIT},
        judged={"PB113": (True, FROZEN)},
    ),
    Call(
        sequential,
        bugs=(
            Bug(
                "where the conditions need no gradient, the backward raises",
                ("PB113", "PB119"),
                partial(raises_when_frozen, sequential, 0, "does not require grad"),
            ),
            _lost(sequential),
        ),
        doubtful={**DOUBTFUL, "PB101": LIMIT},
    ),
    Call(
        parallel_from_elsewhere,
        bugs=(
            Bug(
                "conditions and parameters get the gradient of another integral: its end is taken for its length",
                ("PB101", "PB118"),
                partial(first_is_wrong, parallel_from_elsewhere, 1),
            ),
            _lost(parallel_from_elsewhere),
        ),
        doubtful=DOUBTFUL,
        judged={"PB113": (True, FROZEN)},
    ),
    Call(
        parallel_inverse,
        bugs=(
            Bug(
                "with the option for an inverse the backward returns one gradient too few: it raises",
                ("PB103", "PB119"),
                partial(raises, partial(gradients, parallel_inverse), "incorrect number of gradients"),
            ),
        ),
        doubtful=DOUBTFUL,
    ),
)

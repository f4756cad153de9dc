"""auto_LiRPA: what is known of its custom function.

`ClampedMultiplication` is covered by the function that applies it: with both biases, with one, with none, with slopes
that all outputs share, and with patches of images. Truth: float64 central differences. Double backward, each argument
alone, strided inputs and cotangents, two backwards, checkpoints, autocast, changes in place, what is kept.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.blind import bare
from labels.fresh import is_kept

PACKAGE = Package("auto-LiRPA", "0.3", "verification of networks")

AT_ZERO = "at 0 the gradient is that of one side"


def _multiply():
    bare("auto_LiRPA", "auto_LiRPA.operators")
    from auto_LiRPA.operators.clampmult import multiply_by_A_signs

    torch.manual_seed(0)
    return multiply_by_A_signs


def _slopes(n=3):
    return torch.rand(n, 2, 5), torch.rand(n, 2, 5)


def _biases(n=3):
    return torch.randn(n, 2, 5), torch.randn(n, 2, 5)


# Right, twice: differences.
def both():
    return _multiply(), (torch.randn(3, 2, 5), *_slopes(), *_biases())


# Right, twice: differences.
def lower():
    return _multiply(), (torch.randn(3, 2, 5), *_slopes(), None, torch.randn(3, 2, 5))


# Right, twice: differences.
def shared():
    return _multiply(), (torch.randn(3, 2, 5), *_slopes(1), *_biases(1))


# Right, twice: differences.
def patches():
    multiply = _multiply()
    from auto_LiRPA.patches import Patches

    def function(values, *arguments):
        product, bias = multiply(Patches(values, 1, 0, values.shape), *arguments)
        return product.patches, bias

    return function, tuple(torch.randn(2, 1, 2, 2, 1, 2, 2) for _ in range(5))


# The gradients are right, twice: differences.
def without_bias():
    return _multiply(), (torch.randn(3, 2, 5), *_slopes(), None, None)


CALLS = (
    *(Call(make, doubtful={"PB305": AT_ZERO}) for make in (both, lower, shared, patches)),
    Call(
        without_bias,
        bugs=(
            Bug(
                "the second output is one constant of the script for all calls: the last graph lives on in it",
                ("PB204", "PB208", "PB507", "PB120"),
                partial(is_kept, without_bias),
            ),
        ),
        doubtful={"PB305": AT_ZERO, "PB114": "the second output is constant"},
    ),
)

"""torchgdm: what is known of its custom functions.

The Bessel functions `_gradJn`, `_gradYn`, `_gradIn`, `_gradKn` and, on the imaginary axis, `_grad_cplx_axis` are
covered by the functions that apply them, in the orders that the scattering in two dimensions needs. Truth: scipy's
functions and their derivatives, and float64 central differences. Double backward, strided, expanded and empty inputs
and cotangents, two backwards, checkpoints, changes in place, float32, vmap, zero.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.blind import bare
from labels.fresh import gradients, second_is_wrong

PACKAGE = Package("torchgdm", "0.61", "nano-optics")

SINGULAR = "a singularity, and near it: the derivatives are differences of large numbers"
DOUBTFUL = {
    "PB407": "there is no jvp: forward mode raises, with PyTorch's message",
    "PB301": "at 0 the second derivatives, and the functions of the second kind, are NaN",
    "PB302": SINGULAR,
    **dict.fromkeys(("PB201",), "the order, a constant, is kept as an attribute"),
    "PB303": "recurrences of the orders, which lose digits near 0",
    "PB409": "torch.cond looks at a number",
    "PB410": "torch.cond looks at a number",
    "PB415": "torch.cond looks at a number",
}
SINGLE = {**DOUBTFUL, "PB303": "complex64 inside, whatever comes in", "PB105": "complex64 inside, whatever comes in"}


def _bessel(name, order, low=0.5, high=6.0):
    bare("torchgdm", "torchgdm.tools")
    from torchgdm.tools import special

    torch.manual_seed(0)
    return partial(getattr(special, name), order), (low + (high - low) * torch.rand(5),)


# Right, twice: scipy, differences.
def j0():
    return _bessel("Jn", 0)


# Wrong at 0.
def j1():
    return _bessel("Jn", 1)


# Right, twice: scipy, differences.
def y1():
    return _bessel("Yn", 1)


# Right, twice: scipy, in float32.
def i0():
    return _bessel("In", 0)


# Right, twice: scipy, in float32.
def k1():
    return _bessel("Kn", 1)


# Right, twice: scipy, differences.
def hankel():
    return _bessel("H1n", 0)


# First order right: differences of pairs of real numbers, also across the axis.
def evanescent():
    function, (x,) = _bessel("H1n", 0, 0.5, 3.5)
    pairs = torch.stack([torch.zeros_like(x), x], -1)
    return (lambda z: torch.view_as_real(function(torch.view_as_complex(z.contiguous())))), (pairs,)


def is_nan_at_zero():
    """Whether the gradient of J1 is NaN at 0, where it is a half, and right next to it."""
    found = []
    for x in (0.0, 1e-3):
        leaf = torch.tensor([x], dtype=torch.float64, requires_grad=True)
        found.append(torch.autograd.grad(j1()[0](leaf).real.sum(), leaf)[0])
    return bool(found[0].isnan()) and abs(float(found[1]) - 0.5) < 1e-5 and bool(gradients(j1)[0].isfinite().all())


CALLS = (
    Call(j0, doubtful=DOUBTFUL),
    Call(
        j1,
        bugs=(
            Bug(
                "at 0 the gradient is silently NaN, from a recurrence that divides by it, where it is a half",
                ("PB101", "PB301", "PB304"),
                is_nan_at_zero,
            ),
        ),
        doubtful={rule: why for rule, why in DOUBTFUL.items() if rule != "PB301"},
    ),
    Call(y1, doubtful=DOUBTFUL),
    Call(i0, doubtful=SINGLE),
    Call(k1, doubtful=SINGLE),
    Call(hankel, doubtful=DOUBTFUL),
    Call(
        evanescent,
        bugs=(
            Bug(
                "the derivative on the imaginary axis is computed where autograd sees nothing: the second one is silently wrong",
                ("PB401", "PB402", "PB404", "PB604"),
                partial(second_is_wrong, evanescent),
            ),
        ),
        doubtful=SINGLE,
    ),
)

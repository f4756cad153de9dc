"""libcirkit: what is known of its custom functions.

Both are covered: the logarithms of real and of complex numbers that its semirings use, where a probability may be 0.
Truth: float64 central differences (real and imaginary parts; below 7e-10), and the docstring at 0.
"""

from functools import partial

import torch

from labels import Bug, Call, Package

PACKAGE = Package(
    "libcirkit", "0.3.1", "probabilistic circuits", needs=("opt-einsum", "einops", "graphviz", "scipy==1.17.1")
)

COMPLEX = "double backward raises: 'nan_to_num does not support automatic differentiation for … complex dtype'"
CLAMPED = "the value at 0 is clamped to -708"
HARDLY = "float16 and bfloat16 have the same gradient at 0: their largest number"


def _logarithm(name, values):
    from importlib import import_module

    return getattr(import_module("cirkit.backend.torch.utils"), name), (values,)


# First and second order right but at 0: differences (7e-10).
def logarithm():
    return _logarithm("SafeLog", torch.tensor([0.7, 0.0, 0.2, 1.3]))


# First order right but at 0: differences (1e-10).
def logarithm_of_complex():
    torch.manual_seed(0)
    return _logarithm("ComplexSafeLog", torch.randn(4, dtype=torch.complex128))


def gradient_at_zero_is_huge(make, dtype):
    x = torch.zeros(1, dtype=dtype, requires_grad=True)
    (gradient,) = torch.autograd.grad(make()[0].apply(x).real.sum(), x)
    return bool(gradient.abs() > 1e38)


def _huge(make, dtype):
    return Bug(
        "the gradient at 0 is the largest number there is, where it is to be 0, as documented",
        ("PB301", "PB303", "PB305", "PB101"),
        partial(gradient_at_zero_is_huge, make, dtype),
    )


CALLS = (
    Call(
        logarithm,
        bugs=(_huge(logarithm, torch.float32),),
        doubtful={
            "PB208": CLAMPED,
            "PB413": HARDLY,
            "PB109": "infinite cotangents are made the largest number, as documented",
        },
    ),
    Call(
        logarithm_of_complex,
        bugs=(_huge(logarithm_of_complex, torch.complex128),),
        doubtful={"PB403": COMPLEX, "PB208": CLAMPED},
    ),
)

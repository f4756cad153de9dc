"""kymatio: what is known of its custom function.

It is covered. Truth: float64 central differences (below 1e-6), at zeros too, where it promises a gradient of 0, and
`torch.abs` of complex numbers, to second order; half precision, strided inputs and cotangents, changes in place.
"""

import torch

from labels import Bug, Call, Package

PACKAGE = Package("kymatio", "0.3.0", "wavelet scattering", ("scipy==1.17.1",))

SQUARES = "the squares leave the range of float32 beyond 1e19 and below 1e-23, of float16 beyond 256 and below 1e-4"
RANGE = {"PB301": SQUARES, "PB302": SQUARES, "PB303": SQUARES}


def _modulus():
    from kymatio.backend.torch_backend import ModulusStable

    return ModulusStable


# First order right, and second order but where the modulus is 0: differences (below 1e-6), `torch.abs`.
def modulus():
    torch.manual_seed(0)
    return _modulus(), (torch.randn(2, 3, 4, 2),)


# As above.
def modulus_of_one_number():
    return _modulus(), (torch.tensor([3.0, 4.0]),)


def second_derivative_at_zero_is_nan():
    """Whether it is, though the gradient there is 0, and that of `torch.abs` has a second derivative of 0."""
    found = []
    for function in (_modulus().apply, lambda x: torch.view_as_complex(x).abs()):
        x = torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=torch.float64, requires_grad=True)
        (gradient,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(gradient.square().sum() + x.square().sum(), x)
        found.append((gradient.detach(), second))
    (first, second), (first_of_abs, second_of_abs) = found
    same = torch.allclose(first, first_of_abs)
    return bool(same and second[0].isnan().all() and second_of_abs.isfinite().all())


AT_ZERO = Bug(
    "where the modulus is 0, which the function is made for, the second derivative is NaN",
    ("PB401", "PB304"),
    second_derivative_at_zero_is_nan,
)
CALLS = (
    Call(modulus, bugs=(AT_ZERO,), doubtful=RANGE),
    Call(
        modulus_of_one_number,
        bugs=(AT_ZERO,),
        doubtful=RANGE,
        judged={
            "PB101": (False, "the last dimension holds a real and an imaginary part; the variant has 48 numbers there")
        },
    ),
)

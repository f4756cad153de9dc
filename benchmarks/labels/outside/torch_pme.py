"""torch-pme: what is known of its custom function.

`_CustomExp1`, the exponential integral, is covered by itself, by the potentials that use it, and by a sum over waves
with one of them. Truth: scipy's exp1 and float64 central differences. Double backward, strided, expanded and empty
inputs and cotangents, arguments frozen, two backwards, checkpoints, changes in place, float32, bfloat16, autocast,
from 1e-300 to 800.
"""

import torch

from labels import Call, Package

PACKAGE = Package("torch-pme", "0.5.0", "molecular simulation")

DOUBTFUL = {
    **dict.fromkeys(("PB405", "PB406", "PB407"), "torch.func does not take it: it has no setup_context"),
    **dict.fromkeys(("PB301", "PB302", "PB501"), "for positive numbers: elsewhere the value is infinite, also for NaN"),
}


# Right, twice: differences, scipy.
def exponential_integral():
    from torchpme.lib import exp1

    torch.manual_seed(0)
    return exp1, (0.05 + 4 * torch.rand(3, 4),)


def _potential(exponent):
    from torchpme import InversePowerLawPotential

    torch.manual_seed(0)
    potential = InversePowerLawPotential(exponent=exponent, smearing=0.7)
    return (lambda k_sq: potential.to(k_sq.dtype).lr_from_k_sq(k_sq)), (0.1 + 4 * torch.rand(3, 4),)


# Right, twice: differences.
def cubed():
    return _potential(3)


# Right, twice: differences.
def fifth():
    return _potential(5)


# Right, twice: differences.
def ewald():
    from torchpme import EwaldCalculator, InversePowerLawPotential

    torch.manual_seed(0)
    calculator = EwaldCalculator(InversePowerLawPotential(exponent=3, smearing=0.6), lr_wavelength=1.0)
    pairs = torch.tensor([[0, 1], [0, 2], [1, 2]])

    def potential(charges, cell, positions):
        distances = (positions[pairs[:, 0]] - positions[pairs[:, 1]]).norm(dim=-1)
        return calculator.to(charges.dtype)(charges, cell, positions, pairs, distances)

    cell = 3 * torch.eye(3) + 0.1 * torch.randn(3, 3)
    return potential, (torch.tensor([[1.0], [-0.4], [-0.6]]), cell, 3 * torch.rand(3, 3))


NOT_THE_COPY = {
    "PB414": (False, "a call with bfloat16 had rounded the smearing for good: eager mode had changed by then, too")
}

CALLS = (
    Call(exponential_integral, doubtful=DOUBTFUL),
    Call(cubed, doubtful=DOUBTFUL, judged=NOT_THE_COPY),
    Call(
        ewald,
        doubtful={**DOUBTFUL, "PB413": "matrices are multiplied in half precision", "PB303": "a sum of waves"},
        judged=NOT_THE_COPY,
    ),
    Call(
        fifth,
        doubtful={**DOUBTFUL, "PB303": "the difference of two nearly equal numbers, in PyTorch's own operations"},
        judged=NOT_THE_COPY,
    ),
)

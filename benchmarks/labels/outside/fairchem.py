"""fairchem-core: what is known of two of its custom functions.

`Safeacos` and `Safeatan2` are covered as the rotation of an edge applies them; its energies are differentiated once
for the forces, and again to train on them. Truth: float64 central differences. Double backward, strided and expanded
inputs and cotangents, arguments frozen, two backwards, checkpoints, changes in place, bfloat16, autocast.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.blind import bare
from labels.fresh import second_is_wrong

PACKAGE = Package("fairchem-core", "2.24.0", "interatomic potentials")

SAFE = "by design: where the derivative is infinite, and near there, a finite one is given"
DOUBTFUL = {
    **dict.fromkeys(("PB405", "PB406", "PB407"), "torch.func does not take it: it has no setup_context"),
    **dict.fromkeys(("PB101", "PB301", "PB302", "PB303", "PB305"), SAFE),
    "PB409": "the backward is kept out of compilation",
    "PB410": "the backward is kept out of compilation",
    "PB415": "the backward is kept out of compilation",
}


def _rotation():
    bare("fairchem", "fairchem.core", "fairchem.core.models", "fairchem.core.models.uma")
    bare("fairchem.core.models.uma.common")
    from fairchem.core.models.uma.common import rotation

    torch.manual_seed(0)
    return rotation


# First order right, away from the ends: differences.
def latitude():
    return _rotation().Safeacos, (1.8 * torch.rand(6) - 0.9,)


# Right, twice, away from the origin: differences.
def longitude():
    return _rotation().Safeatan2, tuple(torch.randn(2, 6).unbind())


CALLS = (
    Call(
        latitude,
        bugs=(
            Bug(
                "what is saved is the clamped input, made without a graph: the second derivative is silently wrong",
                ("PB404", "PB401", "PB604"),
                partial(second_is_wrong, latitude),
            ),
        ),
        doubtful=DOUBTFUL,
    ),
    Call(longitude, doubtful=DOUBTFUL),
)

"""dxtb: what is known of its custom functions.

Three are covered, of eight, for a molecule of water: coefficients of integrals, the Coulomb matrix, and repulsion as a
function of positions. Of its parameters it is asked for its gradient by the function itself, which calls itself until
no thread is left: that is no label, for running it ends the process. Truth: float64 central differences. Double
backward, frozen arguments, strided inputs and cotangents, two backwards, checkpoints, changes in place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import second_raises

PACKAGE = Package(
    "dxtb",
    "0.4.0",
    "quantum chemistry",
    (
        "tad-mctc==0.7.0",
        "tad-dftd3==0.6.0",
        "tad-dftd4==0.8.0",
        "tad-multicharge==0.5.0",
        "tad-libcint==0.4.0",
        "pydantic==2.14.4",
        "pydantic-core==2.50.5",
        "annotated-types",
        "typing-inspection",
        "tomli",
        "tomli-w",
        "scipy==1.17.1",
    ),
)

SMALL = "in half precision and float32 the sums lose digits"
DOUBTFUL = {"PB303": SMALL, "PB302": SMALL, "PB205": "all arguments are saved, whichever need a gradient"}


def _water():
    numbers = torch.tensor([8, 1, 1])
    positions = [[0.0, 0.0, 0.2], [1.4, 0.1, -0.9], [-1.4, 0.0, -1.0]]
    return numbers, torch.tensor(positions, dtype=torch.float64), ~torch.eye(3, dtype=torch.bool)


# Right, once: differences.
def coefficients():
    from dxtb._src.integral.driver.pytorch.impls.md.recursion import EFunction

    torch.manual_seed(0)
    x, a, b = torch.rand(3, dtype=torch.float64), *torch.randn(2, 3, dtype=torch.float64)
    return EFunction, (x, a, b, (3, 5, 5))


# Right, once: differences; twice where the cotangent is fixed.
def coulomb():
    from dxtb import GFN1_XTB, IndexHelper
    from dxtb._src.components.interactions.coulomb.average import harmonic_average
    from dxtb._src.components.interactions.coulomb.secondorder import CoulombMatrixAG

    numbers, positions, mask = _water()
    helper = IndexHelper.from_numbers(numbers, GFN1_XTB)
    hardness, exponent = torch.tensor([0.47, 0.58], dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64)
    return CoulombMatrixAG, (
        mask,
        positions,
        helper,
        hardness,
        torch.tensor(0),
        exponent,
        harmonic_average,
        False,
    )


# Right, twice: differences.
def repulsion():
    from dxtb._src.components.classicals.repulsion.rep import RepulsionAG_V2

    _, positions, mask = _water()
    charge = torch.tensor([5.8, 1.1, 1.1], dtype=torch.float64)
    screen = torch.tensor([2.2, 2.0, 2.0], dtype=torch.float64)
    powers = torch.full((3, 3), 1.5, dtype=torch.float64)
    outer = ((screen[:, None] * screen).sqrt(), powers, charge[:, None] * charge)

    def energy(x):
        return RepulsionAG_V2.apply(x, mask, *(o.to(x.dtype) for o in outer), 25.0)

    return energy, (positions,)


CALLS = (
    Call(
        coefficients,
        bugs=(
            Bug(
                "double backward raises, with a word on changes in place: the traced derivative is filled step by step",
                ("PB403", "PB401"),
                partial(second_raises, coefficients, "modified by an inplace operation"),
            ),
        ),
        doubtful=DOUBTFUL,
    ),
    Call(
        coulomb,
        bugs=(
            Bug(
                "a second derivative of what is not linear in the matrix raises: the inner graph is freed halfway",
                ("PB403", "PB401"),
                partial(second_raises, coulomb, "backward through the graph a second time"),
            ),
        ),
        doubtful={**DOUBTFUL, "PB301": "true, of an exponent of 0.008, which is 2 and was scaled with the rest"},
    ),
    Call(repulsion, doubtful=DOUBTFUL),
)

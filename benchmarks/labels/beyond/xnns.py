"""xnns: what is known of its custom functions.

`_SegmentSum`, `_SegmentExpand`, `_EdgeVectors`, `_AugmentedSolve`, `_RecomputeBlock` with its `_RecomputeGrad`, with and
without a formula for the gradient, and `_AugmentedSolveSlope` alone and within the charges that it is made for. Truth:
float64 central differences. Double backward, strided inputs and cotangents, frozen arguments, two backwards,
checkpoints, changes in place, autocast.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.last import derivative_of_backward_is_wrong

PACKAGE = Package("xnns", "0.22.0", "interatomic potentials", ("tqdm", "pyyaml"))

FUNC = dict.fromkeys(("PB405", "PB406", "PB407"), "torch.func does not take it: it has no setup_context")
THIRD = "documented: third derivatives are not supported"
BLOCK = FUNC | {"PB408": "a vectorised backward raises: it detaches what it computes again", "PB401": THIRD}
NARROW = dict.fromkeys(("PB105", "PB119", "PB413"), "LAPACK has no half precision, and PyTorch says so")
SOLVE = FUNC | NARROW | {"PB408": "a vectorised backward raises: the solver detaches its right-hand side"}


def _randn(*shape):
    torch.manual_seed(0)
    return torch.randn(*shape, dtype=torch.float64)


# Right, twice: differences.
def segments():
    from xnn.common.models.ops import segment_sum

    return segment_sum, (_randn(6, 2), torch.tensor([2, 1, 3]))


# Right, twice: differences.
def expansion():
    from xnn.common.models.ops import _SegmentExpand

    return _SegmentExpand, (_randn(3, 2), torch.tensor([2, 1, 3]))


# Right, twice: differences.
def edges():
    from xnn.common.data.atomic_data import _EdgeVectors

    index = torch.tensor([[0, 1, 1, 2, 0], [1, 0, 2, 1, 0]])
    shifts = torch.tensor([[0, 0, 0], [0, 0, 0], [1, 0, 0], [-1, 0, 0], [0, 1, 0]])
    cell = 3 * torch.eye(3, dtype=torch.float64) + 0.1
    return (lambda at, cell: _EdgeVectors.apply(at, cell, index, shifts, at.dtype)), (_randn(3, 3), cell)


def _energy(at, weight):
    between = at[:, None] - at[None]
    return (torch.exp(-(between * between).sum(-1)) * weight[:, None] * weight).sum(1)


def _energy_gradient(g, at, weight):
    between = at[:, None] - at[None]
    pairs = torch.exp(-(between * between).sum(-1)) * weight[:, None] * weight * (g[:, None] + g)
    return -2 * (pairs[..., None] * between).sum(1), pairs.sum(1) / weight


# Right, twice: differences.
def block():
    from xnn.common.models.recompute import recompute

    return (lambda at, weight: recompute(_energy, at, weight)), (_randn(4, 3), _randn(4) + 3)


# Right, twice: differences.
def block_with_formula():
    from xnn.common.models.recompute import recompute

    return (
        (lambda at, weight: recompute(_energy, at, weight, grad_fn=_energy_gradient)),
        (_randn(4, 3), _randn(4) + 3),
    )


def _tables(dtype):
    rad = torch.tensor([0.55, 0.8, 0.7, 0.55], dtype=dtype)
    return rad, torch.tensor([1.1, 0.9, 1.2, 1.1], dtype=dtype) + (2 / torch.pi) ** 0.5 / rad


def _system(at):
    from xnn.common.models.eeq import EEQSystem

    rad, diag = _tables(at.dtype)
    return EEQSystem(diag, rad, at)


# Right, twice: differences.
def solution():
    from xnn.common.models.eeq import _AugmentedSolve

    at = 2 * _randn(4, 3)
    return (
        (lambda top, bottom: _AugmentedSolve.apply(_system(at.to(top.dtype)), top, bottom)),
        (_randn(4), torch.tensor(0.5, dtype=torch.float64)),
    )


# By design: 0, with the slope of a solution.
def slope():
    from xnn.common.models.eeq import _AugmentedSolveSlope

    at = 2 * _randn(4, 3)
    return (
        (lambda top, bottom: _AugmentedSolveSlope.apply(_system(at.to(top.dtype)), top, bottom)),
        (_randn(4), torch.tensor(0.5, dtype=torch.float64)),
    )


# First order right: differences.
def charges():
    from xnn.common.models.eeq import eeq_charges_large

    def solve(at, x, total):
        rad, diag = _tables(at.dtype)
        return eeq_charges_large(_system(at), at, None, rad, diag, x, total)

    return solve, (2 * _randn(4, 3), _randn(4), torch.tensor(0.5, dtype=torch.float64))


CALLS = (
    *(
        Call(
            make,
            doubtful=FUNC,
            judged=dict.fromkeys(("PB104", "PB119"), (False, "the lengths do not add up to the number of rows")),
        )
        for make in (segments, expansion, edges)
    ),
    *(Call(make, doubtful=BLOCK) for make in (block, block_with_formula)),
    Call(solution, doubtful=SOLVE),
    Call(
        slope,
        "other",
        doubtful={
            **SOLVE,
            **dict.fromkeys(("PB101", "PB302", "PB208"), "by design: the value is 0, the gradient that of a solution"),
        },
    ),
    Call(
        charges,
        bugs=(
            Bug(
                "the charges that the forces are linear in are a constant to double backward: silently, a term is lost",
                ("PB401", "PB402", "PB404", "PB604"),
                partial(derivative_of_backward_is_wrong, charges, 1),
            ),
        ),
        doubtful=SOLVE,
    ),
)

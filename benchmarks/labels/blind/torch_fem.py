"""torch-fem: what is known of its custom functions.

All three are covered, called through the package's own functions. Truth: float64 central differences of matrix, right
side, load, stiffness and previous state (1e-11); second derivatives; frozen and strided arguments, changes in place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.blind import bare
from labels.fresh import raises_when_frozen, second_is_wrong, second_raises

PACKAGE = Package("torch-fem", "0.14.0", "solid mechanics", ("pyamg", "scipy==1.17.1"))

NARROW = "NumPy and sparse products have no bfloat16: the forward refuses it"
SINGULAR = "of a matrix that is nearly singular, or of equal eigenvalues"
TOLERANCE = "as exact as the solver's tolerance"
DOUBTFUL = {"PB413": NARROW, "PB303": TOLERANCE, "PB301": SINGULAR, "PB101": SINGULAR, "PB601": TOLERANCE}

ROWS = torch.tensor([0, 0, 1, 1, 1, 2, 2, 2, 3, 3])
COLUMNS = torch.tensor([0, 1, 0, 1, 2, 1, 2, 3, 2, 3])


def _sparse():
    bare("torchfem")
    from torchfem import sparse

    return sparse


def _solve(**options):
    sparse = _sparse()

    def solution(values, load):
        matrix = torch.sparse_coo_tensor(torch.stack([ROWS, COLUMNS]), values, (4, 4)).coalesce()
        return sparse.differentiable_sparse_solve(matrix, load, **options)

    torch.manual_seed(0)
    return solution, (0.5 * torch.randn(10) + 4.0 * (ROWS == COLUMNS), torch.randn(4))


# First order right: differences (4e-12).
def direct():
    return _solve()


# First order right: differences (6e-12).
def stabilised_gradients():
    return _solve(method="bicgstab", preconditioner="jacobi", stol=1e-12)


# First order right: differences (2e-11). The modes have no gradient, and are detached.
def eigenvalues():
    sparse = _sparse()

    def lowest(stiffness, mass):
        coupling = -torch.ones(4, dtype=stiffness.dtype)
        matrix = torch.diag(stiffness) + torch.diag(coupling, 1) + torch.diag(coupling, -1)
        mass = torch.diag(mass)
        return sparse.differentiable_modal_eigsolve(matrix.to_sparse_csr(), mass.to_sparse_csr(), 2, torch.arange(5))[0]

    torch.manual_seed(1)
    return lowest, (3 + torch.rand(5), 1 + torch.rand(5))


# First order right where all parameters require a gradient: differences (8e-12).
def newton():
    sparse = _sparse()

    def increment(load, stiffness, previous):
        def residual(step, _, state):
            u = state[0] + step
            return stiffness * u + u**3 - load, torch.diag(stiffness + 3 * u**2).to_sparse_csr()

        zero = torch.zeros_like(load)
        tolerance = 1e-12 if load.dtype == torch.float64 else 1e-5
        settings = 50, tolerance, tolerance, tolerance, None, "direct", None, None
        rigid = torch.zeros(4, 1, dtype=load.dtype)
        return sparse.newton_solve(residual, zero, rigid, *settings, previous, zero, zero, zero, load, stiffness)

    torch.manual_seed(1)
    return increment, (torch.randn(4), 1 + torch.rand(4), 0.3 * torch.randn(4))


TWICE = ("PB401", "PB404", "PB403", "PB604")

CALLS = (
    Call(
        direct,
        bugs=(
            Bug(
                "double backward raises, from NumPy, without saying that it isn't supported",
                ("PB403", "PB401"),
                partial(second_raises, direct, "numpy()"),
            ),
        ),
        judged={"PB002": (False, "SciPy gets tensors that wrap others, under is_grads_batched, which nobody promises")},
        doubtful=DOUBTFUL,
    ),
    Call(
        stabilised_gradients,
        bugs=(
            Bug(
                "the second derivative in the matrix is silently wrong",
                ("PB401", "PB404"),
                partial(second_is_wrong, stabilised_gradients),
            ),
        ),
        doubtful=DOUBTFUL,
    ),
    Call(
        eigenvalues,
        bugs=(
            Bug(
                "the second derivative is silently wrong: it takes the modes for constants",
                ("PB401", "PB404"),
                partial(second_is_wrong, eigenvalues),
            ),
        ),
        doubtful=DOUBTFUL,
    ),
    Call(
        newton,
        bugs=(
            Bug(
                "where one of the parameters is frozen, the backward raises",
                ("PB113", "PB119"),
                partial(raises_when_frozen, newton, 0, "does not require grad"),
            ),
            Bug(
                "the second derivative is silently wrong: a backward within the backward keeps no graph",
                TWICE,
                partial(second_is_wrong, newton),
            ),
        ),
        doubtful=DOUBTFUL,
    ),
)

"""tensormesh: what is known of its custom functions.

Sparse products by SciPy and by PyTorch, solutions by SciPy and by PyTorch, and `NonLinearSolveFunction` by
`nonlinear_solve`, which applies it. Truth: float64 central differences. Double backward, strided inputs and cotangents,
frozen arguments, two backwards, checkpoints, changes in place, autocast.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import (
    first_is_wrong,
    raises_in_autocast,
    raises_in_checkpoint,
    raises_when_frozen,
    second_is_wrong,
)

PACKAGE = Package(
    "tensormesh-fem",
    "0.2.1",
    "finite elements",
    ("torch-sla==0.4.0", "scipy==1.17.1", "meshio", "tqdm", "toml", "psutil", "rich"),
)

FUNC = dict.fromkeys(("PB405", "PB406", "PB407"), "torch.func does not take it: it has no setup_context")
NARROW = dict.fromkeys(("PB105", "PB119", "PB413"), "SciPy has no half precision: the forward says so")
BATCH = {"PB408": "a vectorised backward raises: sparse matrices take no batch"}
TWICE = ("PB401", "PB402", "PB403", "PB404", "PB604")
SINGULAR = dict.fromkeys(("PB301", "PB303"), "a matrix that is singular, or nearly so, has no solution")


def _system(size=5):
    """Values, rows, columns and shape of a tridiagonal matrix, row by row."""
    torch.manual_seed(0)
    near = [(i, j) for i in range(size) for j in range(size) if abs(i - j) < 2]
    row, col = torch.tensor(near).T.contiguous()
    values = torch.rand(len(near), dtype=torch.float64) + 4 * (row == col)
    return values, row, col, (size, size)


def _vector(*shape):
    torch.manual_seed(1)
    return torch.randn(*shape, dtype=torch.float64)


# First order right: differences.
def product_scipy():
    from tensormesh.sparse.mm import SparseMVScipy

    return SparseMVScipy, (*_system(), _vector(5))


# First order right: differences.
def products_scipy():
    from tensormesh.sparse.mm import SparseMMScipy

    return SparseMMScipy, (*_system(), _vector(5, 2))


# Right, twice: differences.
def product_torch():
    from tensormesh.sparse.mm import SparseMVTorch

    return SparseMVTorch, (*_system(), _vector(5))


# Right, twice: differences.
def products_torch():
    from tensormesh.sparse.mm import SparseMMTorch

    return SparseMMTorch, (*_system(), _vector(5, 2))


# First order right: differences.
def solution_scipy():
    from tensormesh.sparse.solve.scipy_solve import SparseSolveScipy

    return SparseSolveScipy, (*_system(), _vector(5))


# First order right: differences.
def solutions_scipy():
    from tensormesh.sparse.solve.scipy_solve import SparseLUSolveScipy

    return SparseLUSolveScipy, (*_system(), _vector(5, 2))


# Wrong.
def solution_torch():
    from tensormesh.sparse.solve.torch_solve import SparseSolveTorch

    return SparseSolveTorch, (*_system(), _vector(5), None, 1e-10, 100)


# First order right: differences.
def nonlinear():
    from tensormesh.sparse.matrix import SparseMatrix
    from tensormesh.sparse.nonlinear_solve import nonlinear_solve

    values, row, col, shape = _system()
    diagonal = (torch.nonzero(row == col)[:, 0],)

    def residual(u, load, weight):
        matrix = torch.zeros(shape, dtype=u.dtype).index_put((row, col), values.to(u.dtype))
        return matrix @ u + weight * u**3 - load

    def jacobian(u, load, weight):
        added = torch.zeros(len(row), dtype=u.dtype).index_put(diagonal, 3 * weight * u**2)
        return SparseMatrix(values.to(u.dtype) + added, row, col, shape)

    def solve(load, weight):
        start = torch.zeros(5, dtype=load.dtype)
        return nonlinear_solve(residual, jacobian, start, (load, weight), tol=1e-10)

    return solve, (_vector(5), torch.tensor(0.5, dtype=torch.float64))


def _cut(make):
    return Bug(
        "the backward goes through SciPy and returns a new leaf: the second derivative is silently wrong",
        TWICE,
        partial(second_is_wrong, make, 1),
    )


def _autocast(make):
    return Bug(
        "under autocast the forward gives bfloat16, which the backward multiplies with float32: it raises",
        ("PB413", "PB119", "PB105"),
        partial(raises_in_autocast, make, "expected scalar type"),
    )


CALLS = (
    *(Call(make, bugs=(_cut(make),), doubtful=FUNC | NARROW | BATCH) for make in (product_scipy, products_scipy)),
    *(Call(make, bugs=(_autocast(make),), doubtful=FUNC | BATCH) for make in (product_torch, products_torch)),
    *(
        Call(make, bugs=(_cut(make),), doubtful=FUNC | NARROW | BATCH | SINGULAR)
        for make in (solution_scipy, solutions_scipy)
    ),
    Call(
        solution_torch,
        bugs=(
            Bug(
                "the transposed entries are called sorted, and are not: what is right of the diagonal is silently left out",
                ("PB101",),
                partial(first_is_wrong, solution_torch, 1),
            ),
        ),
        doubtful=FUNC | NARROW | BATCH | SINGULAR,
        judged={"PB401": (True, "for the same reason, the derivative of the backward is wrong, too")},
    ),
    Call(
        nonlinear,
        bugs=(
            Bug(
                "the gradient of the residual is taken without a graph: the second derivative is silently wrong",
                TWICE,
                partial(second_is_wrong, nonlinear, 0),
            ),
            Bug(
                "where a parameter needs no gradient, the backward asks for it all the same, and raises",
                ("PB113", "PB119"),
                partial(raises_when_frozen, nonlinear, 0, "does not require grad"),
            ),
            Bug(
                "the saved tensors are read twice: under checkpointing the backward raises",
                ("PB411", "PB412"),
                partial(raises_in_checkpoint, nonlinear, "already unpacked once"),
            ),
        ),
        doubtful=FUNC | NARROW | BATCH | {"PB303": "as exact as Newton's iteration"},
    ),
)

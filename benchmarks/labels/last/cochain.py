"""cochain: what is known of its custom functions.

Six are covered, of eleven; the others need a GPU or are alike. Truth: float64 central differences (below 1e-6; of
eigenvalues in symmetric directions). Frozen arguments, strided inputs and cotangents, double backward, two backwards,
checkpoints, changes in place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.blind import bare
from labels.last import derivative_of_backward_is_wrong, second_backward_raises

PACKAGE = Package(
    "cochain",
    "0.1.0a0",
    "discrete exterior calculus",
    ("jaxtyping", "wadler-lindig", "scipy==1.17.1", "einops", "numba", "llvmlite"),
)

SPARSE = "PyTorch's sparse matrices take no half precision, no batch and no torch.func, and say so"
MATRIX = {"PB405": SPARSE, "PB406": SPARSE, "PB407": SPARSE, "PB408": SPARSE, "PB413": SPARSE, "PB409": SPARSE}
VIEW = "the output is a view: changing it in place raises, with PyTorch's message on views"
ONCE = "once_differentiable, and documented: double backward is not supported"
STRIDES = "a right-hand side of three dimensions that is not contiguous is refused, though a copy is promised"


def _pattern(mask):
    from cochain.sparse.decoupled_tensor.pattern import SparsityPattern

    index = mask.nonzero().T.contiguous()
    return index, SparsityPattern(index, mask.shape)


def _sparse(rows, columns, seed=0):
    torch.manual_seed(seed)
    index, pattern = _pattern(torch.rand(rows, columns) < 0.6)
    return torch.randn(index.shape[1], dtype=torch.float64), pattern


def _function(name):
    from cochain.sparse.decoupled_tensor import _matmul

    return getattr(_matmul, f"FixedTopo{name}AutogradFunction")


def _tensor(pattern, values):
    from cochain.sparse.decoupled_tensor import SparseDecoupledTensor

    return SparseDecoupledTensor(pattern, values)


# First and second order right: differences.
def sparse_times_dense():
    return _function("SpDenseMM"), (*_sparse(4, 5), torch.randn(5, 3, dtype=torch.float64))


# First and second order right: differences.
def dense_times_sparse():
    return _function("DenseSpMM"), (*_sparse(4, 5), torch.randn(3, 4, dtype=torch.float64))


# First and second order right: differences.
def sparse_times_vector():
    return _function("SpMV"), (*_sparse(4, 5), torch.randn(5, dtype=torch.float64))


# First and second order right: differences.
def sparse_times_sparse():
    (a, left), (b, right) = _sparse(4, 5), _sparse(5, 3, 1)
    return (lambda a, b: (_tensor(left, a) @ _tensor(right, b)).values), (a, b)


def _band():
    index, pattern = _pattern(sum(torch.eye(6).roll(shift, 0) for shift in (-1, 0, 1)) > 0)
    return index, pattern


# First order right: differences.
def solve():
    bare("cochain.sparse.linalg", "cochain.sparse.linalg.solvers")
    from cochain.sparse.linalg.solvers.splu_wrapper import splu

    index, pattern = _band()
    torch.manual_seed(0)
    values = torch.rand(index.shape[1], dtype=torch.float64) + 4 * (index[0] == index[1])
    return (lambda a, b: splu(_tensor(pattern, a), b, backend="scipy")), (
        values,
        torch.randn(6, 2, dtype=torch.float64),
    )


# First order right: differences.
def eigenvalues():
    bare("cochain.sparse.linalg", *("cochain.sparse.linalg.eigen" + m for m in ("", ".eigsh")))
    from cochain.sparse.linalg.eigen.eigsh.scipy_eigsh_wrapper import scipy_eigsh

    index, pattern = _band()

    def function(matrix):
        values = (matrix + matrix.mT)[index[0], index[1]]
        return scipy_eigsh(_tensor(pattern, values), k=2, return_eigenvectors=False)

    torch.manual_seed(0)
    return function, (torch.rand(6, 6, dtype=torch.float64) + torch.diag(torch.arange(6.0)),)


def eigenvalues_change_their_order():
    """Whether those of a negative definite matrix come in another order where a gradient is asked for."""
    function, (matrix,) = eigenvalues()
    plain = function(-matrix)
    with_gradient = function((-matrix).requires_grad_()).detach()
    return bool(torch.allclose(plain.flip(0), with_gradient) and not torch.allclose(plain, with_gradient))


CALLS = (
    Call(sparse_times_dense, doubtful=MATRIX),
    Call(dense_times_sparse, doubtful={**MATRIX, "PB207": VIEW}),
    Call(sparse_times_vector, doubtful=MATRIX),
    Call(sparse_times_sparse, doubtful=MATRIX),
    Call(
        solve,
        bugs=(
            Bug(
                "the backward frees the factorisation though the graph is retained, unlike what is documented: the "
                "next one raises",
                ("PB206",),
                partial(second_backward_raises, solve, "Solver was released"),
            ),
        ),
        doubtful={
            **MATRIX,
            **dict.fromkeys(("PB401", "PB402", "PB403", "PB404"), ONCE),
            "PB501": STRIDES,
            "PB502": STRIDES,
        },
    ),
    Call(
        eigenvalues,
        bugs=(
            Bug(
                "of the eigenvectors' derivatives, which the second derivative needs, only the part among those that "
                "were asked for is there: it is silently wrong",
                ("PB401", "PB404"),
                partial(derivative_of_backward_is_wrong, eigenvalues),
            ),
            Bug(
                "eigenvectors are computed only where a gradient is asked for, and negative eigenvalues then come in "
                "another order",
                ("PB117", "PB101"),
                eigenvalues_change_their_order,
            ),
        ),
        doubtful={
            **MATRIX,
            "PB303": "a small constant keeps equal eigenvalues apart",
            "PB601": "ARPACK starts at random",
        },
    ),
)

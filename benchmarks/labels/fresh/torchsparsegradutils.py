"""torchsparsegradutils: what is known of its custom functions.

Those for matrix product, triangular and general systems, and least squares are covered, as functions of the entries of
the sparse matrix and of the dense one; left out are those for CuPy and JAX. Truth: float64 central differences (below
1e-9), and the dense functions of PyTorch. PyTorch's own second derivatives are wrong for a sparse matrix with
coordinates, so those of a general system are left open.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import far, first_is_wrong, gradients, second_is_wrong

PACKAGE = Package("torchsparsegradutils", "0.2.7", "sparse linear algebra", needs=("scipy==1.17.1", "packaging"))

BATCH = "a vectorised backward raises, as it does for PyTorch's own sparse functions"
ALIAS = "a change of the entries of an uncoalesced matrix is unnoticed, as it is for PyTorch's own sparse functions"
NARROW = "bfloat16 and float16 are refused by PyTorch's own sparse functions"
SECOND = "double backward raises within PyTorch: it is not implemented for such a layout"
OWN = "PyTorch's own second derivatives are wrong for a sparse matrix with coordinates"
VIEW = "the output is a view, or is saved: changing it in place raises, with PyTorch's message"
REAL = "complex entries get a gradient without its conjugate: documented for real ones"
ITERATED = "an iterative solver has its tolerance"
DOUBTFUL = {"PB408": BATCH, "PB209": ALIAS, "PB413": NARROW, "PB207": VIEW, "PB116": REAL}
COMPRESSED = {**DOUBTFUL, "PB403": SECOND}
SOLVED = {**COMPRESSED, "PB303": ITERATED, "PB401": OWN, "PB404": OWN}

PATTERN = torch.tensor([[0, 0, 1, 1, 2, 2], [0, 2, 1, 3, 0, 2]])
TRIANGLE = torch.tensor([[0, 0, 1, 2], [0, 2, 1, 2]])
BAND = torch.tensor([[0, 0, 1, 1, 1, 2, 2], [0, 1, 0, 1, 2, 1, 2]])
TALL = torch.tensor([[0, 1, 1, 2, 2, 3, 3, 3], [0, 0, 1, 0, 1, 0, 1, 2]])


def _coordinates(values, pattern, *size):
    return torch.sparse_coo_tensor(pattern, values, size).coalesce()


def _compressed(values, pattern, *size):
    rows = torch.bincount(pattern[0], minlength=size[0]).cumsum(0)
    return torch.sparse_csr_tensor(torch.cat([rows.new_zeros(1), rows]), pattern[1], values, size)


def _dense(*size):
    return torch.randn(size, generator=torch.Generator().manual_seed(0))


def _product(matrix):
    from torchsparsegradutils import sparse_mm

    def product(values, dense):
        return sparse_mm(matrix(values), dense)

    return product


# First order right: differences (2e-11).
def product():
    return _product(lambda values: _coordinates(values, PATTERN, 3, 4)), (_dense(6), _dense(4, 2))


# First order right: differences (2e-11).
def product_compressed():
    return _product(lambda values: _compressed(values, PATTERN, 3, 4)), (_dense(6), _dense(4, 2))


# First order right: differences (8e-12).
def product_batched():
    batch = torch.cat([torch.arange(2).repeat_interleave(6)[None], PATTERN.repeat(1, 2)])
    return _product(lambda values: _coordinates(values, batch, 2, 3, 4)), (_dense(12), _dense(2, 4, 2))


REPEATED = torch.tensor([[0, 0, 0, 1, 2, 2], [0, 0, 2, 1, 0, 2]])


# Wrong: differences, and torch.sparse.mm, which is right.
def product_uncoalesced():
    def matrix(values):
        return torch.sparse_coo_tensor(REPEATED, values, (3, 4))

    return _product(matrix), (_dense(6), _dense(4, 2))


def repeated_are_counted_twice():
    dense = _dense(4, 2).double()
    native = _dense(6).double().requires_grad_()
    value = torch.sparse.mm(torch.sparse_coo_tensor(REPEATED, native, (3, 4)), dense).sum()
    (expected,) = torch.autograd.grad(value, native)
    values = _dense(6).double().requires_grad_()
    (found,) = torch.autograd.grad(product_uncoalesced()[0](values, dense).sum(), values)
    return far(found, expected, 0.5) and first_is_wrong(product_uncoalesced, 0)


def _triangular(matrix, values, **options):
    from torchsparsegradutils import sparse_triangular_solve

    def solution(values, dense):
        return sparse_triangular_solve(matrix(values), dense, **options)

    return solution, (torch.tensor(values), _dense(3, 2))


# First order right: differences (5e-11), and torch.linalg.solve_triangular.
def triangular():
    return _triangular(lambda values: _compressed(values, TRIANGLE, 3, 3), [2.0, 1.0, 3.0, 1.5])


# First order right: differences (5e-11).
def triangular_transposed():
    return _triangular(lambda values: _coordinates(values, TRIANGLE, 3, 3), [2.0, 1.0, 3.0, 1.5], transpose=True)


# First order right: differences (5e-12).
def triangular_of_unit_diagonal():
    pattern = torch.tensor([[0, 0, 1], [1, 2, 2]])
    return _triangular(lambda values: _compressed(values, pattern, 3, 3), [0.4, -1.2, 0.7], unitriangular=True)


def _symmetric(values):
    diagonal, beside = values[:3] ** 2 + 3, values[3:]
    return torch.stack([diagonal[0], *beside[[0, 0]], diagonal[1], *beside[[1, 1]], diagonal[2]])


def _general(matrix, values, size, solver=None, transposed=None):
    import torchsparsegradutils
    from torchsparsegradutils import utils

    solve = getattr(utils, solver) if solver else None
    transpose_solve = (lambda a, b: solve(a.t(), b)) if transposed else None

    def solution(values, dense):
        options = {"solve": solve, "transpose_solve": transpose_solve}
        return torchsparsegradutils.sparse_generic_solve(matrix(values), dense, **options)

    return solution, (torch.tensor(values), _dense(*size))


SYMMETRIC = [1.0, 0.5, 0.8, -1.0, 1.2]
UNSYMMETRIC = [4.0, -1.0, -0.5, 4.0, 1.0, 0.7, 3.0]


# First order right: differences (6e-11).
def system_symmetric():
    return _general(lambda values: _coordinates(_symmetric(values), BAND, 3, 3), SYMMETRIC, (3, 2))


# First order right: differences (6e-11).
def system_by_conjugate_gradients():
    return _general(lambda values: _compressed(_symmetric(values), BAND, 3, 3), SYMMETRIC, (3, 2), "linear_cg")


# Wrong: differences. The documentation names this solver for matrices that aren't symmetric, and no other argument.
def system_unsymmetric():
    return _general(lambda values: _coordinates(values, BAND, 3, 3), UNSYMMETRIC, (3,), "bicgstab")


# First order right: differences (5e-11).
def system_unsymmetric_and_transposed():
    return _general(lambda values: _coordinates(values, BAND, 3, 3), UNSYMMETRIC, (3, 2), "bicgstab", True)


# First order right: differences (2e-9), and torch.linalg.lstsq.
def least_squares():
    from torchsparsegradutils import sparse_generic_lstsq

    def solution(values, dense):
        return sparse_generic_lstsq(_coordinates(values, TALL, 5, 3), dense)

    return solution, (torch.tensor([1.0, 2.0, 1.0, 1.0, 2.0, 3.0, 1.0, 1.0]), _dense(5))


def _graph_is_lost(make):
    return gradients(make)[1] is not None and second_is_wrong(make, 1)


LOST = ("PB401", "PB404", "PB403", "PB604")


def _detached(make):
    return Bug(
        "the second derivative is wrong: matrix and vectors are detached before they are saved",
        LOST,
        partial(second_is_wrong, make),
    )


MORE_VALUES = "a variant with more values than the pattern has places: nothing that it is for"

CALLS = (
    Call(product, bugs=(_detached(product),), doubtful=DOUBTFUL),
    Call(
        product_compressed, doubtful=COMPRESSED, judged={"PB002": (False, MORE_VALUES), "PB119": (False, MORE_VALUES)}
    ),
    Call(product_batched, bugs=(_detached(product_batched),), doubtful=DOUBTFUL),
    Call(
        product_uncoalesced,
        bugs=(
            Bug(
                "the gradient of entries that are added up is as many times too large",
                ("PB101",),
                repeated_are_counted_twice,
            ),
            _detached(product_uncoalesced),
        ),
        doubtful=DOUBTFUL,
    ),
    Call(triangular, doubtful=COMPRESSED, judged={"PB002": (False, MORE_VALUES)}),
    Call(
        triangular_transposed,
        doubtful={**COMPRESSED, "PB401": "PyTorch's own second derivatives of sparse matrices are wrong"},
    ),
    Call(triangular_of_unit_diagonal, doubtful=COMPRESSED),
    Call(system_symmetric, doubtful=SOLVED),
    Call(system_by_conjugate_gradients, doubtful=SOLVED),
    Call(
        system_unsymmetric,
        bugs=(
            Bug(
                "the transposed system is solved as if the matrix were symmetric, unless another solver is given for it",
                ("PB101",),
                partial(first_is_wrong, system_unsymmetric, 1),
            ),
        ),
        doubtful=SOLVED,
    ),
    Call(system_unsymmetric_and_transposed, doubtful=SOLVED),
    Call(
        least_squares,
        bugs=(
            Bug(
                "the gradient comes without a graph under create_graph: what it adds to a second derivative is lost",
                LOST,
                partial(_graph_is_lost, least_squares),
            ),
        ),
        doubtful={**DOUBTFUL, "PB303": ITERATED},
        judged={
            "PB101": (True, "the gradient of a stored value of 0 is 0, and its derivative is not (differences, 1e-8)"),
            "PB409": (False, "not seen again by hand"),
        },
    ),
)

"""torch-sla: what is known of its custom functions.

Six are covered, of those that run on a CPU. Truth: float64 central differences (below 1e-6, of nonlinear equations
5e-6; of eigenvalues in symmetric directions), `torch.linalg` on dense matrices. Frozen arguments, strided inputs and
cotangents, small and non-symmetric matrices, double backward, two backwards, checkpoints, changes in place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import differences, first_is_wrong, second_is_wrong, second_raises
from labels.last import derivative_of_backward_is_wrong

PACKAGE = Package("torch-sla", "0.4.0", "sparse linear algebra", ("scipy==1.17.1",))

SOLVERS = "the solvers take no half precision, no batch and no torch.func, and say so"
NARROW = dict.fromkeys(("PB413", "PB408", "PB405", "PB406", "PB409"), SOLVERS)
STEPS = "iterations end at a tolerance"
SINGULAR = "matrices of zeros are singular"


def _tridiagonal():
    torch.manual_seed(0)
    i = torch.arange(6)
    row, col = torch.cat([i, i[1:], i[:-1]]), torch.cat([i, i[:-1], i[1:]])
    off = -0.5 - torch.rand(5, dtype=torch.float64)
    return torch.cat([4 + torch.rand(6, dtype=torch.float64), off, off]), row, col, (6, 6)


def _vector():
    torch.manual_seed(1)
    return torch.randn(6, dtype=torch.float64)


# First order right: differences.
def solve():
    from torch_sla import spsolve

    val, row, col, shape = _tridiagonal()
    return (lambda val, b: spsolve(val, row, col, shape, b)), (val, _vector())


# First order right: differences.
def solve_by_iteration():
    from torch_sla.linear_solve import SparseLinearSolvePyTorch

    return SparseLinearSolvePyTorch, (*_tridiagonal(), _vector(), "cg", 1e-12, 1e-12, 1000, "jacobi", False)


def _determinant(scale):
    from torch_sla import SparseTensor

    val, row, col, shape = _tridiagonal()
    return (lambda val: SparseTensor(val, row, col, shape).det()), (scale * val,)


# First order right, where the determinant is not small: differences.
def determinant():
    return _determinant(0.25)


# The eigenvalues' gradient is right: differences.
def eigenvalues():
    from torch_sla import SparseTensor

    _, row, col, shape = _tridiagonal()

    def function(matrix):
        return SparseTensor((matrix + matrix.mT)[row, col], row, col, shape).eigsh(k=2)

    torch.manual_seed(0)
    return function, (torch.rand(6, 6, dtype=torch.float64) + torch.diag(torch.arange(6.0)),)


# First and second order right: differences.
def product():
    from torch_sla.sparse_tensor.autograd import SparseSparseMatmulFunction

    index = torch.tensor([0, 1, 3, 4, 5]), torch.tensor([1, 0, 2, 1, 2])
    return SparseSparseMatmulFunction, (*_tridiagonal(), _vector()[:5], *index, (6, 3))


def _nonlinear(matrix):
    from torch_sla import nonlinear_solve

    def residual(u, theta):
        return matrix.to(u.dtype) @ u + 0.1 * u**3 - theta

    def function(theta):
        return nonlinear_solve(residual, torch.zeros_like(theta), theta)

    return function, (_vector(),)


def _dense(right):
    """Diffusion, and advection where the right neighbour counts for less than the left one."""
    ones = torch.ones(5, dtype=torch.float64)
    return 3 * torch.eye(6, dtype=torch.float64) - torch.diag((2 - right) * ones, -1) - torch.diag(right * ones, 1)


# First order right: differences.
def nonlinear_diffusion():
    return _nonlinear(_dense(1.0))


# Wrong: differences, the dense adjoint.
def nonlinear_advection():
    return _nonlinear(_dense(0.5))


def small_determinant_has_no_gradient():
    """Whether that is 0 for a regular matrix of small numbers, though the logarithm's is its inverse."""
    function, (val,) = _determinant(1e-4)
    val.requires_grad_()
    (gradient,) = torch.autograd.grad(function(val).abs().log(), val)
    _, row, col, shape = _tridiagonal()
    dense = torch.zeros(shape, dtype=torch.float64).index_put((row, col), val.detach())
    return bool(torch.linalg.cond(dense) < 10 and (gradient == 0).all())


def eigenvectors_have_no_gradient():
    """Whether the fourth powers of the last one's components, which its sign leaves alone, get a gradient of 0."""
    function, (matrix,) = eigenvalues()

    def powers(matrix):
        return function(matrix)[1][:, -1].pow(4).sum()

    expected = differences(powers, matrix)
    value = powers(matrix.requires_grad_())
    (found,) = torch.autograd.grad(value, matrix)
    return bool(value.requires_grad and (found == 0).all() and expected.abs().max() > 0.01)


def eigenvalues_alone():
    function, arguments = eigenvalues()
    return (lambda matrix: function(matrix)[0]), arguments


def _lost(proof):
    return Bug(
        "the backward leaves the graph: the second derivative is silently wrong",
        ("PB401", "PB404", "PB604"),
        proof,
    )


CALLS = (
    Call(solve, bugs=(_lost(partial(second_is_wrong, solve, 1)),), doubtful={**NARROW, "PB301": SINGULAR}),
    Call(
        solve_by_iteration,
        bugs=(
            Bug(
                "double backward raises, of an argument called out, without saying that it is not supported",
                ("PB403", "PB401"),
                partial(second_raises, solve_by_iteration, "out=... arguments don't support"),
            ),
        ),
        doubtful={**NARROW, "PB301": SINGULAR, "PB101": STEPS, "PB303": STEPS},
    ),
    Call(
        determinant,
        bugs=(
            _lost(partial(derivative_of_backward_is_wrong, determinant)),
            Bug(
                "where the determinant is below 1e-15, as of any regular matrix of small numbers, the gradient is 0",
                ("PB302", "PB101"),
                small_determinant_has_no_gradient,
            ),
        ),
        doubtful={**NARROW, "PB301": SINGULAR},
    ),
    Call(
        eigenvalues,
        bugs=(
            Bug(
                "the eigenvectors, which are returned with a graph, silently contribute nothing to the gradient",
                ("PB101", "PB111", "PB208", "PB107"),
                eigenvectors_have_no_gradient,
            ),
            _lost(partial(derivative_of_backward_is_wrong, eigenvalues_alone)),
        ),
        doubtful={**NARROW, "PB207": "of the returned slices, changed in place, PyTorch's message on views"},
    ),
    Call(product, doubtful=NARROW),
    Call(
        nonlinear_diffusion,
        bugs=(_lost(partial(second_is_wrong, nonlinear_diffusion)),),
        doubtful={**NARROW, "PB101": STEPS, "PB303": STEPS},
    ),
    Call(
        nonlinear_advection,
        bugs=(
            Bug(
                "conjugate gradients solve the adjoint, which is not symmetric: the gradient is silently wrong",
                ("PB101",),
                partial(first_is_wrong, nonlinear_advection, 0),
            ),
            _lost(partial(second_is_wrong, nonlinear_advection)),
        ),
        doubtful={**NARROW, "PB303": STEPS},
    ),
)

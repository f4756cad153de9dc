"""cola-ml: what is known of its custom function.

`Iterative`, which is made anew for each solve, is covered with the two solvers that use it. Truth: float64 central
differences. Double backward, frozen arguments, strided inputs and cotangents, two backwards, checkpoints, changes in
place, half precision.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import gradients, raises
from labels.unseen import argument_gets_none

PACKAGE = Package(
    "cola-ml",
    "0.0.7",
    "linear algebra",
    ("cola-plum-dispatch==0.1.4", "beartype", "optree", "tqdm"),
)

ITERATED = "a solution of iterations: a few digits are left, and fewer where the matrix is hardly definite"
DOUBTFUL = {
    **dict.fromkeys(("PB301", "PB302", "PB303"), ITERATED),
    **dict.fromkeys(("PB105", "PB413", "PB119"), "the solvers have no half precision"),
    "PB408": "a vectorised backward may raise: the iteration stops by a number of Python",
}


def _numbers():
    torch.manual_seed(0)
    return torch.randn(4, 4), torch.randn(4, 2)


def _solve(root, right):
    import cola
    from cola.linalg.inverse.cg import CG

    matrix = root @ root.mT + 4 * torch.eye(len(root), dtype=root.dtype)
    return cola.inv(cola.PSD(cola.ops.Dense(matrix)), CG(tol=1e-12)) @ right


# Right, twice: differences.
def conjugate_gradients_of_fixed_right_side():
    root, right = _numbers()
    return (lambda root: _solve(root, right.to(root.dtype))), (root,)


# The matrix: right. The right side: none.
def conjugate_gradients():
    return _solve, _numbers()


# Wrong, whatever needs a gradient.
def gmres():
    import cola
    from cola.linalg.inverse.gmres import GMRES

    def solve(matrix, right):
        shifted = matrix + 4 * torch.eye(4, dtype=matrix.dtype)
        return cola.inv(cola.ops.Dense(shifted), GMRES(tol=1e-12, max_iters=10)) @ right

    matrix, right = _numbers()
    return solve, (matrix.double(), right[:, 0].double())


LOST = (
    "the right side of the system is read, not passed, and gets no gradient",
    ("PB107", "PB118", "PB101", "PB113", "PB604"),
)
NO_TANGENT = (True, "the output has no tangent by the right side, silently: the graph that lacks is the same")

CALLS = (
    Call(conjugate_gradients_of_fixed_right_side, doubtful=DOUBTFUL),
    Call(
        conjugate_gradients,
        bugs=(Bug(*LOST, partial(argument_gets_none, conjugate_gradients, 1)),),
        doubtful=DOUBTFUL,
        judged={"PB102": NO_TANGENT},
    ),
    Call(
        gmres,
        bugs=(
            Bug(
                "the backward hands one argument of the solver over twice and raises, always",
                ("PB119", "PB101"),
                lambda: raises(lambda: gradients(gmres), "multiple values for argument"),
            ),
        ),
        doubtful={**DOUBTFUL, **dict.fromkeys(LOST[1], "the right side gets no gradient either")},
        judged={"PB102": NO_TANGENT},
    ),
)

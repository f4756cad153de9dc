"""deepchem: what is known of its custom functions.

Of those that solve, which go back to xitorch, `degen_symeig`, `solve_torchfcn` and `_RootFinder` are covered, the last
by a root and by a minimum; beside them `_OccNumber`. `symeig_torchfcn` is not: it is for large matrices. Truth: float64
central differences. Double backward, equal eigenvalues, strided inputs and cotangents, each argument frozen, two
backwards, checkpoints, in place, autocast.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import raises_in_checkpoint, second_is_wrong

PACKAGE = Package("deepchem", "2.8.0", "chemistry", ("pandas==3.1.1", "rdkit==2026.9.1"))

NARROW = "PyTorch decomposes no matrices in half precision, and says so"
VIEW = "the output is a view: changing it in place raises, with PyTorch's message on views"
DOUBTFUL = {
    **dict.fromkeys(("PB119", "PB413", "PB105"), NARROW),
    **dict.fromkeys(("PB406", "PB408"), "a vectorised backward may raise: the iterations ask for numbers"),
    "PB303": "an iteration ends at a tolerance",
    "PB207": VIEW,
}


# Right, twice: differences.
def eigenvalues():
    from deepchem.utils.differentiation_utils.symeig import degen_symeig

    torch.manual_seed(0)

    def call(a):
        values, vectors = degen_symeig.apply(a + a.mT)
        return values, vectors.square()

    return call, (torch.randn(2, 3, 3, dtype=torch.float64),)


# First order right: differences.
def equal_eigenvalues():
    from deepchem.utils.differentiation_utils.symeig import degen_symeig

    torch.manual_seed(0)
    q, _ = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))

    def projector(a):
        _, vectors = degen_symeig.apply((a + a.mT) / 2)
        return vectors[:, :2] @ vectors[:, :2].mT

    return projector, (q @ torch.diag(torch.tensor([1, 1, 3.0], dtype=torch.float64)) @ q.mT,)


# Right, twice: differences.
def occupation():
    from deepchem.utils.safeops_utils import occnumber

    return (lambda a: occnumber(a, 4, torch.double)), (torch.tensor(2.5, dtype=torch.float64),)


# Right, twice: differences.
def solution():
    from deepchem.utils.differentiation_utils import LinearOperator, solve

    torch.manual_seed(0)

    def call(a, b):
        operator = LinearOperator.m(a + 6 * torch.eye(3, dtype=a.dtype), is_hermitian=False)
        return solve(operator, b, method="bicgstab", rtol=1e-12)

    return call, (torch.randn(3, 3, dtype=torch.float64), torch.randn(3, 2, dtype=torch.float64))


# Right, twice: differences.
def root():
    from deepchem.utils.differentiation_utils import rootfinder

    def function(y, a):
        return torch.tanh(a @ y + 0.1) + y / 2

    def call(a):
        return rootfinder(function, torch.zeros(2, 1, dtype=a.dtype), params=(a,), f_tol=1e-12)

    return call, (torch.tensor([[1.1, 0.4], [0.3, 0.8]], dtype=torch.float64),)


# Right, twice: differences.
def minimum():
    from deepchem.utils.differentiation_utils import minimize

    def function(y, a):
        return torch.sum((y * a - 1) ** 2) + torch.sum(y.cosh())

    def call(a):
        steps = {"method": "gd", "step": 0.1, "maxiter": 3000, "f_rtol": 0, "x_rtol": 1e-14}
        return minimize(function, torch.zeros(3, dtype=a.dtype), params=(a,), **steps)

    return call, (torch.tensor([1, 2, 0.5], dtype=torch.float64),)


def _twice(make):
    return Bug(
        "the backward reads ctx.saved_tensors more than once: under activation checkpointing it raises",
        ("PB411", "PB412"),
        partial(raises_in_checkpoint, make, "already unpacked once"),
    )


CALLS = (
    Call(eigenvalues, doubtful=DOUBTFUL),
    Call(
        equal_eigenvalues,
        bugs=(
            Bug(
                "what belongs to equal eigenvalues is left out of the gradient's own derivative: it is silently wrong",
                ("PB401", "PB402", "PB404"),
                partial(second_is_wrong, equal_eigenvalues),
            ),
        ),
        doubtful={**DOUBTFUL, "PB101": "the eigenvectors of equal eigenvalues are not determined"},
    ),
    Call(
        occupation,
        doubtful=dict.fromkeys(("PB406", "PB408"), "the forward asks for a number"),
        judged={"PB119": (False, "an occupation of -12: the forward takes it by accident")},
    ),
    *(Call(make, bugs=(_twice(make),), doubtful=DOUBTFUL) for make in (solution, root, minimum)),
)

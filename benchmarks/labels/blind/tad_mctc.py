"""tad-mctc: what is known of its custom functions.

Six of them are covered, called through the package's own functions. Truth: float64 central differences of first (below
1e-10) and second derivatives, in every argument; equal eigenvalues, float32, frozen and strided arguments, checkpoint,
changes in place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import raises_in_checkpoint

PACKAGE = Package("tad-mctc", "0.11.3", "quantum chemistry")

NARROW = "the solver refuses bfloat16, or says that the operator's dtype is another one"
OUTPUT = "the saved solution is the output: changing that in place raises, with PyTorch's message"
SINGULAR = "of a matrix that is nearly singular"
BROADENED = "documented: the gradient is broadened where eigenvalues are equal"
SOLVER = {"PB413": NARROW, "PB303": SINGULAR, "PB301": SINGULAR, "PB101": SINGULAR, "PB119": NARROW}


# First and second order right: differences (1e-11).
def attached_gradient():
    from tad_mctc.autograd.attach import attach_gradient

    def log_sum_exp(x):
        return attach_gradient(lambda x: torch.logsumexp(x, -1), x, torch.softmax(x, -1))

    torch.manual_seed(0)
    return log_sum_exp, (torch.randn(3, 4),)


# First and second order right: differences (1e-11).
def dense():
    from tad_mctc.storch.linsolve import dense_solve

    torch.manual_seed(0)
    return dense_solve, (torch.randn(2, 3, 3) + 3 * torch.eye(3), torch.randn(2, 3, 2))


# First and second order right: differences (1e-10).
def cholesky():
    from tad_mctc.storch.linsolve import dense_solve

    def solution(a, b):
        return dense_solve((a + a.mT) / 2, b, method="cholesky")

    torch.manual_seed(0)
    a = torch.randn(2, 3, 3)
    return solution, (a @ a.mT + torch.eye(3), torch.randn(2, 3, 2))


# First and second order right: differences (1e-11).
def conjugate_gradients():
    from tad_mctc.storch.linsolve import implicit_solve

    def solution(a, b):
        return implicit_solve(lambda x, a: (a @ x.unsqueeze(-1)).squeeze(-1), b, (a + a.mT) / 2).solution

    torch.manual_seed(0)
    a = torch.randn(3, 3)
    return solution, (a @ a.mT + torch.eye(3), torch.randn(3))


# First and second order right: differences (1e-12).
def root():
    from tad_mctc.storch.implicit import implicit_root

    def residual(z, p, q):
        return z + p * torch.sinh(z) - q

    def solution(p, q):
        with torch.no_grad():
            z = torch.zeros_like(q)
            for _ in range(60):
                z = z - residual(z, p, q) / (1 + p * torch.cosh(z))
        return implicit_root(residual, z, p, q)

    return solution, (torch.tensor(0.7), torch.tensor([0.5, -1.0, 2.0]))


# First and second order right: differences (2e-10). Finite, and right, for the identity.
def eigenvalues():
    from tad_mctc.storch.linalg import eighb

    def spectrum(a):
        values, vectors = eighb((a + a.mT) / 2)
        return values, vectors.abs()

    torch.manual_seed(0)
    return spectrum, (torch.randn(4, 4),)


CALLS = (
    Call(attached_gradient),
    Call(dense, doubtful={**SOLVER, "PB209": OUTPUT}),
    Call(cholesky, doubtful={**SOLVER, "PB209": OUTPUT}),
    Call(conjugate_gradients, doubtful=SOLVER),
    Call(root, doubtful={**SOLVER, "PB302": "with negated parameters there may be no root, or several"}),
    Call(
        eigenvalues,
        bugs=(
            Bug(
                "under activation checkpointing the backward raises: it unpacks the saved tensors twice",
                ("PB411", "PB412"),
                partial(raises_in_checkpoint, eigenvalues, "already unpacked once"),
            ),
        ),
        doubtful={**SOLVER, "PB401": BROADENED, "PB404": BROADENED},
    ),
)

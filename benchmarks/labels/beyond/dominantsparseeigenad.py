"""DominantSparseEigenAD: what is known of its custom functions.

`CGSubspace` is covered between the operations that its input comes from: alone it is given a singular matrix, which has
no neighbours of its kind. `DominantEig` is covered, too. `DominantSymeig` and its sparse relative call a function that
PyTorch has removed: their forward raises. Truth: float64 central differences, PyTorch's and SciPy's errors.
"""

import torch

from labels import Bug, Call, Package
from labels.fresh import gradients, raises

PACKAGE = Package("dominantsparseeigenad", "0.0.1", "eigenvalues of large matrices", ("scipy==1.17.1",))

FUNC = dict.fromkeys(("PB405", "PB406", "PB407"), "torch.func does not take it: it has no setup_context")
START = "the solution starts from a random vector, and ends at the same digits but the last"


# Right, twice: differences.
def subspace():
    from DominantSparseEigenAD.CG import CGSubspace

    def solve(h, b):
        h = (h + h.mT) / 2
        values, vectors = torch.linalg.eigh(h)
        lowest = vectors[:, 0]
        return CGSubspace.apply(h - values[0] * torch.eye(len(h), dtype=h.dtype), b - (lowest @ b) * lowest, lowest)

    torch.manual_seed(0)
    h = torch.randn(6, 6, dtype=torch.float64) + torch.diag(torch.arange(6, dtype=torch.float64))
    return solve, (h, torch.randn(6, dtype=torch.float64))


# Wrong.
def dominant():
    from DominantSparseEigenAD.eig import DominantEig

    torch.manual_seed(0)
    return (lambda a: DominantEig.apply(a, 6)), (torch.rand(6, 6, dtype=torch.float64) + 0.1,)


CALLS = (
    Call(
        subspace,
        doubtful={
            **FUNC,
            **dict.fromkeys(("PB303", "PB601", "PB602"), START),
            "PB408": "a vectorised backward raises: the iteration looks at its residual",
            "PB413": "LAPACK has no half precision, and PyTorch says so",
            "PB105": "LAPACK has no half precision, and PyTorch says so",
        },
    ),
    Call(
        dominant,
        bugs=(
            Bug(
                "the backward hands SciPy's gmres an argument that it has no longer: it raises, always",
                ("PB119", "PB101"),
                lambda: raises(lambda: gradients(dominant), "unexpected keyword argument 'tol'"),
            ),
        ),
        doubtful=FUNC,
    ),
)

"""theseus-ai: what is known of its custom functions.

`_SparseMvPAutograd` and `_SparseMtvPAutograd` are covered by themselves, `LML_Function` by the layer that applies it,
with a small tolerance: of a batch, and of a single row. Cholesky decompositions need compiled code. Truth: float64
central differences. Double backward, strided inputs and cotangents, two backwards, checkpoints, changes in place.
"""

import torch

from labels import Call, Package

PACKAGE = Package(
    "theseus-ai",
    "0.2.3",
    "robotics",
    (
        "torchlie==0.1.0",
        "torchkin==0.1.1",
        "urdf-parser-py==0.0.4",
        "lxml==6.1.3",
        "PyYAML==6.0.4",
        "semantic-version==2.10.0",
        "scipy==1.17.1",
    ),
)

ONCE = "once_differentiable: backward() raises, torch.autograd.grad may leave the term out"
ARRAYS = "NumPy and SciPy take neither half precision nor a batch of torch.func; the output is float64"
SETUP = "torch.func does not take it: it has no setup_context"
FOUND = "the multiplier is found by sections, to a tolerance"
VIEW = "the output is a squeezed view: changing it in place raises, with PyTorch's message on views"
SPARSE = {
    **dict.fromkeys(("PB401", "PB402", "PB403", "PB404", "PB604"), ONCE),
    **dict.fromkeys(("PB119", "PB413", "PB105", "PB408", "PB303"), ARRAYS),
    **dict.fromkeys(("PB405", "PB406", "PB407"), SETUP),
    "PB503": "of no matrices NumPy makes an array of one dimension",
}
SECTIONS = {
    **dict.fromkeys(("PB303", "PB413", "PB501"), FOUND),
    **dict.fromkeys(("PB405", "PB406", "PB407", "PB408"), SETUP),
    **dict.fromkeys(("PB301", "PB302", "PB304"), "where entries are hundreds apart, all derivatives underflow"),
    **dict.fromkeys(("PB503", "PB504", "PB505", "PB104"), "of a row there are more entries than are chosen"),
}


def _pattern():
    return 3, torch.tensor([0, 2, 3, 5, 6]), torch.tensor([0, 2, 1, 0, 2, 1])


# Right, once: differences.
def matrix_times_vector():
    from theseus.utils.sparse_matrix_utils import sparse_mv

    torch.manual_seed(0)
    values, vectors = torch.randn(2, 6, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    return (lambda a, v: sparse_mv(*_pattern(), a, v)), (values, vectors)


# Right, once: differences.
def transpose_times_vector():
    from theseus.utils.sparse_matrix_utils import sparse_mtv

    torch.manual_seed(0)
    values, vectors = torch.randn(2, 6, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64)
    return (lambda a, v: sparse_mtv(*_pattern(), a, v)), (values, vectors)


def _chosen(*shape):
    from theseus.third_party.lml import LML

    torch.manual_seed(0)
    return LML(2, eps=1e-12, verbose=-1), (torch.randn(shape, dtype=torch.float64),)


# Right, twice: differences.
def chosen_of_rows():
    return _chosen(3, 5)


# Right, twice: differences.
def chosen_of_one():
    return _chosen(5)


CALLS = (
    Call(matrix_times_vector, doubtful=SPARSE),
    Call(transpose_times_vector, doubtful=SPARSE),
    Call(chosen_of_rows, doubtful=SECTIONS),
    Call(
        chosen_of_one,
        doubtful={**SECTIONS, "PB207": VIEW},
        judged={"PB119": (True, "one of one: the gradient has no dimension, and the backward raises")},
    ),
)

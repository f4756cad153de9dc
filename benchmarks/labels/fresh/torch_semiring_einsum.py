"""torch-semiring-einsum: what is known of its custom functions.

Both are covered: that of `einsum` (made by `combine`) and that of `log_einsum`. Truth: float64 central differences
(below 2e-10) with two and three operands, in blocks and as a whole; entries of -inf beside finite ones are right, too.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import second_raises

PACKAGE = Package(
    "torch-semiring-einsum", "1.2.0", "structured prediction", needs=("nvidia-ml-py", "typing_extensions")
)

OUT = "double backward raises, saying that functions with out= don't support differentiation"
INFINITE = "documented: where all terms are -inf the gradient is NaN, unless `grad_of_neg_inf` is given"
BATCH = "a vectorised backward raises: it adds in place"
DOUBTFUL = {"PB301": INFINITE, "PB304": INFINITE, "PB408": BATCH}


def _operands(*shapes):
    torch.manual_seed(0)
    return tuple(torch.randn(shape) for shape in shapes)


# First and second order right: differences (2e-11, 3e-10).
def einsum():
    from torch_semiring_einsum import compile_equation, einsum

    equation = compile_equation("bik,bkj->bij")

    def product(a, b):
        return einsum(equation, a, b, block_size=3)

    return product, _operands((2, 3, 4), (2, 4, 2))


# First and second order right: differences (2e-11, 9e-10).
def einsum_of_three():
    from torch_semiring_einsum import compile_equation, einsum

    equation = compile_equation("ab,bc,cd->a")

    def product(a, b, c):
        return einsum(equation, a, b, c, block_size=2)

    return product, _operands((2, 3), (3, 2), (2, 4))


def _log_einsum(shapes, equation, **options):
    from torch_semiring_einsum import compile_equation, log_einsum

    compiled = compile_equation(equation)

    def product(*operands):
        return log_einsum(compiled, *operands, **options)

    return product, _operands(*shapes)


# First order right: differences (1e-10), and logsumexp.
def log_einsum():
    return _log_einsum(((2, 3, 4), (2, 4, 2)), "bik,bkj->bij", block_size=2)


# First order right: differences (1e-10), and logsumexp.
def log_einsum_of_three():
    return _log_einsum(((2, 3), (3, 2), (2, 4)), "ab,bc,cd->a")


# First order right: differences (1e-10), and logsumexp.
def log_einsum_saving_memory():
    return _log_einsum(((2, 3, 4), (2, 4, 2)), "bik,bkj->bij", block_size=2, save_max=False, save_sumexpsub=False)


def _double(make):
    return Bug(
        "double backward raises, of a change in place, without saying that it is not supported",
        ("PB403", "PB401"),
        partial(second_raises, make, "modified by an inplace"),
    )


CALLS = (
    Call(einsum, doubtful=DOUBTFUL),
    Call(einsum_of_three, doubtful=DOUBTFUL),
    Call(log_einsum, bugs=(_double(log_einsum),), doubtful=DOUBTFUL),
    Call(log_einsum_of_three, bugs=(_double(log_einsum_of_three),), doubtful=DOUBTFUL),
    Call(log_einsum_saving_memory, doubtful={**DOUBTFUL, "PB403": OUT}),
)

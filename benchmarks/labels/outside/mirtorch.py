"""mirtorch: what is known of its custom functions.

`CG_func` and `_CGUnrolledResult` are covered by the solver, `DiffFunc` and `DiffFunc_adj` by the operators that apply
them, the functions of FINUFFT by the operator of parallel imaging, with gradients for the trajectory. Not covered: the
wavelets, a copy of pytorch_wavelets, and the functions of torchkbnufft, whose threads at times abort the process at its
end. Truth: float64 central differences, of pairs in the place of complex numbers. Double backward, each argument frozen,
strided inputs and cotangents, two backwards, checkpoints, changes in place.
"""

import torch

from labels import Call, Package

PACKAGE = Package(
    "mirtorch", "0.4.0", "MRI", ("torchkbnufft==1.5.1", "finufft==2.5.0", "scipy==1.17.1", "PyWavelets==1.9.0")
)

ONCE = "once_differentiable, and documented: first order only; torch.autograd.grad may leave the term out"
TWICE = dict.fromkeys(("PB401", "PB402", "PB403", "PB404", "PB604"), ONCE)
SOLVED = "as exact as the iteration of the solver"
VIEW = "the output is the input: changing it in place raises, with PyTorch's message on views"
NARROW = "complex numbers have no half precision here: the forward raises"
BATCH = "a vectorised backward raises"
TRANSFORM = {**TWICE, **dict.fromkeys(("PB119", "PB413", "PB105"), NARROW), "PB406": BATCH, "PB408": BATCH}


def _solver(**options):
    from mirtorch.alg import CG
    from mirtorch.linear import Diff1d, Identity

    difference = Diff1d((4, 3), 0)
    torch.manual_seed(0)
    return CG(difference.H * difference + Identity((4, 3)), **options)


# First order right: differences.
def implicit_solution():
    solver = _solver(max_iter=30, rtol=1e-12)
    return (lambda b: solver.run(torch.zeros_like(b), b)), (torch.randn(4, 3, dtype=torch.float64),)


# Right, twice: differences.
def unrolled_solution():
    solver = _solver(max_iter=3, tol=0, backward_mode="unrolled")
    return solver.run, tuple(torch.randn(2, 4, 3, dtype=torch.float64).unbind())


# Right, twice: differences.
def reflexive_differences():
    from mirtorch.linear import Diff1d

    torch.manual_seed(0)
    return Diff1d((4, 5), 1), (torch.randn(4, 5),)


# Right, twice: differences.
def adjoint_of_periodic_differences():
    from mirtorch.linear import Diffnd

    torch.manual_seed(0)
    return Diffnd((4, 5), (0, 1)).H, (torch.randn(8, 5),)


def _sense(shape, is_adjoint):
    from mirtorch.linear import NuSense

    torch.manual_seed(0)
    maps = torch.randn(1, 2, 6, 6, dtype=torch.complex128)

    def transform(x, trajectory):
        operator = NuSense(maps.to(x.dtype), trajectory, backend="finufft")
        return (operator.H if is_adjoint else operator) * x

    trajectory = 6 * torch.rand(1, 2, 7, dtype=torch.float64) - 3
    return transform, (torch.randn(shape, dtype=torch.complex128), trajectory)


# First order right: differences (1e-6, the precision that is asked for).
def transform():
    return _sense((1, 1, 6, 6), False)


# First order right: differences (1e-6).
def adjoint_transform():
    return _sense((1, 2, 7), True)


CALLS = (
    Call(implicit_solution, doubtful={**TWICE, "PB303": SOLVED, "PB406": BATCH, "PB408": BATCH}),
    Call(
        unrolled_solution,
        doubtful={"PB207": VIEW, "PB303": SOLVED},
        judged={"PB119": (False, "of zeros alone: the backward refuses a residual of 0 in words of its own")},
    ),
    Call(reflexive_differences),
    Call(adjoint_of_periodic_differences),
    Call(transform, doubtful={**TRANSFORM, "PB303": "right to the six digits that are asked for"}),
    Call(adjoint_transform, doubtful={**TRANSFORM, "PB303": "right to the six digits that are asked for"}),
)

"""mrpro: what is known of its custom functions.

All five are covered, through the package's own operators. Truth: float64 central differences (below 1e-6; of the
minimiser 3e-3, by how far it converges), the differentiated Fourier transform. Half precision, strided inputs and
cotangents, double backward, `torch.func`, checkpoints, frozen arguments, changes in place. Importing the whole package
needs readers of files, which take no part in them.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.blind import bare
from labels.fresh import gradients, raises, raises_in_checkpoint, second_is_wrong

PACKAGE = Package("mrpro", "0.261015", "MRI", ("einops",))

ONCE = "once_differentiable: backward() raises, torch.autograd.grad may leave the term out"
STEPS = "the minimiser ends its iterations before the gradient does: three digits"
BATCH = "a vectorised backward raises: the iteration asks for the size of its residual"
SPARSE = "PyTorch has no half precision for sparse matrices, and says so"
TWICE = ("already unpacked once",)


def _operators(name):
    from importlib import import_module

    bare("mrpro", *("mrpro." + m for m in ("operators", "data", "utils", "algorithms", "algorithms.optimizers")))
    import mrpro.operators

    for other in ("IdentityOp", "ZeroOp"):
        if not hasattr(mrpro.operators, other):
            setattr(mrpro.operators, other, getattr(import_module(f"mrpro.operators.{other}"), other))
    return import_module("mrpro.operators." + name)


def _fourier(dtype):
    """An operator as the documentation has it, with the adjoint as backward: that of `FourierOp`."""
    base, fft = _operators("LinearOperator").LinearOperator, _operators("FastFourierOp").FastFourierOp(dim=(-2, -1))

    class Fourier(base, adjoint_as_backward=True):
        def forward(self, x):
            return fft(x)

        def adjoint(self, x):
            return fft.adjoint(x)

    operator = Fourier()
    torch.manual_seed(0)
    return (lambda x: operator(x)[0]), (torch.randn(2, 3, 4, dtype=dtype),)


# First and second order, forward mode and vmap right: the transform without the custom function.
def fourier():
    return _fourier(torch.complex128)


# The backward never works, where the forward does.
def fourier_of_real_image():
    return _fourier(torch.float64)


# First order right: differences.
def conjugate_gradient():
    einsum, module = _operators("EinsumOp").EinsumOp, _operators("ConjugateGradientOp")
    torch.manual_seed(0)
    matrix = torch.randn(5, 4, dtype=torch.float64)
    torch.manual_seed(1)
    return module.ConjugateGradientOp(
        lambda a, x, y: einsum(matrix.to(x.dtype)).gram + a,
        lambda a, x, y: (einsum(matrix.to(x.dtype)).H(y)[0] + a * x,),
    ), (
        torch.tensor(0.5, dtype=torch.float64),
        torch.randn(4, dtype=torch.float64),
        torch.randn(5, dtype=torch.float64),
    )


# First order right, as far as it converges: differences.
def minimisation():
    def factory(y, weight):
        return lambda x: ((x - y).pow(4).sum() + weight * x.square().sum(),)

    operator = _operators("OptimizerOp").OptimizerOp(factory, lambda y, weight: (torch.zeros_like(y),))
    torch.manual_seed(1)
    return operator, (2 + torch.randn(4, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64))


# First and second order right: differences.
def slice_projection():
    from importlib import import_module

    module = _operators("SliceProjectionOp")
    size = import_module("mrpro.data.SpatialDimension").SpatialDimension(3, 4, 4)
    operator, function = module.SliceProjectionOp(size, slice_profile=2.0), module._MatrixMultiplication.apply
    torch.manual_seed(0)
    return (lambda x: function(x, operator.matrix.to(x.dtype), operator.matrix_adjoint.to(x.dtype))), (torch.randn(48),)


# First and second order right: differences.
def adjoint_of_sampling():
    function = _operators("GridSamplingOp").AdjointGridSample
    torch.manual_seed(0)
    y, grid = torch.randn(2, 3, 4, 5), 2 * torch.rand(2, 4, 5, 2) - 1
    return function, (y, grid, (2, 3, 6, 7), "bilinear", "zeros", True)


def _reads_twice(make):
    return Bug(
        "the backward reads its saved tensors twice: under activation checkpointing it raises",
        ("PB411",),
        partial(raises_in_checkpoint, make, *TWICE),
    )


CALLS = (
    Call(fourier),
    Call(
        fourier_of_real_image,
        bugs=(
            Bug(
                "of a real image, which the forward takes, the gradient is complex, and the backward raises",
                ("PB119", "PB105"),
                partial(raises, partial(gradients, fourier_of_real_image), "grad_is_complex"),
            ),
        ),
    ),
    Call(
        conjugate_gradient,
        bugs=(_reads_twice(conjugate_gradient),),
        doubtful={**dict.fromkeys(("PB401", "PB402", "PB403", "PB404"), ONCE), "PB408": BATCH, "PB413": BATCH},
    ),
    Call(
        minimisation,
        bugs=(
            _reads_twice(minimisation),
            Bug(
                "the gradient comes without a graph under create_graph: what it adds to a second derivative is lost",
                ("PB401", "PB404", "PB604"),
                partial(second_is_wrong, minimisation),
            ),
        ),
        doubtful={"PB101": STEPS, "PB303": STEPS, "PB408": BATCH},
    ),
    Call(slice_projection, doubtful={"PB413": SPARSE, "PB405": SPARSE}),
    Call(adjoint_of_sampling, bugs=(_reads_twice(adjoint_of_sampling),)),
)

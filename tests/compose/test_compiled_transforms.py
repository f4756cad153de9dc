"""`torch.compile` of a `torch.func` transform of an op, where Dynamo traces into the forward of a Function."""

import pytest
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

from tests.compose._contexts import cells, context, gradient, judge
from tests.compose._ops import OURS, X
from tests.compose.test_compile import compiled
from tests.compose.test_transforms import ONES, diagonal, summed

ALL = dict.fromkeys(OURS, "Unsupported")  # PyTorch's ops too
RULED = ("ruled", "ruled by jvp")


def row(name, error="Unsupported", **options):
    return context("compiled_transforms", name, refused=dict.fromkeys(RULED, error), **options)


row("grad")(lambda op: compiled(grad(summed(op)))(X))
row("grad of grad", order=2)(lambda op: compiled(grad(summed(grad(summed(op)))))(X))
row("grad of grad, of a computed input", order=2)(
    lambda op: compiled(grad(summed(grad(summed(lambda x: op(x * 1))))))(X)
)
row("grad, then backward, of a computed input", order=2)(
    lambda op: gradient(compiled(grad(summed(lambda x: op(x * 1)))))[1]
)
row("jacrev")(lambda op: diagonal(compiled(jacrev(lambda x: op(x)))(X)))
row("jacfwd")(lambda op: diagonal(compiled(jacfwd(lambda x: op(x)))(X)))
row("hessian", order=2)(lambda op: diagonal(compiled(hessian(summed(op)))(X)))
row("vmap of grad")(lambda op: compiled(vmap(grad(lambda x: op(x))))(X))
row("vmap of grad, of a computed input")(lambda op: compiled(vmap(grad(lambda x: op(x * 1))))(X))
row("vmap, then backward", "TorchRuntimeError or Unsupported")(
    lambda op: gradient(compiled(lambda x: vmap(lambda y: op(y))(x)))
)
row("vjp")(lambda op: compiled(lambda x: vjp(op, x)[1](ONES)[0])(X))
row("jvp")(lambda op: compiled(lambda x: jvp(op, (x,), (ONES,)))(X))
row("jvp of grad", order=2)(lambda op: compiled(lambda x: jvp(grad(summed(op)), (x,), (ONES,))[1])(X))
row("grad, dynamic shapes")(lambda op: compiled(grad(summed(op)), dynamic=True)(X))
row("grad, inductor", needs_compiler=True)(lambda op: compiled(grad(summed(op)), backend="inductor")(X))
context(
    "compiled_transforms", "grad of a compiled function", refused=ALL, says="function from eager mode is not supported"
)(lambda op: grad(summed(compiled(lambda x: op(x))))(X))


@cells("compiled_transforms")
@pytest.mark.few(9)
def test_derivative_is_kept_or_refused_in_compiled_transforms(row, column):
    judge(row, column)

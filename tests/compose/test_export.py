"""`torch.export`, training of the exported program, and a package of compiled C++ (AOTInductor)."""

import io
import tempfile
from pathlib import Path

import pytest
import torch
from torch.func import jvp

from tests.compose._contexts import cells, context, gradient, judge, leaf
from tests.compose._ops import X

RULED = dict.fromkeys(("ruled", "ruled by jvp"), "DerivativeError")
NOT_A_LEAF = ("The .grad attribute of a Tensor that is not a leaf",)  # Dynamo asks for it
BY_DYNAMO = dict.fromkeys(RULED, "TorchRuntimeError")


class Module(torch.nn.Module):
    def __init__(self, op):
        super().__init__()
        self.op = op

    def forward(self, x):
        return self.op(x)


class Scaled(Module):
    """A model with a parameter before the op, whose input therefore requires grad during the trace."""

    def __init__(self, op):
        super().__init__(op)
        self.scale = torch.nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x):
        return self.op(x * self.scale)


class Chosen(Scaled):
    def forward(self, x):
        return torch.cond(self.scale > 0, self.op, lambda x: x - 1, (x * self.scale,))


def exported(op, **options):
    return torch.export.export(Module(op), (X,), **options)


def traced_gradient(op):
    """Return a function that computes the gradient of the op itself."""

    def function(x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(op(x).sum(), x)[0]

    return function


@context("export", "export, then train", refused=RULED)
def non_strict(op):
    return gradient(exported(op, strict=False).module())


@context("export", "export, then create_graph", order=2, refused=RULED)
def then_create_graph(op):
    x = leaf()
    (g,) = torch.autograd.grad(exported(op).module()(x).sum(), x, create_graph=True)
    return torch.autograd.grad(g.sum(), x)[0]


@context("export", "export(strict=True), then train", refused=RULED)
def strict(op):
    return gradient(exported(op, strict=True).module())


@context("export", "export of a model with a parameter, then train", refused=RULED)
def of_a_model(op):
    return gradient(torch.export.export(Scaled(op), (X,)).module())


@context("export", "export(strict=True) of a model with a parameter, then train", refused=BY_DYNAMO)
def strict_of_a_model(op):
    return gradient(torch.export.export(Scaled(op), (X,), strict=True).module())


@context("export", "export of torch.cond, then train", refused=BY_DYNAMO, ignore=NOT_A_LEAF)
def of_cond(op):
    return gradient(torch.export.export(Chosen(op), (X,)).module())


@context("export", "export with dynamic shapes, then train", refused=RULED)
def dynamic(op):
    program = exported(op, dynamic_shapes={"x": {0: torch.export.Dim("n", min=2)}})
    x = torch.ones(7, dtype=torch.float64, requires_grad=True)
    assert torch.equal(torch.autograd.grad(program.module()(x).sum(), x)[0], torch.full_like(x, 3))
    return gradient(program.module())


@context("export", "run_decompositions, then train", refused=RULED)
def decomposed(op):
    return gradient(exported(op).run_decompositions().module())


@context("export", "saved and loaded, then train", refused=RULED)
def saved_and_loaded(op):
    file = io.BytesIO()
    torch.export.save(exported(op), file)
    file.seek(0)
    return gradient(torch.export.load(file).module())


@context("export", "export under no_grad, then infer", order=0)
def for_inference(op):
    with torch.no_grad():
        program = exported(op)
        return program.module()(X), None


@context("export", "export of autograd.grad")
def of_autograd_grad(op):
    return exported(traced_gradient(op)).module()(X)


@context("export", "export of func.jvp", refused=RULED)
def of_func_jvp(op):
    return exported(lambda x: jvp(op, (x,), (torch.ones_like(x),))).module()(X)


@context("export", "AOTInductor package of autograd.grad", needs_compiler=True, tested=("derived",))
def package(op):
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "op.pt2"))
        torch._inductor.aoti_compile_and_package(exported(traced_gradient(op)), package_path=path)
        return torch._inductor.aoti_load_package(path)(X)


@cells("export")
@pytest.mark.few(15)
def test_derivative_is_kept_or_refused_under_export(row, column):
    judge(row, column)

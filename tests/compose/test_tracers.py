"""Tracers that record the ops of a call, and passes that remove `detach`."""

import torch
from torch._decomp import core_aten_decompositions
from torch.fx.experimental.proxy_tensor import make_fx

from tests.compose._contexts import cells, context, gradient, judge
from tests.compose._ops import X
from tests.compose.test_export import RULED, Module, traced_gradient

NOT_FUNCTIONAL = dict.fromkeys(("ruled", "ruled by jvp"), "RuntimeError")  # as of any Function
NOT_JIT = {"relaxed": "DerivativeError"}
JIT_IS_DEPRECATED = ("`torch.jit.trace", "`torch.jit.optimize_for_inference", "`torch.jit.freeze")


@context("tracers", "make_fx, then backward", refused=RULED)
def of_forward(op):
    return gradient(make_fx(lambda x: op(x))(X))


@context("tracers", "make_fx, symbolic, then backward", refused=RULED)
def of_forward_symbolic(op):
    return gradient(make_fx(lambda x: op(x), tracing_mode="symbolic")(X))


@context("tracers", "make_fx, core decompositions, then backward", refused=RULED)
def of_forward_decomposed(op):
    return gradient(make_fx(lambda x: op(x), decomposition_table=core_aten_decompositions())(X))


@context("tracers", "make_fx of autograd.grad")
def of_gradient(op):
    return make_fx(traced_gradient(op))(X)(X)


@context("tracers", "make_fx of autograd.grad, core decompositions")
def of_gradient_decomposed(op):
    return make_fx(traced_gradient(op), decomposition_table=core_aten_decompositions())(X)(X)


@context("tracers", "make_fx of func.grad")
def of_func_grad(op):
    return make_fx(torch.func.grad(lambda x: op(x).sum()))(X)(X)


@context("tracers", "functionalize of func.grad", refused=NOT_FUNCTIONAL, says="Functionalize rule")
def functionalized(op):
    return torch.func.functionalize(torch.func.grad(lambda x: op(x).sum()))(X)


@context("tracers", "fx.symbolic_trace")
def symbolic_trace(op):
    return gradient(torch.fx.symbolic_trace(Module(op)))


@context("tracers", "jit.trace", refused=NOT_JIT, ignore=JIT_IS_DEPRECATED)
def jit_trace(op):
    return gradient(torch.jit.trace(Module(op), (X,)))


@context("tracers", "jit.optimize_for_inference", refused=NOT_JIT, ignore=JIT_IS_DEPRECATED)
def jit_optimized(op):
    return gradient(torch.jit.optimize_for_inference(torch.jit.trace(Module(op).eval(), (X,))))


@cells("tracers")
def test_derivative_is_kept_or_refused_by_tracers(row, column):
    judge(row, column)

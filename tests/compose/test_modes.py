"""Dispatch and function modes, and tensor subclasses."""

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import torch
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

import pullback
from tests.compose._contexts import cells, context, gradient, judge, leaf
from tests.compose._ops import X, derivative


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class PassingFunctions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Named(torch.Tensor):
    """A subclass that overrides functions, not ops."""


@context("modes", "autocast on the CPU")
def autocast(op):
    x = leaf(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = op(x)
    y.sum().backward()
    return y, x.grad


@context("modes", "autocast, bfloat16 input")
def autocast_bfloat16(op):
    x = leaf(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = op(x)
        y.sum().backward()
    return y, x.grad


@context("modes", "anomaly detection", ignore=("Anomaly Detection has been enabled",))
def anomaly(op):
    with torch.autograd.detect_anomaly(check_nan=True):
        return gradient(op)


@context("modes", "inference mode", order=0)
def inference(op):
    with torch.inference_mode():
        return op(X).clone(), None


@context("modes", "no_grad, then grad")
def no_grad(op):
    with torch.no_grad():
        assert not op(leaf()).requires_grad
    return gradient(op)


@context("modes", "fake tensors")
def fake(op):
    with FakeTensorMode() as mode:
        x = mode.from_tensor(X).requires_grad_()
        (g,) = torch.autograd.grad(op(x).sum(), x)
        assert (g.shape, g.stride(), g.dtype) == (x.shape, x.stride(), x.dtype)
    return derivative(1)  # a fake tensor has no values: there is nothing more to compare


@context("modes", "meta tensors")
def meta(op):
    x = X.to("meta").requires_grad_()
    (g,) = torch.autograd.grad(op(x).sum(), x)
    assert (g.shape, g.stride(), g.dtype, g.device) == (x.shape, x.stride(), x.dtype, x.device)
    return derivative(1)


@context("modes", "a dispatch mode")
def dispatch_mode(op):
    with Passing():
        return gradient(op)


@context("modes", "a dispatch mode in the backward only")
def dispatch_mode_in_backward(op):
    x = leaf()
    y = op(x)
    with Passing():
        return y, torch.autograd.grad(y.sum(), x)[0]


@context("modes", "a function mode")
def function_mode(op):
    with PassingFunctions():
        return gradient(op)


@context("modes", "a __torch_dispatch__ subclass")
def dispatch_subclass(op):
    x = TwoTensor(X.clone(), X.clone()).requires_grad_()
    y = op(x)
    (g,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(g.a, g.b)
    return y.a, g.a


@context("modes", "a __torch_function__ subclass")
def function_subclass(op):
    x = X.clone().as_subclass(Named).requires_grad_()
    y = op(x)
    assert type(y) is Named
    (g,) = torch.autograd.grad(y.sum(), x)
    return y.as_subclass(torch.Tensor), g.as_subclass(torch.Tensor)


@context(
    "modes",
    "a nested tensor, jagged",
    refused={"ruled by jvp": "DerivativeError"},
    says=r"cannot be shown to be linear in the tangents.*say `@\w+\.jvp\(linear=True\)`",
)
def jagged(op):
    x = torch.nested.nested_tensor([X[:1], X[1:]], layout=torch.jagged, requires_grad=True)
    y = op(x)
    (g,) = torch.autograd.grad(y.values().sum(), x)
    return y.values(), g.values()


@context("modes", "eight threads at once")
def threads(op):
    gate = threading.Barrier(8)

    def one():
        gate.wait()
        return gradient(op)

    with ThreadPoolExecutor(8) as pool:
        results = [future.result() for future in [pool.submit(one) for _ in range(8)]]
    assert all(torch.equal(g, results[0][1]) for _, g in results)
    return results[0]


@context("modes", "forward in another thread")
def forward_in_another_thread(op):
    x = leaf()
    with ThreadPoolExecutor(1) as pool:
        y = pool.submit(op, x).result()
    return y, torch.autograd.grad(y.sum(), x)[0]


@cells("modes")
def test_derivative_is_kept_or_refused_in_modes_and_subclasses(row, column):
    judge(row, column)


def test_first_call_under_anomaly_detection_is_traced():
    op = pullback.function(lambda x: x * x.sin())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Anomaly Detection has been enabled")
        with torch.autograd.detect_anomaly(check_nan=True):
            gradient(op)
    assert "as graphs" in op.explain(X)


def turning_on(x):
    with torch.enable_grad():
        return x.sin()


def test_formula_that_enables_grad_records_under_no_grad():
    op, x = pullback.function(turning_on), X.clone().requires_grad_()
    op(x)
    for _ in range(2):
        with torch.no_grad():
            y = op(x)
        torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], X.cos())


def test_inference_tensor_beside_an_input_that_requires_grad():
    op, x = pullback.function(lambda x, c: x + c), X.clone().requires_grad_()
    with torch.inference_mode():
        c = torch.ones_like(X)
    op(x, torch.ones_like(X))
    for _ in range(2):
        y = op(x, c)
        torch.testing.assert_close(y, X + 1)
        torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], torch.ones_like(X))

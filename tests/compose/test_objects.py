"""Objects that hold an op: copied, pickled, with hooks."""

import copy
import functools
import io
import pickle

import torch

from tests.compose._contexts import cells, context, gradient, judge
from tests.compose._ops import X
from tests.compose.test_export import Module


class Weighted(torch.nn.Module):
    """A module that calls an op on its own parameter."""

    def __init__(self, op):
        super().__init__()
        self.op = op
        self.weight = torch.nn.Parameter(X.clone())

    def forward(self):
        return self.op(self.weight)


@context("objects", "a parameter of a module")
def parameter(op):
    module = Weighted(op)
    y = module()
    y.sum().backward()
    return y, module.weight.grad


@context("objects", "deepcopy of a module")
def deepcopied(op):
    module = Weighted(op)
    module()
    return parameter(copy.deepcopy(module).op)


@context("objects", "pickle of a module")
def pickled(op):
    return gradient(pickle.loads(pickle.dumps(Module(op))))


@context("objects", "torch.save of a module")
def saved(op):
    file = io.BytesIO()
    torch.save(Weighted(op), file)
    file.seek(0)
    return parameter(torch.load(file, weights_only=False).op)


@context("objects", "functools.partial")
def partial(op):
    return gradient(functools.partial(op))


@context("objects", "hooks on the result and the leaf")
def hooked(op):
    seen = []
    x = X.clone().requires_grad_()
    x.register_hook(seen.append)
    y = op(x)
    y.register_hook(lambda g: g * 2)
    y.sum().backward()
    assert len(seen) == 1
    return y, seen[0] / 2


@cells("objects")
def test_derivative_is_kept_after_copy_and_pickle(row, column):
    judge(row, column)

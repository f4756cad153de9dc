"""lxt: what is known of its custom functions.

Six are covered, of sixteen, with the arguments that its modules pass. What they send back is no gradient but relevance;
truth: the formulas of the paper that they name. Half precision, autocast, dimensions of size 1, frozen arguments,
strided inputs and cotangents, two backwards, checkpoints, changes in place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.blind import bare
from labels.fresh import raises, raises_in_autocast, raises_in_checkpoint
from labels.last import second_backward_raises

PACKAGE = Package("lxt", "2.1", "explanations")

RELEVANCE = "by design: what is sent back is relevance, which has no second derivative"
VIEW = "the output is the input: changing it in place raises, with PyTorch's message on views"
RULE = {
    **dict.fromkeys(("PB101", "PB401", "PB403", "PB404", "PB604", "PB107", "PB111"), RELEVANCE),
    "PB109": RELEVANCE,
    "PB408": "a vectorised backward raises: a nested backward takes no batch",
    "PB103": "there is one None more than arguments, which PyTorch drops",
}


def _function(module, name):
    from importlib import import_module

    bare("lxt", "lxt.efficient")
    return getattr(import_module("lxt." + module), name)


def _hidden():
    torch.manual_seed(0)
    return torch.randn(2, 3, 4)


# Right, in float32.
def identity():
    return _function("efficient.rules", "identity_rule_implicit_fn"), (torch.nn.functional.silu, _hidden())


# Right.
def divided():
    return _function("efficient.rules", "divide_gradient_fn"), (_hidden(), 2)


# Right, once.
def epsilon_of_product():
    torch.manual_seed(1)
    return _function("explicit.rules", "epsilon_lrp"), (torch.matmul, 1e-8, _hidden(), torch.randn(4, 3))


# Wrong.
def epsilon_of_sum():
    torch.manual_seed(1)
    return _function("explicit.rules", "epsilon_lrp"), (torch.add, 1e-8, _hidden(), torch.randn(2, 3, 4))


# Right.
def softmax():
    return _function("explicit.functional", "softmax"), (_hidden(), -1)


# Wrong.
def softmax_of_first_dimension():
    return _function("explicit.functional", "softmax"), (_hidden(), 0)


# Right, in float32.
def product():
    return _function("explicit.functional", "matmul"), (_hidden(), _hidden().mT.contiguous())


# Right, where more than one is averaged.
def mean():
    return _function("explicit.functional", "mean"), (_hidden(), 1, False)


def identity_of_zero_is_nan_in_half():
    function, (silu, _) = identity()
    x = torch.tensor([0.0, 1.0], dtype=torch.float16, requires_grad=True)
    function.apply(silu, x).sum().backward()
    return bool(x.grad[0].isnan() and x.grad[1].isfinite())


def sum_gets_wrong_relevance():
    """Whether the terms of a sum of relevance 1 each get their product over the sum, not their own share of it."""
    function, (add, small, a, b) = epsilon_of_sum()
    a, b = (x.double().abs().requires_grad_() for x in (a, b))
    found = torch.autograd.grad(function(add, small, a, b).sum(), (a, b))
    a, b = a.detach(), b.detach()
    product = a * b / (a + b)
    return all(torch.allclose(x, product) for x in found) and not torch.allclose(a / (a + b), product, rtol=0.1)


def softmax_sums_wrong_dimension():
    """Whether relevance is conserved as the formula has it along the last dimension, and along the first is not."""
    x = _hidden().double()
    wrong = []
    for dim in (-1, 0):
        function = _function("explicit.functional", "softmax")
        leaf = x.clone().requires_grad_()
        y = function(leaf, dim)
        relevance = torch.linspace(0, 1, y.numel(), dtype=y.dtype).view_as(y)
        (found,) = torch.autograd.grad(y, leaf, relevance)
        expected = x * (relevance - y.detach() * relevance.sum(dim, keepdim=True))
        wrong.append(not torch.allclose(found, expected))
    return wrong == [False, True]


def zero_is_nan_in_half(make, first):
    """Whether a row of zeros, of which the relevance is 0 in float32, has NaN in float16."""
    found = []
    for dtype in (torch.float32, torch.float16):
        function, arguments = make()
        arguments = list(arguments)
        x = arguments[first].to(dtype)
        x[0, 0] = 0
        arguments[first], arguments[first + 1] = x.requires_grad_(), arguments[first + 1].to(dtype)
        function(*arguments).sum().backward()
        found.append(bool(x.grad.isfinite().all()))
    return found == [True, False]


def mean_of_one_raises():
    function, _ = mean()
    x = torch.randn(2, 1, 4, requires_grad=True)
    return raises(function(x, 1, False).sum().backward, "invalid gradient")


def _half(make, first):
    return Bug(
        "in float16 the small constant is 0: where the output is 0 the relevance is NaN",
        ("PB301",),
        partial(zero_is_nan_in_half, make, first),
    )


def _checkpoint(make):
    return Bug(
        "the backward reads its saved tensors twice: under activation checkpointing it raises",
        ("PB411",),
        partial(raises_in_checkpoint, make, "already unpacked once"),
    )


CALLS = (
    Call(
        identity,
        "other",
        bugs=(
            Bug(
                "in float16 the small constant is 0: where the input is 0 the relevance is NaN",
                ("PB301",),
                identity_of_zero_is_nan_in_half,
            ),
        ),
        doubtful=RULE,
    ),
    Call(divided, "other", doubtful={**RULE, "PB207": VIEW}),
    Call(
        epsilon_of_product,
        "other",
        bugs=(
            Bug(
                "the nested backward frees its graph: a second backward over a retained graph raises",
                ("PB206",),
                partial(second_backward_raises, epsilon_of_product, "second time"),
            ),
            _checkpoint(epsilon_of_product),
            _half(epsilon_of_product, 2),
        ),
        doubtful=RULE,
    ),
    Call(
        epsilon_of_sum,
        "other",
        bugs=(
            Bug(
                "both gradients are one tensor, which is multiplied in place by one term and then by the other",
                ("PB101", "PB113"),
                sum_gets_wrong_relevance,
            ),
            _checkpoint(epsilon_of_sum),
        ),
        doubtful={k: v for k, v in RULE.items() if k != "PB101"},
    ),
    Call(softmax, "other", doubtful=RULE),
    Call(
        softmax_of_first_dimension,
        "other",
        bugs=(
            Bug(
                "the relevance is summed along the last dimension whatever the dimension of the softmax is",
                ("PB101",),
                softmax_sums_wrong_dimension,
            ),
        ),
        doubtful=RULE,
    ),
    Call(
        product,
        "other",
        bugs=(
            _half(product, 0),
            Bug(
                "after a forward under autocast, of which the output is bfloat16, the backward raises",
                ("PB413",),
                partial(raises_in_autocast, product, "expected scalar type", "expected m1 and m2"),
            ),
        ),
        doubtful=RULE,
    ),
    Call(
        mean,
        "other",
        bugs=(
            Bug(
                "of a dimension of size 1 the gradient loses it, and the backward raises",
                ("PB104", "PB119"),
                mean_of_one_raises,
            ),
        ),
        doubtful=RULE,
    ),
)

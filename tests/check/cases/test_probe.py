"""The search for a working example: signatures of published functions, and the reasons of a failed search."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import Function

import pullback
from pullback.check.cases.probe import probe
from pullback.check.cases.search import asked_shapes
from pullback.check.cases.signature import parameters, positional_names
from pullback.check.find.discover import subject_of
from pullback.check.trial import forward, vjp

from ..making import Silent
from ..modules import import_source


def probed(target, seed=0):
    return probe(subject_of(target), torch.Generator().manual_seed(seed), Silent())


def example(target):
    """Return the arguments found, after forward and backward ran on them."""
    found = probed(target)
    assert found.case is not None, found.reasons
    run = forward(subject_of(target), found.case)
    gradients = vjp(run, [torch.ones_like(root) for root in run.roots])
    assert any(g is not None and (g != 0).any() for g in gradients)
    return found.case.values


def op(forward_method, count):
    """Return a Function whose gradient is the cotangent's sum for every tensor among `count` arguments."""

    class Op(Function):
        @staticmethod
        def backward(ctx, *cotangents):
            total = sum(g.sum() for g in cotangents if g.is_floating_point())
            grads = [total.expand(s).to(d) if s is not None else None for s, d in ctx.like]
            return tuple(grads + [None] * (count - len(grads)))

    def forward(ctx, *args):
        ctx.like = [(a.shape, a.dtype) if torch.is_tensor(a) and a.is_floating_point() else (None, None) for a in args]
        return forward_method(ctx, *args)

    forward.__wrapped__ = forward_method
    Op.forward = staticmethod(forward)
    return Op


def attention(ctx, query, key, value, scale):
    return (query @ key.transpose(-1, -2) * scale).softmax(-1) @ value


def linear(ctx, input, weight, bias=None):
    return F.linear(input, weight, bias)


def conv(ctx, input, weight, bias, stride, padding):
    assert input.dim() == 4
    return F.conv2d(input, weight, bias, stride, padding)


def sparsemax(ctx, X, alpha, dim, n_iter, ensure_sum_one=True):
    assert isinstance(dim, int)
    assert isinstance(n_iter, int)
    return (X * alpha).softmax(dim)


def gather(ctx, x, index):
    assert index.dtype == torch.int64
    return x[index]


def masked(ctx, x, mask):
    assert mask.dtype == torch.bool
    return x.masked_fill(mask, 0)


def spike(ctx, input, slope=25):
    return (input * slope).sigmoid()


def float32_only(ctx, x):
    if x.dtype != torch.float32:
        raise TypeError("expected Float")
    return x * 2


def positive_only(ctx, x):
    assert (x > 0).all()
    return x.log()


def image_norm(ctx, x, gamma):
    _, c, _, _ = x.shape
    return x * gamma.view(1, c, 1, 1)


def bilinear(ctx, x, y):
    assert x.dim() == 3
    return torch.bmm(x.transpose(1, 2), y)


def square_matrix(ctx, A):
    return torch.linalg.inv(A + 10 * torch.eye(A.shape[-1], dtype=A.dtype))


def reduced(ctx, input, target, reduction):
    loss = (input - F.one_hot(target, input.shape[1])) ** 2
    return {"mean": loss.mean, "sum": loss.sum}[reduction]()


def with_function(ctx, fn, x):
    return fn(x)


def two_outputs(ctx, x, k):
    return x.topk(k)[0], x.sum()


def by_flag(ctx, x, training, momentum):
    assert training in (True, False)
    return x * (1 - momentum)


def quantised(ctx, x, num_bits, symmetric):
    levels = 2**num_bits
    return (x * levels).tanh() / levels if symmetric else x


@pytest.mark.parametrize(
    ("forward", "count"),
    [
        (spike, 2), (sparsemax, 5), (linear, 3), (conv, 5), (attention, 4), (gather, 2), (masked, 2),
        (float32_only, 1), (positive_only, 1), (image_norm, 2), (bilinear, 2), (square_matrix, 1), (reduced, 3),
        (with_function, 2), (two_outputs, 2), (by_flag, 3), (quantised, 3),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
def test_published_signatures_get_an_example(forward, count):
    example(op(forward, count))


def test_first_attempt_is_a_float64_matrix_with_the_default_argument():
    (x, slope) = example(op(spike, 2))
    assert (x.shape, x.dtype, slope) == ((3, 5), torch.float64, 25)
    assert torch.equal(x.float().double(), x)
    assert (x != x.round()).all()


def test_classmethod_forward_gets_an_example():
    class Op(Function):
        factor = 2

        @classmethod
        def forward(cls, ctx, x, p=0.5):
            return cls.factor * x * p

        @staticmethod
        def backward(ctx, g):
            return g, None

    assert positional_names(subject_of(Op)) == ["x", "p"]
    assert len(example(Op)) == 2


def test_setup_context_function_gets_an_example():
    class Op(Function):
        @staticmethod
        def forward(x, exponent: int = 3):
            return x**exponent

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(inputs[0])

        @staticmethod
        def backward(ctx, g):
            return 3 * g * ctx.saved_tensors[0] ** 2, None

    assert [p.name for p in parameters(subject_of(Op))] == ["x", "exponent"]
    assert example(Op)[1] == 3


def test_variadic_forward_gets_an_example():
    def stacked(ctx, *xs):
        assert len(xs) == 3
        return torch.stack(xs)

    assert len(example(op(stacked, 3))) == 3


CALLED = """
import torch

class Weighted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *args):
        x, y, power, kind = args
        assert power == 11 and kind == "odd"
        return x * y

    @staticmethod
    def backward(ctx, g):
        return g, g, None, None

def weighted(x, y, power=11):
    return Weighted.apply(x, y, power, "odd")
"""


def test_constants_of_call_sites_in_the_module_are_used(tmp_path):
    values = example(import_source(CALLED, tmp_path, "probe_called").Weighted)
    assert values[2:] == (11, "odd")


def test_backward_that_always_fails_does_not_prevent_an_example():
    class Op(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return undefined_name  # noqa: F821

    found = probed(Op)
    assert found.case is not None
    assert [tuple(t.shape) for t in found.case.tensors] == [(3, 5)]  # the first call


def three_matrices(ctx, a, b, c):
    assert a.shape == (3, 5)
    return a @ b @ torch.linalg.inv(c)


def needs_steps(ctx, x, steps):
    return sum(x for _ in range(steps))


def by_mode(ctx, x, variant):
    if variant == "geometric":
        return x.exp()
    raise ValueError("no such variant")


def of_pair(ctx, x, window):
    low, high = window
    return x * (high + low)


def with_two_callables(ctx, x, first, second):
    return first(x, x) + second(2 * x)


def cholesky(ctx, matrix):
    return torch.linalg.cholesky(matrix)


def vector_and_matrix(ctx, u, w, v):
    assert u.dim() == 1
    if v.shape != (2, 3):
        raise ValueError("v must be 2 by 3")
    return torch.outer(u, w) * v.sum()


@pytest.mark.parametrize(
    ("forward", "count"),
    [
        (three_matrices, 3), (needs_steps, 2), (by_mode, 2), (of_pair, 2), (with_two_callables, 3), (cholesky, 1),
        (vector_and_matrix, 3),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
def test_error_messages_and_locations_guide_the_search(forward, count):
    example(op(forward, count))


def test_parameter_used_as_tensor_is_tried_as_tensor_first():
    def forward(ctx, x, alpha):
        return x * alpha.sum(), alpha

    seen = []
    target = op(lambda ctx, x, alpha: seen.append(alpha) or forward(ctx, x, alpha), 2)
    target.forward.__wrapped__ = forward
    example(target)
    assert torch.is_tensor(seen[0])


class Replayed(Function):
    """Right only if `steps` is the number of rows."""

    @staticmethod
    def forward(ctx, x, steps):
        ctx.steps = steps
        return x.sum(0)

    @staticmethod
    def backward(ctx, g):
        return g.expand(ctx.steps, *g.shape), None


def test_integer_that_must_match_a_size_is_found():
    x, steps = example(Replayed)
    assert steps == x.shape[0]


def test_gradients_of_other_shapes_are_a_last_resort():
    class Op(Function):
        @staticmethod
        def forward(ctx, x, steps):
            ctx.steps = steps
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return 2 * g.expand(ctx.steps, *g.shape), None  # the engine sums it

    def flawed(case):
        return case.values[1] != 5

    found = probe(subject_of(Op), torch.Generator().manual_seed(0), Silent(), flawed)
    assert found.case.values[1] == 5


def test_default_that_runs_is_kept():
    class Op(Function):
        @staticmethod
        def forward(ctx, x, alpha=0.0):
            ctx.alpha = alpha
            return x * alpha

        @staticmethod
        def backward(ctx, g):
            return g * ctx.alpha, None

    assert probed(Op).case.values[1] == 0.0


def test_input_without_gradient_support_is_not_differentiated():
    class Op(Function):
        @staticmethod
        def forward(ctx, x, length):
            if ctx.needs_input_grad[0]:
                raise RuntimeError("cannot compute gradients with respect to x")
            ctx.save_for_backward(x)
            return x * length

        @staticmethod
        def backward(ctx, g):
            return None, g * ctx.saved_tensors[0]

    case = probed(Op).case
    assert [case.names[p] for p in case.wrt] == ["length"]


def test_call_whose_backward_runs_is_preferred():
    class Op(Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.square = weight.shape == (5, 3)
            return (x @ weight).sum(0)

        @staticmethod
        def backward(ctx, g):
            return (torch.ones(3, 5), torch.ones(5, 3)) if ctx.square else (torch.ones(9), torch.ones(9))

    assert [tuple(t.shape) for t in probed(Op).case.tensors] == [(3, 5), (5, 3)]


def test_sizes_that_hide_a_broken_backward_are_avoided():
    class Transposed(Function):
        @staticmethod
        def forward(ctx, x, y):
            return x * y

        @staticmethod
        def backward(ctx, g):
            return g.t(), g.t()

    assert tuple(probed(Transposed).case.tensors[0].shape) == (3, 5)


def test_optional_arguments_are_left_out():
    class Op(Function):
        @staticmethod
        def forward(ctx, x, y, scale=None, shift=None):
            return x + y

        @staticmethod
        def backward(ctx, g):
            return g, g

    assert len(example(Op)) == 2


def test_parameter_with_a_returned_gradient_is_a_tensor():
    class Op(Function):
        @staticmethod
        def forward(ctx, x, alpha):
            ctx.alpha = alpha
            return x * alpha

        @staticmethod
        def backward(ctx, g):
            return g * ctx.alpha, g.expand_as(g)

    assert torch.is_tensor(example(Op)[1])


def test_missing_process_group_ends_the_search():
    class Op(Function):
        @staticmethod
        def forward(ctx, x):
            raise RuntimeError("Default process group has not been initialized")

        @staticmethod
        def backward(ctx, g):
            return g

    found = probed(Op)
    assert found.case is None
    assert found.trials < 50
    assert "process group" in found.lacks


UNPACKED = """
import torch

class Unpacked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *args):
        left, right, (low, high) = args
        return left.relu() + right.relu() + low * high

    @staticmethod
    def backward(ctx, g):
        return g, g, None
"""


def test_variadic_arguments_are_named_by_their_unpacking(tmp_path):
    target = import_source(UNPACKED, tmp_path, "probe_unpacked").Unpacked
    case = probed(target).case
    assert [case.names[p] for p in case.wrt] == ["left", "right"]


DEFAULTS = """
from typing import NamedTuple
import torch

class Constants(NamedTuple):
    tau: torch.Tensor = torch.tensor(2.0)

def layer(x, constants: Constants = Constants()):
    return x * constants.tau
"""


def test_tensors_in_a_default_are_not_differentiated(tmp_path):
    case = probed(import_source(DEFAULTS, tmp_path, "probe_defaults").layer).case
    assert [case.names[p] for p in case.wrt] == ["x"]
    assert len(case.values) == 2


def test_failed_search_returns_reasons():
    class Op(Function):
        @staticmethod
        def forward(ctx, x):
            raise RuntimeError(f"needs a special {x.dim() * 0}")

        @staticmethod
        def backward(ctx, g):
            return g

    found = probed(Op)
    assert found.case is None
    assert found.trials > 50
    assert found.reasons[0] == "forward raised RuntimeError: needs a special 0"


def test_same_seed_gives_the_same_example():
    target = op(attention, 4)
    first, again, other = probed(target).case, probed(target).case, probed(target, seed=1).case
    assert all(torch.equal(a, b) for a, b in zip(first.tensors, again.tensors, strict=True))
    assert not torch.equal(first.tensors[0], other.tensors[0])


def test_formula_that_pullback_refuses_ends_the_search():
    @pullback.function
    def decided(x, scale=1.0):
        return x * scale if x.sum() > 0 else x

    found = probed(decided)
    assert found.case is None
    assert found.trials <= 20
    assert "needs the value of a tensor" in found.reasons[0]


class HalfOfAMeanSquare(Function):
    @staticmethod
    def forward(ctx, prediction, target):
        ctx.save_for_backward(prediction, target)
        return ((prediction - target) ** 2).sum() / 2

    @staticmethod
    def backward(ctx, g):
        prediction, target = ctx.saved_tensors
        return g * (prediction - target), g * (prediction - target)  # the second has the wrong sign


def test_target_is_floating_point_if_accepted():
    assert all(x.is_floating_point() for x in example(HalfOfAMeanSquare))


def twist(ctx, x):
    if x.shape[-1] != 6:
        raise ValueError("a twist must have shape (..., 6)")
    return x * x


def blocks(ctx, x, w):
    if w.shape[-2:] != (8, 4):
        raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({x.shape[0]}x{x.shape[1]} and 8x4)")
    return x @ w


def pose(ctx, x, p):
    assert x.shape[-1] == 7
    return torch.linalg.cross(x[..., :3], p) + p


@pytest.mark.parametrize("forward_method", [twist, blocks, pose])
def test_shapes_in_error_messages_are_tried(forward_method):
    assert example(op(forward_method, 2))


@pytest.mark.parametrize(
    ("message", "shape"),
    [
        ("data tensors must have shape (..., 3, 4)", (3, 3, 4)),
        ("Given normalized_shape=[8], expected input with shape [*, 8]", (3, 8)),
        ("linalg.cross: inputs dimension -1 must have length 3. Got 2 and 3", (3, 3)),
        ("expected input[2, 3, 6, 6] to have 8 channels", (2, 8, 6, 6)),
        ("mat1 and mat2 shapes cannot be multiplied (3x5 and 8x4)", (3, 8)),
        ("not enough values to unpack (expected 4, got 2)", (2, 3, 6, 6)),
        ("Expected 3D (unbatched) input", (2, 3, 5)),
    ],
)
def test_shape_is_parsed_from_an_error_message(message, shape):
    assert shape in asked_shapes(message)


def test_message_without_shape_gives_none():
    assert asked_shapes("expected 1000 elements, of 0 or 1") == []

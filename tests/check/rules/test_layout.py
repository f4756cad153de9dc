"""Rules about strides, sizes and caches."""

import pytest
import torch

import pullback

from ..making import function, normal


def found(rule, target, *inputs):
    return [(f.severity, f.message) for f in pullback.check(target, *inputs, select=rule).findings]


def squared(value, gradient=lambda g, x: 2 * g * x):
    return function(value, gradient)


def test_501_explicit_refusal_is_an_info():
    def value(x):
        if not x.is_contiguous():
            raise ValueError("x must be contiguous")
        return x * x

    ((severity, message),) = found("PB501", squared(value), normal(3, 5))
    assert severity == "info"
    assert message == "with transposed inputs, forward raised ValueError: x must be contiguous"


def test_501_failing_view_is_a_warning():
    ((severity, _),) = found("PB501", squared(lambda x: x.view(-1).square().view(x.shape)), normal(3, 5))
    assert severity == "warning"


def test_501_exception_raised_in_c_is_a_warning():
    def value(x):
        memoryview(x.detach().numpy()).cast("B")  # raises in C: "casts are restricted to C-contiguous views"
        return x * x

    ((severity, message),) = found("PB501", squared(value), normal(3, 5))
    assert severity == "warning"
    assert "C-contiguous" in message


def test_501_arguments_without_gradient_get_other_strides_too():
    def gather(x, index):
        return x.gather(0, index.as_strided(index.shape, (index.shape[1], 1)))

    index = torch.tensor([[0, 1, 2], [2, 0, 1], [1, 2, 0]])
    ((severity, message),) = found("PB501", gather, normal(3, 3), index)
    assert severity == "error"
    assert message.startswith("with transposed inputs (index is enough) output 0 changes")


@pytest.mark.parametrize(("reads", "expected"), [("offsets", "warning"), ("both", "error")])
def test_strides_of_offsets_alone_are_a_warning(reads, expected):
    def raw(t):
        return t.as_strided(t.shape, (1,) * t.ndim)

    def scaled(x, offsets):
        return (raw(x) if reads == "both" else x) * raw(offsets)

    x = normal(4) + torch.arange(4)
    ((severity, message),) = found("PB501", scaled, x, torch.tensor([0, 2, 3, 4]))
    assert severity == expected
    assert ("(offsets is enough)" in message) == (expected == "warning")


def test_101_says_whether_the_forward_depends_on_strides():
    def in_memory_order(x):
        return x.as_strided(x.shape, (x.shape[1], 1))

    both = squared(lambda x: in_memory_order(x) ** 2, lambda g, x: 2 * g * in_memory_order(x))
    backward = squared(lambda x: x * x, lambda g, x: 2 * g * in_memory_order(x))
    for target, reader in ((both, "the forward"), (backward, "the backward")):
        hints = [f.hint for f in pullback.check(target, normal(3, 5), select="PB101").findings]
        assert hints == [f"it is right for contiguous tensors: {reader} reads memory in the wrong order"]
    assert {f.rule for f in pullback.check(both, normal(3, 5), select="PB101,PB501").findings} == {"PB501"}


def test_501_unresolved_conjugate_input_is_a_warning():
    def value(x):
        return torch.view_as_complex(2 * torch.view_as_real(x))

    x = torch.complex(normal(3, 5), normal(3, 5))
    ((severity, message),) = found("PB501", squared(value, lambda g, x: 2 * g), x)
    assert severity == "warning"
    assert message.startswith("with conjugated inputs, forward raised")


def test_502_unresolved_conjugate_cotangent_is_an_error():
    def gradient(g, x):
        return torch.view_as_complex(2 * torch.view_as_real(g))

    x = torch.complex(normal(3, 5), normal(3, 5))
    ((severity, message),) = found("PB502", squared(lambda x: 2 * x, gradient), x)
    assert severity == "error"
    assert message.startswith("with a conjugated cotangent, backward raised")


def test_502_expanded_cotangent_is_tried():
    def gradient(g, x):
        return 2 * x * (g if all(g.stride()) else 2 * g)

    ((severity, message),) = found("PB502", squared(torch.square, gradient), normal(3, 5))
    assert severity == "error"
    assert message.startswith("with an expanded cotangent, the gradient of x changes")


def test_502_batch_transposed_cotangent_is_tried():
    def gradient(g, x):
        return 2 * x * g.view(-1, *g.shape[2:]).view(g.shape)

    ((severity, message),) = found("PB502", squared(torch.square, gradient), normal(2, 3, 4, 5))
    assert severity == "error"
    assert message.startswith("with a batch-transposed cotangent, backward raised")


def test_502_cotangent_that_is_part_of_longer_rows_is_tried():
    def gradient(g, x):
        rows = g if g.stride(-1) == 1 and all(g.stride()) else g.contiguous()
        return 2 * x * rows.as_strided(x.shape, (x.shape[1], 1))

    ((severity, message),) = found("PB502", squared(torch.square, gradient), normal(3, 5))
    assert severity == "error"
    assert message.startswith("with a narrowed cotangent, the gradient of x changes")


def test_503_explicit_refusal_is_an_info():
    def value(x):
        if not len(x):
            raise ValueError("no rows")
        return x * x

    assert [severity for severity, _ in found("PB503", squared(value), normal(3, 5))] == ["info"]


def test_503_output_of_another_shape_is_a_warning():
    ((severity, message),) = found("PB503", squared(lambda x: x * x if len(x) else x.flatten()), normal(3, 5))
    assert severity == "warning"
    assert message.endswith("the outputs have shapes [(0,)]; those at other sizes call for [(0, 5)]")


def test_503_dependent_rows_are_no_batch():
    def softmax(x):
        return (x - x.amax(0)).exp() / (x - x.amax(0)).exp().sum(0)

    assert found("PB503", squared(softmax), normal(3, 5)) == []
    ((severity, message),) = found("PB503", squared(lambda x: x * (1 + 0 * x.amax())), normal(3, 5))
    assert (severity, "amax" in message) == ("warning", True)


def test_503_mean_over_an_empty_dimension_is_not_reported():
    class Mean(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.shape = x.shape
            assert len(x)
            return x.mean(0)

        @staticmethod
        def backward(ctx, g):
            return (g / ctx.shape[0]).expand(ctx.shape)

    assert found("PB503", Mean, normal(3, 5)) == []


def test_504_exception_at_size_one_is_a_warning():
    value = squared(lambda x: x * x.squeeze().unsqueeze(2).squeeze(2))
    ((severity, message),) = found("PB504", value, normal(3, 5))
    assert severity == "warning"
    assert message.startswith("with size 3 -> 1, ")


def test_505_other_value_for_a_scalar_is_an_error():
    ((severity, message),) = found("PB505", squared(lambda x: x * x if x.ndim else x + x), normal(5))
    assert severity == "error"
    assert message.startswith("with tensors of no dimension, output 0 is not the number for one element")


def test_505_wrong_gradient_for_a_scalar_is_an_error():
    def gradient(g, x):
        return 2 * g * x if x.ndim else g

    ((severity, message),) = found("PB505", squared(torch.square, gradient), normal(5))
    assert severity == "error"
    assert "the gradient of x is not the number" in message


def test_506_broken_tail_of_the_gradient_is_an_error():
    def gradient(g, x):
        gx = 2 * g * x
        return torch.cat([gx[: len(x) // 32 * 32], 0 * gx[len(x) // 32 * 32 :]]) if len(x) > 32 else gx

    ((severity, message),) = found("PB506", squared(torch.square, gradient), normal(5))
    assert severity == "error"
    assert message.startswith("with the example repeated to length 1023, the gradient of x stops repeating at [992]")


@pytest.mark.parametrize(
    "value",
    [
        lambda x: x.cumsum(0),
        lambda x: x / x.sum(),
        lambda x: x * (1.5 / x.norm()).clamp(max=1),
        lambda x: x * torch.arange(len(x)),
        lambda x: x + torch.nn.functional.pad(x[1:], (0, 1)) + torch.nn.functional.pad(x[2:], (0, 2)),
        lambda x: torch.nn.functional.one_hot(len(x) - 1 - x.flip(0).argmax(), len(x)) * x,
        lambda x: x / torch.cat([b.abs().amax(0, keepdim=True).expand_as(b) for b in x.split(16)]),
    ],
    ids=["position", "all", "only when long", "index", "border", "last of equals", "by blocks"],
)
def test_506_dependence_on_neighbours_or_position_is_not_reported(value):
    def gradient(g, x):
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            return torch.autograd.grad(value(leaf), leaf, g)[0]

    assert found("PB506", function(value, gradient), normal(5)) == []


def cached(key):
    """Return a Function that multiplies by a ramp, which it caches under `key(x)`."""
    ramps = {}

    def ramp(x):
        if key(x) not in ramps:
            ramps[key(x)] = torch.linspace(1, 2, len(x), dtype=x.dtype)
        return ramps[key(x)]

    class Ramp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * ramp(x)

        @staticmethod
        def backward(ctx, g):
            return g * ramp(g)

    return Ramp


def test_507_incomplete_cache_keys_are_reported():
    def messages(key):
        return [message for _, message in found("PB507", cached(key), normal(5))]

    assert messages(lambda x: (len(x), x.dtype)) == []
    (by_length,) = messages(len)
    assert by_length.startswith("called with float32 after the example, result 0 is of torch.float64")
    (by_dtype,) = messages(lambda x: x.dtype)
    assert by_dtype.startswith("called with size 5 -> 6 after the example, forward raised RuntimeError")


def test_507_counter_of_calls_is_no_cache():
    class Counts(torch.autograd.Function):
        calls = 0

        @staticmethod
        def forward(ctx, x):
            Counts.calls += 1
            return x * Counts.calls

        @staticmethod
        def backward(ctx, g):
            return g * Counts.calls

    undecided = "could not be decided: two runs from the same random state differ"
    assert found("PB507", Counts, normal(5)) == [("warning", undecided)]


def test_502_rounding_of_a_cancelling_gradient_is_not_reported():
    """The projector onto the whole space is the identity: its gradient is 0 up to a rounding of 10⁻¹⁵."""

    def projected(a):
        q, _ = torch.linalg.qr(a)
        return q @ q.mT

    def gradient(g, a):
        with torch.enable_grad():
            leaf = a.detach().requires_grad_()
            return torch.autograd.grad(projected(leaf), leaf, g)[0]

    assert found("PB502", function(projected, gradient), normal(4, 4)) == []


def test_506_singular_matrix_of_repeated_rows_is_not_reported():
    def inverse(a):
        q, r = torch.linalg.qr(a)
        return torch.linalg.solve_triangular(r, q.mT, upper=True)

    def gradient(g, a):
        x = inverse(a)
        return -x.mT @ g @ x.mT

    assert found("PB506", function(inverse, gradient), normal(4, 4) + 3 * torch.eye(4)) == []


def test_501_matrix_of_equal_rows_is_not_reported():
    """It is singular: by its strides, LAPACK leaves a rounding of 10⁻⁵⁰ or none, whose logarithm is −117 or −∞."""
    row = [2.879092890880602, -1.449786877256801, -0.15722606934363859]
    matrix = torch.tensor([row, [0.3, 3.7, -0.6], [-1.1, 0.4, 2.2]], dtype=torch.float64)
    value = lambda a: torch.linalg.slogdet(a)[1]  # noqa: E731
    assert found("PB501", function(value, lambda g, a: g * torch.linalg.inv(a).mT), matrix) == []

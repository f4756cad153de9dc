"""Source of the written class: simplified, with named intermediates and stable forms; and refusals."""

import re

import pytest
import torch
import torch.nn.functional as F

import pullback
from pullback.errors import FormulaError, OptionError


def x(*shape):
    return torch.linspace(-2, 2, torch.Size(shape).numel()).reshape(shape)


def method(source, name):
    """Return the body of a method, its lines without indentation."""
    body = re.split(rf"def {name}\(.*\):\n", source)[1].split("\n\n")[0]
    return [line.strip() for line in body.splitlines()]


def backward(formula, *args):
    return method(pullback.write(pullback.function(stable=False)(formula), *args), "backward")


def test_backward_reuses_the_output_and_collects_like_terms():
    lines = backward(lambda x: torch.sigmoid(x) * torch.rsqrt(1 + torch.exp(x)), x(3, 5))
    assert lines == ["x, out = ctx.saved_tensors", "return g * out * (1 - 1.5 * torch.sigmoid(x))"]


def test_cancelling_terms_are_simplified():
    assert backward(lambda x: x - torch.tanh(x), x(3, 5))[-1] == "return g * torch.tanh(x) ** 2"


def test_backward_reuses_the_saved_output():
    assert backward(torch.exp, x(4))[-1] == "return g * out"
    lines = backward(lambda x: torch.softmax(x, -1), x(3, 5))
    assert lines == ["(out,) = ctx.saved_tensors", "return out * (g - (g * out).sum(-1, keepdim=True))"]


def test_constants_are_folded():
    assert backward(lambda x: (2 * x * 3) / 4 - x, x(4))[-1] == "return 0.5 * g"


def test_gradients_check_needs_input_grad_and_sum_to_size():
    lines = backward(lambda x, y: x * torch.exp(-y), x(3, 5), x(5))
    assert lines[1:] == [
        "gx = gy = None",
        "if ctx.needs_input_grad[0]:",
        "gx = (g * torch.exp(-y)).sum_to_size(ctx.x_shape)",
        "if ctx.needs_input_grad[1]:",
        "gy = (-g * out).sum_to_size(y.shape)",
        "return gx, gy",
    ]


def test_only_the_shape_is_saved_where_values_are_unused():
    source = pullback.write(lambda x: x.mean(), x(3, 5))
    assert method(source, "setup_context") == ["(x,) = inputs", "ctx.x_shape = x.shape"]
    assert "save_for_backward" not in source


def test_matrices_are_transposed_at_most_once():
    lines = backward(F.linear, x(3, 5), x(7, 5))
    assert "gx = g @ y" in " ".join(lines) or "g @" in " ".join(lines)
    assert ".T.T" not in " ".join(lines)


def test_shared_value_is_computed_once():
    source = pullback.write(lambda x: x / x.norm(dim=-1, keepdim=True), x(3, 5))
    assert " ".join(method(source, "backward")).count("vector_norm") == 1


def test_source_imports_only_torch_and_fits_100_columns():
    source = pullback.write(lambda x, w, b: F.gelu(F.layer_norm(x, (5,), w, b)), x(3, 5), x(5), x(5))
    assert {line.split()[1] for line in source.splitlines() if line.startswith(("import", "from"))} <= {
        "torch",
        "torch.nn.functional",
    }
    assert max(map(len, source.splitlines())) <= 100
    assert "pullback" not in source


def test_unsupported_shapes_raise():
    scope = {}
    exec(pullback.write(lambda x, w: torch.softmax(x, -1) @ w, x(3, 5), x(5, 2)), scope)
    function = scope["Lambda"]
    assert function.apply(x(4, 6), x(6, 7)).shape == (4, 7)
    with pytest.raises(ValueError, match=re.escape("takes x of shape [n, m], w of shape [m, k]")):
        function.apply(x(2, 4, 6), x(6, 7))


def test_inexpressible_sizes_are_fixed_to_the_example():
    source = pullback.write(lambda x: x[: x.shape[0] // 2 + 1].sum() * (x.shape[0] // 2), x(6, 5))
    assert "x: [n, m]" in source or "x.shape == (6, 5)" in source


def test_value_shared_by_two_gradients_is_available_to_each_alone():
    source = pullback.write(lambda x, y: torch.cat([x, y, x], 0).flip(0), x(3, 5), x(2, 5))
    scope = {}
    exec(source, scope)
    for first in (True, False):
        a, b = x(4, 6).requires_grad_(first), x(3, 6).requires_grad_(not first)
        scope["Lambda"].apply(a, b).sum().backward()
        assert torch.equal((a if first else b).grad, torch.full_like(a if first else b, 2.0 if first else 1.0))


def test_gradient_that_two_inputs_share_is_available_to_each_alone():
    scope = {}
    exec(pullback.write(lambda x, b: torch.tanh(x + b), x(2, 3), x(3)), scope)
    for first in (True, False):
        a, b = x(2, 3).requires_grad_(first), x(3).requires_grad_(not first)
        scope["Lambda"].apply(a, b).sum().backward()
        slope = 1 - torch.tanh(a + b).detach() ** 2
        assert torch.allclose((a if first else b).grad, slope if first else slope.sum(0))


def test_detach_is_kept_in_the_second_derivative():
    scope = {}
    exec(pullback.write(lambda x: x.detach() * x, x(5)), scope)
    at = x(5).requires_grad_()
    (gradient,) = torch.autograd.grad(scope["Lambda"].apply(at).sum(), at, create_graph=True)
    assert torch.equal(gradient, at)
    assert not gradient.requires_grad or torch.autograd.grad(gradient.sum(), at, allow_unused=True)[0] is None


def test_stable_forms_are_written_to_second_order():
    source = pullback.write(pullback.catalog.silu, x(3, 5))
    assert "Uses stable forms for float32" in source
    assert ".double()" in source
    assert "return SiluBackward.apply(x, g)" in source
    scope = {}
    exec(source, scope)
    with pytest.raises(TypeError, match=r"written for torch\.float32"):
        scope["Silu"].apply(x(4).double())
    at = x(4).requires_grad_()
    (first,) = torch.autograd.grad(scope["Silu"].apply(at).sum(), at, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), at, create_graph=True)
    with pytest.raises(NotImplementedError, match="no third derivative"):
        (second.sum() + at.sum()).backward()


def test_removable_singularity_is_filled():
    text = pullback.write(pullback.function(sinc), torch.tensor([0.0, 2.0], dtype=torch.float64))
    space = {}
    exec(text, space)
    x = torch.tensor([0.0, 2.0], dtype=torch.float64, requires_grad=True)
    value = space["Sinc"].apply(x)
    (slope,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), x)
    assert (value[0].item(), slope[0].item()) == (1, 0)
    assert abs(curvature[0] + 1 / 3) < 1e-15


def sinc(x):
    return torch.sin(x) / x


def test_nonlinear_rule_has_no_jvp():
    assert "def jvp" not in pullback.write(pullback.catalog.clip_grad, x(4), 0.5)
    assert "def jvp" in pullback.write(pullback.catalog.reverse_grad, x(4))


def test_undeclared_nonlinear_rule_is_refused():
    @pullback.function
    def clipped(x):
        return x.clone()

    @clipped.vjp
    def _(g, out, x):
        return g.clamp(-10, 10)

    with pytest.raises(FormulaError, match="linear=False"):
        pullback.write(clipped, x(4))


class Rounds(torch.autograd.Function):
    """A straight-through estimator."""

    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, g):
        return g


def not_torch(x):
    return torch.from_numpy(x.detach().numpy() ** 2)


@pytest.mark.parametrize(
    ("target", "args", "says"),
    [
        (lambda x: x * torch.rand_like(x), (x(4),), "random"),
        (lambda x: x if x.sum() > 0 else -x, (x(4),), "cannot be written"),
        (Rounds, (x(4),), "derivative of its forward is 0"),
        (not_torch, (x(4),), "value of a tensor"),
        (lambda x: torch.nn.functional.avg_pool2d(x, 2), (x(1, 4, 4),), "without a public function"),
    ],
)
def test_unsupported_target_raises_in_one_line(target, args, says):
    with pytest.raises(FormulaError, match=says) as caught:
        pullback.write(target, *args)
    assert "\n" not in str(caught.value)


def test_non_callable_target_raises():
    with pytest.raises(OptionError, match="not 3"):
        pullback.write(3, x(4))

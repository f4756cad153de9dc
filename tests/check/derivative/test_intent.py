"""Signs that a backward is intended not to be the derivative, in words and in structure."""

import pytest
import torch
from torch.autograd import Function

import pullback
from pullback.check.derivative import intent
from pullback.check.find.discover import subject_of
from pullback.check.run_audit import run_audit
from pullback.check.subject import Options

from ..making import Silent, audit_of, function, normal, uniform
from ..modules import import_source

BODY = """
    @staticmethod
    def forward(ctx, x):
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        return g{comment}
"""


def declared(folder, name="Op", docstring="", comment=""):
    """Return the intent that a class of this name, docstring and comment declares."""
    quoted = f'    """{docstring}"""\n' if docstring else ""
    text = f"import torch\n\nclass {name}(torch.autograd.Function):\n{quoted}{BODY.format(comment=comment)}"
    module = import_source(text, folder, f"intent_{abs(hash((name, docstring, comment)))}")
    return intent.declared(subject_of(getattr(module, name)))


NAMES = [
    "RoundSTE",
    "STERound",
    "STEFunction",
    "StraightThroughEstimator",
    "Straight_Through",
    "SurrogateSpike",
    "FastSigmoidSurrogate",
    "GradientReversal",
    "GradReverse",
    "ReverseGrad",
    "ReverseLayerF",
    "GRL",
    "GradientReversalFunction",
    "ScaleGradient",
    "GradScale",
    "GradientScaler",
    "ClipGrad",
    "GradClip",
    "GradientClipping",
    "grad_mult",
    "ApproxSign",
    "ApproximateRound",
    "_ScaleGrad",
    "NormaliseGradient",
    "SignGradient",
]


@pytest.mark.parametrize("name", NAMES)
def test_name_declares_intent(name, tmp_path):
    assert declared(tmp_path, name).sign == "worded"


@pytest.mark.parametrize(
    "name",
    [
        "ScaledDotProduct",
        "Scale",
        "RMSNorm",
        "StepFunction",
        "Stereo",
        "Reverse",
        "ReverseCumsum",
        "FlipReverse",
        "Clip",
        "ClippedRelu",
        "MulConstant",
        "Grad",
        "Gradient",
        "WeightedGradientOfX",
        "Estimator",
        "Through",
        "Sterile",
        "FusedScaleMaskSoftmax",
        "ScaleShift",
        "Steer",
    ],
)
def test_ordinary_name_declares_nothing(name, tmp_path):
    assert declared(tmp_path, name) is None


@pytest.mark.parametrize(
    "docstring",
    [
        "Rounds; the straight-through estimator passes the gradient on.",
        "A step whose backward is a surrogate.",
        "Sign with an STE.",
        "Identity. Gradient reversal with strength alpha.",
        "x.exp(), whose gradient is approximated by a constant.",
        "The backward approximates the derivative by one.",
        "Reverses the gradient.",
        "Scales the gradients by a factor.",
        "The gradient is scaled by alpha.",
        "Clips the incoming gradient to [-1, 1].",
        "Forward: exp.\n\n    Backward: the gradient gets clipped.",
        "A pseudo-derivative is used.",
        "ReLU with guided backpropagation.",
        "The gradient lives in the tangent space.",
        "The gradient with respect to the Lie algebra.",
        "Returns a basis of the null space; only the subspace is defined.",
        "The eigenvectors, up to a sign.",
        "Gradients are set to zero outside of the range.",
        "The input is saved in 8 bits.",
        "Stores the activations as uint8.",
        "Uses stochastic rounding.",
    ],
)
def test_docstring_declares_intent(docstring, tmp_path):
    assert declared(tmp_path, docstring=docstring).sign == "worded"


@pytest.mark.parametrize(
    "docstring",
    [
        "Approximate GELU.",
        "Scaled dot-product attention.",
        "Scaled dot-product attention with a custom backward.",
        "Approximate GELU with its exact derivative, written out.",
        "RMSNorm with a learned scale; gradients in float32.",
        "Clipped ReLU. The gradient is that of the formula.",
        "Reverse cumulative sum. Its backward is a cumulative sum.",
        "Saves memory: the backward recomputes.",
        "The reverse-mode derivative of softmax.",
        "The tangent of x.",
        "Saves the input for backward.",
        "Stores the output as a float.",
    ],
)
def test_ordinary_docstring_declares_nothing(docstring, tmp_path):
    assert declared(tmp_path, docstring=docstring) is None


def test_comment_needs_explicit_words(tmp_path):
    assert declared(tmp_path, comment="  # straight-through").sign == "worded"
    assert declared(tmp_path, comment="  # scaled gradient") is None


def test_reason_quotes_the_sign(tmp_path):
    assert declared(tmp_path, "RoundSTE").reason == "its name says 'ste'"
    assert "'Straight-through'" in declared(tmp_path, docstring="Straight-through.").reason


def sign_of(target, *args):
    found = audit_of(target, *args).intent
    return found and found.sign


def test_unchanged_input_is_an_identity():
    assert sign_of(function(lambda x: x.view_as(x), lambda g, x: -g), normal(3)) == "identity"
    assert sign_of(function(lambda x: x.clone(), lambda g, x: 0.1 * g), normal(3)) == "identity"
    assert sign_of(function(lambda x: x.float().double() + 0, lambda g, x: -g), normal(3)) is None
    assert sign_of(function(lambda x: x * x, lambda g, x: g), normal(3)) is None


@pytest.mark.parametrize("hard", [torch.round, torch.sign, torch.floor, lambda x: (x > 0).double()])
@pytest.mark.few(2)
def test_flat_forward_is_a_sign_of_intent(hard):
    assert sign_of(function(hard, lambda g, x: g), normal(3, 4)) == "flat"


def test_wrong_gradient_of_a_smooth_function_is_no_intent():
    assert sign_of(function(torch.sin, lambda g, x: g * x.sin()), normal(3, 4)) is None
    assert sign_of(function(torch.relu, lambda g, x: g), normal(3, 4)) is None
    assert sign_of(function(torch.sin, lambda g, x: g * x.cos()), normal(3)) is None


def bound(value, gradient, name="Custom"):
    audit = audit_of(function(value, gradient), uniform(12, low=-2, high=2))
    assert audit.base_result.wrong
    found = intent.bound(audit.base_result, name)
    return found and found.sign


def test_clamp_that_passes_gradients_beyond_its_bounds_is_intended():
    assert bound(lambda x: x.clamp(-1, 1), lambda g, x: g) == "bound"
    assert bound(lambda x: x.clamp(min=0.5), lambda g, x: torch.where((x > 0.5) | (g < 0), g, 0.3 * g)) == "bound"


def test_clamp_that_is_wrong_inside_its_bounds_is_not_intended():
    assert bound(lambda x: x.clamp(-1, 1), lambda g, x: 2 * g) is None
    assert bound(lambda x: x.clamp(-1, 1) + 1, lambda g, x: g) is None
    assert bound(torch.relu, lambda g, x: g, name="MyReLU") is None


CALLER = """
import torch
from torch.autograd import Function

class Op(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        return g

def layer(x):
    {function}
    return Op.apply(x)

class Layer(torch.nn.Module):
    {module}
    def forward(self, x):
        return Op.apply(x)

def unrelated():
    "A surrogate for something else."
"""


@pytest.mark.parametrize(
    ("function", "module", "whose"),
    [
        ('"Computes the gradient as that of a moving average."', "", "layer"),
        ("", '"Takes a natural gradient step."', "Layer"),
        ('"Returns exp(x), whose gradient is exact."', '"Exponential of x. Scales the gradient."', None),
    ],
)
def test_docstrings_of_callers_need_explicit_words(function, module, whose, tmp_path):
    name = f"callers_{whose}"
    code = import_source(CALLER.format(function=function, module=module), tmp_path, name)
    found = intent.declared(subject_of(code.Op))
    assert (found is None) == (whose is None)
    assert whose is None or f"the docstring of {whose}, which calls it" in found.reason


RANDOM = """
import torch
from torch.autograd import Function

class Op(torch.autograd.Function):
    {docstring}
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return {gradient}
"""


@pytest.mark.parametrize(
    ("docstring", "gradient", "meant", "draws"),
    [
        ('"Its gradients give a sample."', "g * x.cos() * (torch.rand_like(x) > 0.5)", True, True),
        ("", "g * x.cos() * (torch.rand_like(x) > 0.5)", False, True),
        ('"Its gradients give a sample."', "g * x.sin()", False, False),
        ('"Its gradients give a sample."', "g * x.sin() + 0 * torch.rand_like(x)", False, False),
    ],
)
def test_random_backward_is_intended_if_documented(docstring, gradient, meant, draws, tmp_path):
    name = f"random_{meant}_{draws}_{len(gradient)}"
    audit = audit_of(import_source(RANDOM.format(docstring=docstring, gradient=gradient), tmp_path, name).Op, normal(5))
    assert audit.backward_draws is draws
    assert (audit.intent is not None) is meant
    assert audit.base_result.wrong


DRAWN = """
import torch
from torch.autograd import Function

class {name}(torch.autograd.Function):
    @staticmethod
    def forward(ctx, loc, scale):
        z = loc + scale * torch.randn_like(loc)
        ctx.save_for_backward(z)
        return z

    @staticmethod
    def backward(ctx, g):
        (z,) = ctx.saved_tensors
        return g, g * z
"""


@pytest.mark.parametrize(("name", "meant"), [("NormalSample", True), ("Noise", False), ("Resampled", False)])
def test_gradient_of_a_sampler_may_be_an_estimator(name, meant, tmp_path):
    module = import_source(DRAWN.format(name=name), tmp_path, f"drawn_{name}")
    audit = audit_of(getattr(module, name), normal(5), uniform(5))
    assert audit.draws
    assert audit.base_result.wrong
    assert (audit.intent is not None) is meant


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [torch.sin, torch.exp, lambda x: 3 * x])
@pytest.mark.few(2)
def test_half_precision_inside_is_no_step_function(value, dtype):
    for gradient in (lambda g, x: g, lambda g, x: -g):
        found = audit_of(function(lambda x: value(x.to(dtype)).to(x.dtype), gradient), normal(3, 4)).intent
        assert found is None or found.sign == "rounded"
        inner = audit_of(function(lambda x: value(x.exp().to(dtype).double()), gradient), normal(3, 4))
        assert not inner.base_result.wrong or inner.intent.sign == "rounded"
    assert sign_of(function(lambda x: x.exp().bfloat16().double().sin(), lambda g, x: g), normal(3, 4)) == "rounded"


@pytest.mark.slow
def test_gradient_hidden_by_half_precision_is_inconclusive():
    fn = function(lambda x: x.bfloat16().exp().to(x.dtype), lambda g, x: -g * x.exp())
    events = Silent()
    run_audit(subject_of(fn), Options(select=("PB101",), budget=60), [((normal(3, 4),), {})], events)
    assert {(f.rule, f.severity, f.verdict) for f in events.findings} == {("PB101", "info", "inconclusive")}


def test_words_alone_give_a_warning_and_structure_an_info():
    def severity(value, gradient, name, rule="PB101"):
        made = function(value, gradient)
        made.__name__ = made.__qualname__ = name
        events = pullback.check(made, normal(3), select=rule, budget=60).findings
        return [(f.severity, f.verdict) for f in events]

    assert severity(torch.exp, lambda g, x: g, "ExpSTE") == [("warning", "intended")]
    assert severity(torch.round, lambda g, x: g, "RoundSTE") == [("info", "intended")]
    assert severity(torch.clone, lambda g, x: -g, "ReverseGrad") == [("info", "intended")]
    assert severity(torch.exp, lambda g, x: g.sign() * x.exp(), "ExpSTE", "PB109") == [("warning", "intended")]
    assert severity(torch.clone, lambda g, x: g.clamp(-0.1, 0.1), "ClipGrad", "PB109") == [("info", "intended")]
    assert severity(torch.exp, lambda g, x: None, "ExpSurrogate", "PB107") == [("warning", "intended")]
    assert severity(torch.exp, lambda g, x: None, "Exp", "PB107") == [("error", "wrong")]


def with_penalty(weigh, name):
    """Return a Function of a loss and logits that adds a penalty's gradient."""

    class Wrap(torch.autograd.Function):
        @staticmethod
        def forward(ctx, loss, logits):
            ctx.save_for_backward(logits)
            return loss.clone()

        @staticmethod
        def backward(ctx, g):
            (logits,) = ctx.saved_tensors
            return g, weigh(g) * 1e-4 * logits

    Wrap.__name__ = Wrap.__qualname__ = name
    return Wrap


@pytest.mark.parametrize(
    ("weigh", "name", "expected"),
    [
        (lambda g: g, "Wrap", []),
        (torch.ones_like, "Wrap", [("error", "wrong")]),
        (torch.sign, "Wrap", [("info", "intended")]),
        (torch.ones_like, "WrapGradSurrogate", [("info", "intended")]),
    ],
)
def test_flat_forward_excuses_no_gradient_that_ignores_its_cotangent(weigh, name, expected):
    wrap = with_penalty(weigh, name)
    loss, logits = normal(1).squeeze(0).requires_grad_(), normal(2, 5).requires_grad_()
    scaled = [torch.autograd.grad(by * wrap.apply(loss, logits), logits)[0] for by in (1, 4)]
    assert torch.equal(4 * scaled[0], scaled[1]) is (not expected)  # a loss in other units: the same training, or not
    found = pullback.check(wrap, loss.detach(), logits.detach(), select="PB109", budget=60).findings
    assert [(f.severity, f.verdict) for f in found] == expected


def test_small_difference_is_a_warning_with_its_size():
    def found(slope):
        return pullback.check(function(torch.sin, lambda g, x: g * slope(x)), normal(5), select="PB101").findings

    (small,) = found(lambda x: x.cos() * (1 + 1e-5))
    assert (small.severity, small.verdict) == ("warning", "wrong")
    assert "a small difference, 1e-05 of it" in small.message
    (large,) = found(lambda x: x.cos() * torch.where(x > 0, 1 + 1e-5, 1.001))
    assert large.severity == "error"


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_nonfinite_gradient_is_no_small_difference(value):
    everywhere = function(torch.sin, lambda g, x: torch.full_like(x, value))
    at_one = function(torch.sin, lambda g, x: (g * x.cos() * 1.01).index_fill(0, torch.tensor(0), value))
    for target in (everywhere, at_one):
        (found, *_) = pullback.check(target, normal(5), select="PB101").findings
        assert found.severity == "error"
        assert "small difference" not in found.message


@pytest.mark.parametrize("scale", [0.3, 0.05])
def test_staircase_is_flat_at_any_offset(scale):
    quantised = function(lambda x: (x / scale).round() * scale, lambda g, x: g)
    signs = {audit_of(quantised, normal(16, seed=seed)).intent.sign for seed in range(8)}
    assert signs == {"flat"}


def _by_its_largest(x):
    scale = x.abs().max() / 7
    return (x / scale).round() * scale


class QuantizeByLargest(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _by_its_largest(x)

    @staticmethod
    def backward(ctx, g):
        return g


def test_quantiser_with_a_data_dependent_scale_is_flat():
    assert audit_of(QuantizeByLargest, normal(16)).intent.sign == "flat"


def test_undeclared_data_dependent_quantiser_is_not_intended():
    assert audit_of(function(_by_its_largest, lambda g, x: g), normal(16)).intent is None


def test_in_place_function_is_no_identity():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx, g):
            return g

    from_leaf = [f for f in pullback.check(Doubled, normal(3), select="PB101").findings if f.severity == "error"]
    assert from_leaf


def test_identity_excuses_only_a_linear_backward():
    assert audit_of(function(torch.clone, lambda g, x: 3 * g), normal(3)).intent.sign == "identity"
    assert audit_of(function(torch.clone, lambda g, x: g.clamp(-0.1, 0.1)), normal(3)).intent is None


def test_caller_name_declares_intent(tmp_path):
    text = f"import torch\n\nclass Op(torch.autograd.Function):\n{BODY.format(comment='')}"
    text += "\n\ndef gradient_reversal(x):\n    return Op.apply(x)\n"
    module = import_source(text, tmp_path, "called_by")
    found = intent.declared(subject_of(module.Op))
    assert found.reason == "the name of gradient_reversal, which calls it, says 'gradient reversal'"


class LearntClip(Function):
    """Rounds to fifteen steps up to a bound, whose gradient is that of the clamp alone."""

    @staticmethod
    def forward(ctx, x, bound):
        ctx.save_for_backward(x, bound)
        return torch.round(x.clamp(min=0).minimum(bound) * 15 / bound) * bound / 15

    @staticmethod
    def backward(ctx, g):
        x, bound = ctx.saved_tensors
        return g * ((x >= 0) & (x < bound)), (g * (x >= bound)).sum().view(1)


class LearntGain(LearntClip):
    """The same of a smooth forward: a slip."""

    @staticmethod
    def forward(ctx, x, bound):
        ctx.save_for_backward(x, bound)
        return x.clamp(min=0).minimum(bound) * bound


def test_bound_of_a_quantiser_may_have_an_estimated_gradient():
    given = 3 * normal(4, 3), torch.tensor([2.0], dtype=torch.float64)
    told = pullback.check(LearntClip, *given, select="PB101").findings
    assert {f.severity for f in told} == {"info", "warning"}
    assert "declare it" in next(f.hint for f in told if f.severity == "warning")
    assert pullback.check(LearntGain, *given, select="PB101").at_least("error")


class Steps(Function):
    """round(x n) / n: at 1/8 the steps are as large as those of a difference, at 1/128 much smaller."""

    @staticmethod
    def forward(ctx, x, n):
        return torch.round(x * n) / n

    @staticmethod
    def backward(ctx, g):
        return g, None


class ScaledSteps(Function):
    """A staircase in x, and linear in its scale, whose gradient is three times too large."""

    @staticmethod
    def forward(ctx, x, s):
        ctx.save_for_backward(x, s)
        return torch.round(x * 8) / 8 * s

    @staticmethod
    def backward(ctx, g):
        x, s = ctx.saved_tensors
        return g * s, 3 * (g * torch.round(x * 8) / 8).sum_to_size(s.shape)


@pytest.mark.parametrize("n", [1.0, 8.0, 20.0, 128.0, 1000.0])
def test_steps_of_any_size_are_intended(n):
    report = pullback.check(Steps, 3 * normal(4, 5), n, select="PB101")
    assert not report.at_least("warning")
    assert n > 10 or "flat almost everywhere" in report.findings[0].message  # smaller steps may be those of 16 bits


def test_staircase_in_one_input_excuses_no_other_input():
    given = 3 * normal(4, 5), torch.tensor([[1.5]], dtype=torch.float64)
    (told,) = pullback.check(ScaledSteps, *given, select="PB101").at_least("warning")
    assert "the gradient of s" in told.message
    assert "whose gradient is an estimate" in told.hint


@pytest.mark.parametrize("above", [1.0, 5.0])
def test_one_sided_clamp_mask_is_an_error(above):
    """The gradient passes at one bound and is blocked at the other: that is not a straight-through estimator."""
    half = function(lambda x: x.clamp(-1, 1), lambda g, x: g * (x > -1) * (1 + (above - 1) * (x >= 1)))
    both = function(lambda x: x.clamp(-1, 1), lambda g, x: g)
    by_sign = function(lambda x: x.clamp(-1, 1), lambda g, x: g * ((x < 1) | (g > 0)) * ((x > -1) | (g < 0)))
    x = uniform(12, low=-2, high=2)
    found = {
        name: {f.severity for f in pullback.check(target, x, select="PB101").findings}
        for name, target in (("half", half), ("both", both), ("by_sign", by_sign))
    }
    assert found == {"half": {"error"}, "both": {"info"}, "by_sign": {"info"}}


@pytest.mark.parametrize(
    ("docstring", "is_meant"),
    [
        ("tanh(x). The backward uses the scale of the forward.", False),
        ("Multiplies the gradient by the scale gamma.", False),
        ("tanh(x): no surrogate.", False),
        ("tanh(x), not to be confused with the straight-through version.", False),
        ("tanh(x), whose gradient is scaled.", True),
        ("Not differentiable, so straight-through.", True),
        ("No exact gradient: a surrogate.", True),
    ],
)
def test_mention_of_a_scale_or_denied_intent_excuses_nothing(docstring, is_meant):
    wrong = type("Bent", (function(torch.tanh, lambda g, x: g),), {"__doc__": docstring})
    found = {f.severity for f in pullback.check(wrong, normal(5), select="PB101").findings}
    assert found == ({"warning"} if is_meant else {"error"})


class Loss(torch.autograd.Function):
    """Sum of the exponentials.

    weighted (bool): whether to multiply each by itself (detached).
    squared (bool): whether to square each.
    """

    @staticmethod
    def forward(ctx, x, weighted=False, squared=False):
        y = x.exp()
        ctx.save_for_backward(y * y if weighted else y)
        return (y * y if weighted or squared else y).sum()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0], None, None


def test_factor_that_a_flag_brings_in_detached_is_intended():
    x = torch.linspace(-1, 1, 5, dtype=torch.float64)
    found = pullback.check(Loss, x, select="PB101").findings
    assert {(f.severity, "squared" in f.message) for f in found if f.rule == "PB101"} >= {("error", True)}
    assert not any("weighted = True" in f.message for f in found if f.severity == "error")

"""Regressions from users' own functions: bugs that passed, and right functions that were reported."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

import pullback

from .making import function, normal


def loud(target, *inputs, **options):
    found = pullback.check(target, *inputs, **options).findings
    return {(f.rule, f.severity) for f in found if f.severity != "info"}


class Huber(Function):
    """Right at the default delta alone."""

    @staticmethod
    def forward(ctx, x, t, delta=1.0):
        d = x - t
        ctx.save_for_backward(d)
        ctx.delta = delta
        return torch.where(d.abs() <= delta, 0.5 * d * d, delta * (d.abs() - 0.5 * delta))

    @staticmethod
    def backward(ctx, g):
        (d,) = ctx.saved_tensors
        gradient = g * torch.where(d.abs() <= ctx.delta, d, d.sign())
        return gradient, -gradient, None


class LogSumExp(Function):
    """Right for the last dimension alone; a square example takes the others, too."""

    @staticmethod
    def forward(ctx, x, dim=-1):
        y = x.logsumexp(dim)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g.unsqueeze(-1) * (x - y.unsqueeze(-1)).exp(), None


class Scaled(Function):
    """Right where the flag is as it is by default."""

    @staticmethod
    def forward(ctx, x, doubled=False):
        return x * (3 if doubled else 1.5)

    @staticmethod
    def backward(ctx, g):
        return g * 1.5, None


@pytest.mark.parametrize(
    ("target", "inputs", "label"),
    [
        (Huber, (normal(4), normal(4, seed=1)), "with delta = 0.5"),
        (LogSumExp, (normal(4, 4), -1), "with dim = 0"),
        (Scaled, (normal(4), False), "with doubled = True"),
    ],
)
def test_non_tensor_arguments_are_varied(target, inputs, label):
    inputs = (*inputs, 1.0) if target is Huber else inputs
    findings = [f for f in pullback.check(target, *inputs, select="PB101").findings if f.severity == "error"]
    assert findings
    assert all(label in f.message for f in findings)


class MaskedMean(Function):
    """Wrong but for masks that are all on or all off in a row, as some guesses are."""

    @staticmethod
    def forward(ctx, x, mask):
        m = mask.to(x.dtype)
        ctx.save_for_backward(m)
        return (x * m).sum(-1) / m.sum(-1).clamp(min=1)

    @staticmethod
    def backward(ctx, g):
        (m,) = ctx.saved_tensors
        return g.unsqueeze(-1) * m / m.shape[-1], None


def test_wrong_gradient_is_not_hidden_by_a_lucky_guess():
    assert ("PB101", "error") in loud(MaskedMean, select="PB101")


class SampleNoise(Function):
    """Adds noise, and draws another one for the gradient of its scale."""

    @staticmethod
    def forward(ctx, x, scale):
        return x + scale * torch.randn_like(x)

    @staticmethod
    def backward(ctx, g):
        return g, g * torch.randn_like(g)


def test_redrawn_noise_is_a_warning_though_the_name_says_sample():
    assert ("PB602", "warning") in loud(SampleNoise, normal(4), normal(4, seed=1), select="PB602")


class FillsZeros(Function):
    """The identity, where there is no zero to fill."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x == 0, x.roll(1) / 2, x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x != 0)


class Reversed(Function):
    """The identity, always."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -g


def test_identity_on_the_example_alone_excuses_nothing_elsewhere():
    assert ("PB101", "warning") in loud(FillsZeros, normal(4), select="PB101")
    report = pullback.check(Reversed, normal(4), select="PB101")
    assert [f.severity for f in report.findings] == ["info"]
    assert report.subjects[0].status == "intended"


class Quantised(Function):
    """Straight-through, and NaN for one element."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.std() / x.std()


def test_nan_on_an_ordinary_input_is_not_intended():
    assert ("PB101", "warning") in loud(Quantised, normal(4), select="PB101")


@pytest.mark.parametrize(
    ("target", "example"),
    [
        (lambda x: F.layer_norm(x, x.shape[-1:]), normal(3, 2)),
        (lambda x: F.group_norm(x, 2), normal(3, 4)),
        (lambda x: F.batch_norm(x, None, None, training=True), normal(2, 3)),
        (lambda x: F.normalize(x, dim=-1), normal(4, 1)),
        (lambda x: x - x.mean(-1, keepdim=True), normal(4, 1)),
    ],
    ids=["layer_norm", "group_norm", "batch_norm", "normalize", "centred"],
)
@pytest.mark.parametrize("select", ["PB1", "PB5"])
def test_rounding_of_cancelling_terms_is_no_error(target, example, select):
    """For rows of one or two elements such a gradient is 0; computed, it is the rounding of its terms."""
    assert not {rule for rule, severity in loud(target, example, select=select) if severity == "error"}


A = normal(3, 3)
DEFINITE = A @ A.mT + torch.eye(3, dtype=A.dtype)


@pytest.mark.parametrize(
    "target",
    [torch.linalg.eigh, torch.linalg.cholesky, lambda a: torch.linalg.cholesky(a).diagonal().log().sum()],
    ids=["eigh", "cholesky", "logdet"],
)
def test_symmetric_matrices_are_moved_along_symmetric_directions(target):
    assert not {rule for rule, severity in loud(target, DEFINITE, select=("PB1", "PB4")) if severity == "error"}


def test_words_about_randomness_give_a_warning():
    class Gumbel(Function):
        """Gumbel noise."""

        @staticmethod
        def forward(ctx, x):
            return x * torch.rand_like(x)

        @staticmethod
        def backward(ctx, g):
            return g

    assert ("PB101", "warning") in loud(Gumbel, normal(4), select="PB101")


class WithGradient(Function):
    """Gives a value the gradient that was computed for it elsewhere."""

    @staticmethod
    def forward(ctx, value, x, gradient):
        ctx.save_for_backward(gradient)
        return value.clone()

    @staticmethod
    def backward(ctx, g):
        (gradient,) = ctx.saved_tensors
        return None, g * gradient, None


@pytest.mark.parametrize(("factor", "severities"), [(2.0, []), (3.0, ["error"])])
def test_injected_gradient_must_be_right(factor, severities):
    def square(x):
        return WithGradient.apply((x * x).detach(), x, factor * x.detach())

    found = pullback.check(square, normal(4), select="PB101").findings
    assert [f.severity for f in found if f.severity != "info"] == severities


class Mass(torch.autograd.Function):
    """sum p log p of masses that sum to 1, which are asked for; its backward counts log p as a constant."""

    @staticmethod
    def forward(ctx, p):
        assert torch.allclose(p.sum(-1), torch.ones_like(p.sum(-1))), "masses sum to 1"
        slope = p.log() + 1
        ctx.slope = slope.detach()
        return (p * p.log()).sum(-1)

    @staticmethod
    def backward(ctx, g):
        return g.unsqueeze(-1) * ctx.slope


def test_probabilities_are_moved_so_that_they_sum_to_1():
    p = torch.rand(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.2
    found = {f.rule: f.severity for f in pullback.check(Mass, p / p.sum(-1, keepdim=True), select="PB101,PB4").findings}
    assert found.get("PB101") is None
    assert "error" in (found.get("PB401"), found.get("PB404"))


def test_reentrant_checkpoint_is_audited_by_backward():
    def block(x):
        return checkpoint(lambda y: torch.sin(y) * y, x, use_reentrant=True)

    report = pullback.check(block, torch.randn(3, 5))
    assert [f.rule for f in report.findings if f.severity == "error"] == []
    assert any(f.rule == "PB119" and f.severity == "info" for f in report.findings)


class Doubled(torch.autograd.Function):
    """As reentrant checkpoints do it, and it writes the gradient to the input's .grad as well."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if not torch.autograd._is_checkpoint_valid():
            raise RuntimeError("Doubled is not compatible with .grad(), please use .backward()")
        x.grad = 2 * x * g
        return 2 * x * g


def test_gradient_accumulated_by_backward_is_compared():
    found = {f.rule: f.severity for f in pullback.check(Doubled, torch.randn(3, 5), select="PB1").findings}
    assert found == {"PB101": "error", "PB119": "info"}


class Frees(torch.autograd.Function):
    """x + y, where the memory of y is given back: the second call must not be given the same y."""

    @staticmethod
    def forward(ctx, x, y):
        out = x + y
        with torch.no_grad():
            y.set_()
        return out

    @staticmethod
    def backward(ctx, g):
        return g, g


def test_freed_input_is_restored_between_calls():
    found = {f.rule: f.severity for f in pullback.check(Frees, torch.randn(3), torch.randn(3)).findings}
    assert found["PB202"] == "error"
    assert not {"PB001", "PB002", "PB101"} & set(found)


class ByNumpy(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return torch.from_numpy(np.sinh(x.detach().numpy()))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cosh()


def test_numpy_forward_under_transforms_is_an_info():
    found = pullback.check(lambda x: ByNumpy.apply(x), torch.randn(3, 5), select="PB405,PB406,PB408,PB413").findings
    assert {f.severity for f in found} == {"info"}


class FreesItsOutput(Function):
    """As a reversible layer does."""

    @staticmethod
    def forward(ctx, x):
        out = 2 * x
        ctx.kept = out.detach()
        return out

    @staticmethod
    def backward(ctx, g):
        ctx.kept.untyped_storage().resize_(0)
        return 2 * g


def test_output_freed_by_the_backward_is_not_read_again():
    findings = pullback.check(FreesItsOutput, normal(3, 4), budget=60).findings
    assert "PB002" not in {f.rule for f in findings}


class ClampsItsGradient(Function):
    """The exponential of radiance fields, whose gradient stops to grow on purpose."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.clamp(max=15).exp()


def test_clamped_gradient_is_no_lost_accuracy():
    findings = pullback.check(ClampsItsGradient, normal(3), select="PB302,PB303", budget=60).findings
    assert [f.rule for f in findings if f.severity == "error"] == []


class SwappedIfCubic(Function):
    """Right by default: the gradients change places for the other formula."""

    @staticmethod
    def forward(ctx, a, b, cubic=False):
        ctx.save_for_backward(a, b)
        ctx.cubic = cubic
        return a * a * b if cubic else a * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return (g * a * a, 2 * g * a * b, None) if ctx.cubic else (g * b, g * a, None)


class LostForOddSizes(Function):
    """Even and odd columns; the second cotangent is lost where there is one more of the first."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x[..., ::2].clone(), x[..., 1::2].clone()

    @staticmethod
    def backward(ctx, even, odd):
        gradient = even.new_zeros(ctx.shape)
        gradient[..., ::2] = even
        if ctx.shape[-1] % 2 == 0:
            gradient[..., 1::2] = odd
        return gradient


class MeanAndDeviation(Function):
    """NaN where all are equal, and right for one value of its flag."""

    @staticmethod
    def forward(ctx, x, unbiased=True):
        ctx.save_for_backward(x)
        ctx.unbiased = unbiased
        return x.mean(-1), x.std(-1, unbiased=unbiased)

    @staticmethod
    def backward(ctx, mean, deviation):
        (x,) = ctx.saved_tensors
        gradient = (mean / x.shape[-1]).unsqueeze(-1).expand_as(x)
        if not ctx.unbiased:
            return gradient, None
        centred = x - x.mean(-1, keepdim=True)
        return gradient + (deviation / x.std(-1) / (x.shape[-1] - 1)).unsqueeze(-1) * centred, None


@pytest.mark.parametrize(
    ("target", "inputs", "where"),
    [
        (SwappedIfCubic, (normal(4), normal(4), False), "cubic = True"),
        (SwappedIfCubic, (normal(4), normal(4)), "cubic = True"),
        (LostForOddSizes, (normal(2, 6),), "size 6 -> 7"),
        (MeanAndDeviation, (normal(3, 5), True), "unbiased = False"),
        (MeanAndDeviation, (normal(3, 5),), "unbiased = False"),
        (LogSumExp, (normal(4, 4),), "dim = 0"),
    ],
)
def test_fault_in_a_variant_alone_is_an_error(target, inputs, where):
    findings = pullback.check(target, *inputs, select=("PB1",), budget=30).findings
    assert [f.severity for f in findings if f.rule == "PB101" and where in f.message][:1] == ["error"]


class LogDeterminant(Function):
    """Of a positive definite matrix; what is above the diagonal gets nothing."""

    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return 2 * torch.linalg.cholesky(a).diagonal().log().sum()

    @staticmethod
    def backward(ctx, g):
        (a,) = ctx.saved_tensors
        return g * torch.linalg.inv(a).tril()


def test_reproduction_with_a_symmetric_matrix_moves_it_symmetrically(capsys):
    a = normal(3, 3)
    (finding,) = pullback.check(LogDeterminant, a @ a.mT + torch.eye(3), select=("PB101",)).findings
    exec(finding.reproduce, {})
    got, expected = (float(number) for number in capsys.readouterr().out.split() if number.lstrip("-")[0].isdigit())
    assert got == pytest.approx(finding.evidence.got, rel=1e-6)
    assert expected == pytest.approx(finding.evidence.expected, rel=1e-6)


class GatedCell(Function):
    """Gates that are several times as wide as the state, which a state of size 1 would broadcast to."""

    @staticmethod
    def forward(ctx, h, w):
        ctx.save_for_backward(h, w)
        gate, new = (h @ w.t()).chunk(2, 1)
        return gate * h + new

    @staticmethod
    def backward(ctx, g):
        h, w = ctx.saved_tensors
        gate, _ = (h @ w.t()).chunk(2, 1)
        both = torch.cat([g * h, g], 1)
        return both @ w + g * gate, both.t() @ h


def test_state_that_would_broadcast_against_wider_weights_is_not_tried():
    assert not [rule for rule, severity in loud(GatedCell, normal(3, 5), normal(10, 5)) if severity == "error"]


class Normalised(Function):
    """A right batch norm, with running statistics."""

    @staticmethod
    def forward(ctx, x, weight, running):
        running.mul_(0.9).add_(x.mean(0), alpha=0.1)
        scale = torch.rsqrt((x - x.mean(0)).pow(2).mean(0) + 1e-5)
        ctx.save_for_backward(x, weight)
        return (x - x.mean(0)) * scale * weight

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        centred = x - x.mean(0)
        scale = torch.rsqrt(centred.pow(2).mean(0) + 1e-5)
        y, by_y = centred * scale, g * weight
        return scale * (by_y - by_y.mean(0) - y * (by_y * y).mean(0)), (g * y).sum(0), None


def test_running_statistics_are_not_differentiated():
    assert loud(Normalised, normal(5, 3), normal(3), torch.zeros(3, dtype=torch.float64)) == set()


class Cube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * g * x * x


class WrongCube(Cube):
    @staticmethod
    def backward(ctx, g):
        return Cube.backward(ctx, g) * 2 / 3


MODES = {
    "hooks": lambda: torch.autograd.graph.save_on_cpu(),
    "no hooks": lambda: torch.autograd.graph.disable_saved_tensors_hooks("not here"),
    "meta": lambda: torch.device("meta"),
}


@pytest.mark.parametrize("mode", MODES)
def test_active_modes_of_the_program_change_no_finding(mode):
    x = normal(4)
    with MODES[mode]():
        assert loud(Cube, x) == set()
        assert ("PB101", "error") in loud(WrongCube, x)
        assert ("PB101", "error") in loud(WrongCube)


def test_error_in_a_file_with_an_absent_import_stays_an_error(tmp_path):
    file = tmp_path / "with_absent.py"
    file.write_text(
        "import torch\nfrom no_such_vision.ops import nms\n\n\n"
        "class Half(torch.autograd.Function):\n"
        "    @staticmethod\n    def forward(ctx, x):\n        ctx.save_for_backward(x)\n        return x * x\n\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return g * ctx.saved_tensors[0]\n"
    )
    report = pullback.check(str(file), select=("PB101",))
    assert [(f.rule, f.severity) for f in report.findings] == [("PB101", "error")]


class Pool(Function):
    """The mean over height and width, whose backward takes the image to be square."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.mean((2, 3))

    @staticmethod
    def backward(ctx, g):
        return (g[:, :, None, None] / ctx.shape[2] ** 2).expand(ctx.shape)


class Gram(Function):
    """xᵀ x / rows, whose backward divides by the columns."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.mT @ x / x.shape[-2]

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return x @ (g + g.mT) / x.shape[-1]


class Scores(Function):
    """q kᵀ / √d, whose backward takes the length for d in one of its gradients."""

    @staticmethod
    def forward(ctx, q, k):
        ctx.save_for_backward(q, k)
        return q @ k.mT * q.shape[-1] ** -0.5

    @staticmethod
    def backward(ctx, g):
        q, k = ctx.saved_tensors
        return g @ k * q.shape[-2] ** -0.5, g.mT @ q * q.shape[-1] ** -0.5


@pytest.mark.parametrize(
    ("function", "given", "severity"),
    [
        (Pool, (normal(2, 3, 5, 5),), "error"),
        (Gram, (normal(4, 4),), "warning"),  # the function may be meant for square matrices
        (Scores, (normal(2, 4, 4), normal(2, 4, 4)), "warning"),
    ],
)
def test_equal_sizes_of_the_example_are_varied_separately(function, given, severity):
    assert loud(function, *given, select="PB101") == {("PB101", severity)}


class Smoothed(Function):
    """A cross-entropy with smoothing, which the backward knows nothing of; it is 0 by default."""

    @staticmethod
    def forward(ctx, x, smoothing=0.0):
        p = x.log_softmax(-1)
        ctx.save_for_backward(p)
        return -((1 - smoothing) * p[..., 0] + smoothing * p.mean(-1))

    @staticmethod
    def backward(ctx, g):
        (p,) = ctx.saved_tensors
        gradient = p.exp()
        gradient[..., 0] -= 1
        return g.unsqueeze(-1) * gradient, None


def test_number_that_is_zero_by_default_is_varied():
    assert loud(Smoothed, normal(3, 4), select="PB101") == {("PB101", "error")}


class Remembers(Function):
    """sin, whose backward adds to the gradients of all calls before."""

    total = None

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if Remembers.total is None or Remembers.total.shape != x.shape:
            Remembers.total = torch.zeros_like(x)
        Remembers.total += g * x.cos()
        return Remembers.total.clone()


def test_backward_that_accumulates_over_calls_is_an_error():
    assert loud(Remembers, normal(3), select="PB101,PB601") == {("PB601", "error")}


class SinglePrecision(Function):
    """softplus of float32 alone, as a kernel would have it."""

    @staticmethod
    def forward(ctx, x):
        if x.dtype != torch.float32:
            raise TypeError("expected float32")
        ctx.save_for_backward(x)
        return F.softplus(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.sigmoid(x)


def test_float32_only_function_is_ok():
    report = pullback.check(SinglePrecision, normal(5).float(), select="PB1,PB3")
    assert [subject.status for subject in report.subjects] == ["ok"]


class Rotates(Function):
    """x cos + turned x sin, of which only x is differentiated."""

    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        return x * cos + x.roll(1, -1) * sin

    @staticmethod
    def backward(ctx, g):
        cos, sin = ctx.saved_tensors
        return g * cos + (g * sin).roll(-1, -1), None, None


def test_none_for_a_table_is_an_error_only_if_its_gradient_is_requested():
    x, angles = normal(3, 4), normal(3, 4)
    assert loud(Rotates, x, angles.cos(), angles.sin(), select="PB1") == {("PB107", "warning")}
    asked = (x.requires_grad_(), angles.cos().requires_grad_(), angles.sin().requires_grad_())
    assert loud(Rotates, *asked, select="PB107") == {("PB107", "error")}


class Refuses(Function):
    """x³, whose backward refuses to be differentiated, as the page of PB402 advises."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        if torch.is_grad_enabled():
            raise NotImplementedError("no second derivative")
        (x,) = ctx.saved_tensors
        return g * 3 * x**2


def test_refusal_of_double_backward_is_not_reported():
    assert loud(Refuses, normal(4)) == set()
    with pytest.raises(NotImplementedError):
        torch.autograd.functional.hessian(lambda x: Refuses.apply(x).sum(), normal(4))
    x = normal(4).requires_grad_()
    (compiled,) = torch.autograd.grad(torch.compile(Refuses.apply, backend="aot_eager")(x).sum(), x)
    assert torch.equal(compiled, 3 * x.detach() ** 2)


def in_single(where):
    """Return sin, of which the value, the gradient or the inputs pass through float32."""

    class Sine(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            y = (x.float().to(x.dtype) if where == "inputs" else x).sin()
            return y.float().to(x.dtype) if where == "value" else y

        @staticmethod
        def backward(ctx, g):
            slope = g * ctx.saved_tensors[0].cos()
            return slope.float().to(slope.dtype) if where == "gradient" else slope

    return Sine


class Rounded(Function):
    """3 x, rounded to float32 by NumPy: no cast of PyTorch is seen."""

    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(3 * x.detach().numpy().astype("float32")).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        return 3 * g


SINGLE = {"value": ["info"], "gradient": ["warning"], "inputs": ["info"], "nowhere": []}


@pytest.mark.parametrize("where", SINGLE)
def test_float64_values_rounded_through_float32_are_reported(where):
    told = pullback.check(in_single(where), normal(3, 4), select="PB105").findings
    assert [f.severity for f in told] == SINGLE[where]
    assert all(f.verdict == ("ok" if f.severity == "info" else "unstable") for f in told)
    assert [f.severity for f in pullback.check(Rounded, normal(3, 4), select="PB105").findings] == ["warning"]
    assert not pullback.check(in_single(where), normal(3, 4).float(), select="PB105").findings


def test_few_digits_of_quantised_and_saturated_values_are_not_reported():
    rounds = function(lambda x: (255 * x).round() / 255, lambda g, x: g)
    saturates = function(lambda x: torch.tanh(40 + x), lambda g, x: g / torch.cosh(40 + x) ** 2)
    for target in (rounds, saturates):
        assert not pullback.check(target, normal(3, 4), select="PB105").findings


class Linear(Function):
    """x wᵀ, which takes sequences, too; its backward takes matrices alone."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight)

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return g.mm(weight), g.t().mm(x)


def test_backward_for_matrices_alone_is_an_info_if_the_forward_takes_batches():
    told = pullback.check(Linear, normal(5, 4), normal(3, 4), select="PB1").findings
    assert [f.severity for f in told if f.rule == "PB119"] == ["info"]  # the forward may accept sequences by accident

    class OfAny(Linear):
        @staticmethod
        def backward(ctx, g):
            x, weight = ctx.saved_tensors
            return g @ weight, g.flatten(0, -2).mT @ x.flatten(0, -2)

    class OfMatrices(Linear):
        @staticmethod
        def forward(ctx, x, weight):
            assert x.ndim == 2
            return Linear.forward(ctx, x, weight)

    for right in (OfAny, OfMatrices):
        assert loud(right, normal(5, 4), normal(3, 4), select="PB1") == set()


def test_backward_that_raises_on_nonfinite_outputs_is_an_error():
    raises = function(lambda x: 1 / (x - x), lambda g, x: g.no_such_method())
    assert loud(raises, normal(3), select="PB119") == {("PB119", "error")}


def test_finding_on_a_shared_tensor_alone_is_a_warning():
    """With equal arguments the clamp is active, whether they are one tensor or two."""

    class Excess(Function):
        @staticmethod
        def forward(ctx, price, strike):
            assert bool((price >= strike).all())
            assert bool((price > 1.5).all())
            ctx.save_for_backward(price, strike)
            return (price - strike).clamp(min=1e-3).log() * price

        @staticmethod
        def backward(ctx, g):
            price, strike = ctx.saved_tensors
            gap = (price - strike).clamp(min=1e-3)
            return g * (gap.log() + price / gap), -g * price / gap * (price - strike > 1e-3)

    price, strike = 5 + normal(4) / 4, 2 + normal(4, seed=1) / 4
    told = [f for f in pullback.check(Excess, price, strike, select="PB101").findings if "the same tensor" in f.message]
    assert told
    assert {f.severity for f in told} == {"warning"}


class Segments(Function):
    """The sums of segments of rows, whose lengths add up to the number of rows."""

    @staticmethod
    def forward(ctx, x, lengths):
        ctx.save_for_backward(lengths)
        which = torch.arange(len(lengths)).repeat_interleave(lengths)
        return x.new_zeros(len(lengths), x.shape[1]).index_add(0, which, x[: len(which)])

    @staticmethod
    def backward(ctx, g):
        return g.repeat_interleave(ctx.saved_tensors[0], 0), None


class Ragged(Segments):
    """The same, of the offsets at which the segments begin, with the end."""

    @staticmethod
    def forward(ctx, x, offsets):
        return Segments.forward(ctx, x, offsets.diff())


def test_lengths_and_offsets_follow_the_size_they_partition():
    rows = normal(6, 2)
    assert loud(Segments, rows, torch.tensor([2, 1, 3]), select="PB1,PB5") == set()
    assert loud(Ragged, rows, torch.tensor([0, 2, 3, 6]), select="PB1,PB5") == set()


def test_slight_nonlinearity_in_the_cotangent_is_a_warning():
    """A gradient that is slightly nonlinear in the cotangent, as after an iteration to a tolerance."""
    rough = function(torch.sin, lambda g, x: g * x.cos() * (1 + 5e-3 * torch.tanh(g.abs().sum())))
    assert loud(rough, normal(4), select="PB109") == {("PB109", "warning")}
    assert loud(function(torch.sin, lambda g, x: g.abs() * x.cos()), normal(4), select="PB109") == {("PB109", "error")}


def test_manually_accumulated_gradient_is_no_checkpoint_finding():
    class ByHand(Function):
        """Adds to the gradient of a second argument itself, as reversible layers do."""

        @staticmethod
        def forward(ctx, x, y):
            ctx.y = y
            return x * y.detach()

        @staticmethod
        def backward(ctx, g):
            ctx.y.grad = g if ctx.y.grad is None else ctx.y.grad + g
            return g * ctx.y.detach(), None

    assert not pullback.check(ByHand, normal(3), normal(3, seed=1), select="PB411").findings


class Grid:
    """A geometry, for images of one size."""

    def __init__(self, size):
        self.size = size


class Projected(Function):
    @staticmethod
    def forward(ctx, x, grid):
        ctx.grid = grid
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        if g.shape[-1] != ctx.grid.size:
            raise IndexError(g.shape[-1])
        return 2 * g, None


def test_sizes_required_by_an_object_in_a_closure_cause_no_warning():
    grid = Grid(5)
    assert not {rule for rule, _ in loud(lambda x: Projected.apply(x, grid), normal(3, 5), select="PB119")}


def test_missing_process_group_is_a_warning():
    def gathers(x):
        raise ValueError("Default process group has not been initialized, please make sure to call init_process_group.")

    report = pullback.check(gathers, normal(3))
    (told,) = report.findings
    assert (told.rule, told.severity) == ("PB001", "warning")  # the environment is at fault, not the function
    assert not report.ok
    assert "a process of its own" in told.hint


def test_raising_backward_of_a_nondeterministic_function_is_an_error():
    class Noisy(Function):
        @staticmethod
        def forward(ctx, x):
            return x + torch.from_numpy(np.random.default_rng().normal(size=x.shape))

        @staticmethod
        def backward(ctx, g):
            return g.no_such_method()

    class Steady(Noisy):
        @staticmethod
        def backward(ctx, g):
            return g.clone()

    assert ("PB119", "error") in loud(Noisy, normal(3))
    assert "PB119" not in {rule for rule, _ in loud(Steady, normal(3))}

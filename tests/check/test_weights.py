"""Weights, which a subject holds or captures, are audited like its inputs."""

import functools
import re

import pytest
import torch
from torch import nn

import pullback
from pullback.check.case import make_case
from pullback.check.cases.signature import positional_names
from pullback.check.find.discover import subject_of
from pullback.check.weights import captured_tensors, kept, with_weights


class Times(torch.autograd.Function):
    """x w, with the gradient of w `factor` times too large."""

    @staticmethod
    def forward(ctx, x, w, factor):
        ctx.save_for_backward(x, w)
        ctx.factor = factor
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, ctx.factor * (g * x).sum_to_size(w.shape), None


class Scale(nn.Module):
    def __init__(self, factor=1.0, value=None):
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(4) if value is None else value)
        self.register_buffer("shift", torch.ones(4))
        self.factor = factor

    def forward(self, x):
        return torch.sin(Times.apply(x, self.weight, self.factor) + self.shift)


def batch():
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


def errors(*call):
    return {f.rule: f.message for f in pullback.check(*call).findings if f.severity == "error"}


def test_wrong_gradient_of_a_module_weight_is_an_error():
    assert "the gradient of weight[" in errors(Scale(factor=2.0), batch())["PB101"]


def test_right_module_is_not_accused():
    assert errors(Scale(), batch()) == {}


def test_scale_of_ones_is_no_identity():
    weight = torch.ones(4, requires_grad=True)

    def scaled(x):
        return Times.apply(x, weight, 2.0)

    assert "the gradient of weight[" in errors(scaled, batch())["PB101"]


WRONG = Scale(factor=-1.0)


@pytest.mark.parametrize(
    ("call", "weight"),
    [
        pytest.param((lambda x: WRONG(x),), "weight[", id="closure"),
        pytest.param((WRONG.forward,), "weight[", id="method"),
        pytest.param((nn.Sequential(WRONG),), "weight[", id="module of modules"),
        pytest.param((lambda x, layer: layer(x), WRONG), "weight[", id="argument"),
        pytest.param((functools.partial(lambda layer, x: layer(x), WRONG),), "args[0].weight[", id="partial"),
    ],
)
def test_weights_of_closures_methods_and_modules_are_compared(call, weight):
    function, *others = call
    assert weight in errors(function, batch(), *others)["PB101"]


def test_weight_bound_by_a_partial_is_compared():
    assert errors(functools.partial(torch.multiply, torch.ones(4, requires_grad=True)), batch()) == {}


def test_reproduction_shows_the_wrong_gradient_of_a_weight(capsys):
    report = pullback.check(Scale(factor=2.0), batch())
    (finding,) = [f for f in report.findings if f.rule == "PB101"]
    exec(finding.reproduce.replace("# fn = ", "pass  # "), {"fn": Scale(factor=2.0).double()})
    got, quotient = map(float, re.findall(r"-?\d+\.\d+", capsys.readouterr().out))
    assert abs(got - 2 * quotient) < 1e-6 * abs(got)


class Frozen(torch.autograd.Function):
    """x w, whose backward asks autograd for the gradient of both, frozen or not."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(x * w, (x, w), g)


def test_backward_that_fails_for_a_frozen_weight_is_an_error():
    class Module(Scale):
        def forward(self, x):
            return Frozen.apply(x, self.weight)

    assert "does not require grad" in errors(Module(), batch())["PB113"]


class Nested(torch.autograd.Function):
    """A module's call whose weights get their gradients from a backward inside of the backward."""

    @staticmethod
    def forward(ctx, x, module):
        ctx.save_for_backward(x)
        ctx.module = module
        with torch.no_grad():
            return module(x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            torch.autograd.backward(ctx.module(x), g)
        return x.grad, None


def test_weights_reached_by_a_nested_backward_are_reported():
    module = nn.Linear(4, 4)
    told = errors(lambda x: Nested.apply(x, module), batch())
    assert "where no argument requires grad" in told["PB118"]
    assert "adds to .grad of module.weight (and 1 more)" in told["PB210"]


class TrainsAlone(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, training):
        ctx.save_for_backward(x)
        ctx.scale = 2.0 if training else None
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return ctx.scale * g, None


def test_backward_that_fails_in_eval_mode_is_an_error():
    class Module(nn.Module):
        def forward(self, x):
            return TrainsAlone.apply(x, self.training)

    assert "(in .eval() mode)" in errors(Module(), batch())["PB119"]


def test_mask_of_another_call_is_found_despite_equal_seeds():
    class Drop(torch.autograd.Function):
        mask = None

        @staticmethod
        def forward(ctx, x):
            Drop.mask = torch.rand_like(x) < 0.5
            return x * Drop.mask

        @staticmethod
        def backward(ctx, g):
            return g * Drop.mask

    assert "PB120" in errors(Drop, batch())


def test_module_state_is_restored():
    module = Scale()
    module.weight.grad = torch.ones(4)
    before = {name: t.detach().clone() for name, t in module.state_dict().items()}
    subject = subject_of(module)
    case = make_case((batch(),), {}, positional_names(subject), "given")
    assert list(captured_tensors(subject, case)) == ["weight", "shift"]
    _, call = with_weights(subject, case)
    with kept(call):
        call.arguments()
        assert module.weight.dtype is torch.float64
        assert module.weight.grad is None
    assert all(torch.equal(module.state_dict()[name], value) for name, value in before.items())
    assert module.weight.dtype is torch.float32
    assert torch.equal(module.weight.grad, torch.ones(4))


def test_weights_are_audited_if_no_argument_is_differentiable():
    class Rows(nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.table = nn.Parameter(torch.randn(5, 4, generator=torch.Generator().manual_seed(0)))
            self.factor = factor

        def forward(self, index):
            return Times.apply(self.table[index], self.table[index], self.factor)

    index = torch.tensor([[0, 1], [4, 1]])
    assert "the gradient of table[" in errors(Rows(2.0), index)["PB101"]
    assert errors(Rows(1.0), index) == {}
    assert errors(nn.Embedding(5, 4), index) == {}


@pytest.mark.parametrize(
    "module",
    [
        nn.BatchNorm1d(4),
        nn.InstanceNorm1d(3),
        nn.LayerNorm(4),
        nn.GRU(4, 2),
        nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3)),
        pytest.param(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), marks=pytest.mark.slow),
    ],
    ids=lambda module: type(module).__name__,
)
def test_pytorch_modules_are_not_accused(module):
    x = batch().unsqueeze(0) if isinstance(module, nn.InstanceNorm1d | nn.TransformerEncoderLayer) else batch()
    assert errors(module, x) == {}


@pytest.mark.slow
def test_tensor_passed_three_times_is_differentiated_in_each_place():
    x = batch().unsqueeze(0)
    assert errors(nn.MultiheadAttention(4, 2, batch_first=True), x, x, x) == {}


def test_pytorch_loses_part_of_the_second_derivative_of_weight_norm():
    """`gradgradcheck` fails on `torch._weight_norm` too, and passes on the formula."""
    v, g = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 1, dtype=torch.float64)
    inputs = [v.requires_grad_(), g.requires_grad_()]
    is_right = torch.autograd.gradgradcheck(lambda v, g: torch._weight_norm(v, g, 0), inputs, raise_exception=False)
    module = nn.utils.parametrizations.weight_norm(nn.Linear(4, 5))
    assert ("PB401" in errors(module, batch())) is not is_right


class StopsOnPurpose(nn.Module):
    """A loss with a target that gets no gradient, as of a teacher."""

    def __init__(self, how):
        super().__init__()
        self.student, self.teacher = nn.Linear(4, 4), nn.Linear(4, 4)
        self.how = how

    def forward(self, x):
        if self.how == "detach":
            target = self.teacher(x).detach()
        else:
            with torch.no_grad():
                target = self.teacher(x)
        return (self.student(x) - target).square().mean()


@pytest.mark.parametrize("how", ["detach", "no_grad"])
def test_stopped_gradient_of_a_module_is_a_warning(how):
    findings = pullback.check(StopsOnPurpose(how), batch()).findings
    assert [f.rule for f in findings if f.severity == "error"] == []
    told = {f.rule: f.message for f in findings if f.severity == "warning"}
    assert "it leaves the graph by" in told["PB101"]
    assert "teacher.weight" in told["PB118"]


def test_intent_of_a_function_covers_the_weights_it_is_given():
    class Shrinks(torch.autograd.Function):
        """Scales the gradient by a tenth."""

        @staticmethod
        def forward(ctx, w):
            return w.view_as(w)

        @staticmethod
        def backward(ctx, g):
            return g / 10

    weight = torch.randn(4, requires_grad=True)
    assert errors(lambda x: x * Shrinks.apply(weight), batch()) == {}


def test_gradient_of_an_input_is_compared_at_other_weights_too():
    class Forgets(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x.sin() * w

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, g):
            x, w = ctx.saved_tensors
            return g * x.cos(), (g * x.sin()).sum_to_size(w.shape)

    weight = torch.ones(4, requires_grad=True)
    assert "the gradient of x[" in errors(lambda x: Forgets.apply(x, weight), batch())["PB101"]


def test_each_weight_of_a_custom_function_is_compared():
    scales = [Scale() for _ in range(12)]
    scales[10] = Scale(factor=2.0)
    (finding,) = pullback.check(nn.Sequential(*scales), batch(), select=["PB101"], budget=120).findings
    assert "the gradient of 10.weight[" in finding.message


def test_weights_too_large_to_compare_are_named():
    findings = pullback.check(nn.Linear(1024, 512), torch.randn(2, 1024)).findings
    assert [f.message for f in findings if f.rule == "PB006"] == [
        "the gradients of weight were not compared: there are too many of them, or no time was left"
    ]


def test_weights_on_other_devices_or_with_sparse_gradients_are_skipped():
    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows = nn.Embedding(5, 4, sparse=True)
            self.elsewhere = nn.Parameter(torch.randn(4, device="meta"))

        def forward(self, x, index):
            return self.rows(index) * x

    findings = pullback.check(Module(), batch(), torch.tensor([0, 1, 4])).findings
    assert "PB001" not in {f.rule for f in findings}


def affine(of_weight):
    """x wᵀ, with a gradient of w that may be right for the example that is given alone."""

    class Affine(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x @ w.T

        @staticmethod
        def backward(ctx, g):
            x, w = ctx.saved_tensors
            return g @ w, of_weight(g, x)

    return Affine


RIGHT = affine(lambda g, x: g.T @ x)
READS_RAW_MEMORY = affine(lambda g, x: g.T @ x.as_strided(x.shape, (x.shape[-1], 1)))
FORGETS_ONE_ROW = affine(lambda g, x: g.T @ x * (len(x) > 1))


class Layer(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.w = nn.Parameter(torch.linspace(-1, 1, 12, dtype=torch.float64).view(4, 3))

    def forward(self, x):
        return self.function.apply(x, self.w)


@pytest.mark.parametrize(
    ("function", "where"), [(READS_RAW_MEMORY, "transposed inputs|sliced"), (FORGETS_ONE_ROW, "-> 1"), (RIGHT, None)]
)
def test_weights_are_compared_at_other_inputs_too(function, where):
    x = torch.linspace(-2, 1, 15, dtype=torch.float64).sin().view(5, 3)
    found = [f for f in pullback.check(Layer(function), x, select="PB101").findings if f.severity == "error"]
    assert len(found) == (where is not None)
    assert all("gradient of w" in f.message and re.search(where, f.message) for f in found)


class Holder:
    __slots__ = ("inner", "w")


def of_holders():
    w = torch.linspace(0.5, 2, 4, requires_grad=True)
    listed, inner = [{"of": w}], Holder()
    inner.w = w
    outer = Holder()
    outer.inner = inner

    def by_default(x, w=w):
        return Times.apply(x, w, 2.0)

    class Kept(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = [w]

        def forward(self, x):
            return Times.apply(x, self.weights[0], 2.0)

    return {
        "listed[0]['of'][": lambda x: Times.apply(x, listed[0]["of"], 2.0),
        "outer.inner.w[": lambda x: Times.apply(x, outer.inner.w, 2.0),
        "by_default.__defaults__[0][": lambda x: by_default(x),
        "weights[0][": Kept(),
    }


@pytest.mark.parametrize("name", of_holders())
def test_weights_in_containers_objects_and_defaults_are_compared(name):
    assert f"the gradient of {name}" in errors(of_holders()[name], batch())["PB101"]


class Adjoint(torch.autograd.Function):
    """function(x), differentiated by x and by the weights that are given beside the function."""

    @staticmethod
    def forward(ctx, function, x, *weights):
        ctx.function = function
        ctx.save_for_backward(x, *weights)
        with torch.no_grad():
            return function(x)

    @staticmethod
    def backward(ctx, g):
        leaves = ctx.saved_tensors
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            return None, *torch.autograd.grad(ctx.function(leaves[0]), leaves, g, create_graph=again)


@pytest.mark.parametrize("is_module", [True, False])
def test_weights_passed_beside_their_module_are_the_same_tensors(is_module):
    layer = nn.Linear(4, 3).double()
    function = layer if is_module else lambda x: x @ layer.weight.T + layer.bias
    assert errors(Adjoint, function, batch().double(), *layer.parameters()) == {}


@pytest.mark.parametrize("is_module", [True, False])
def test_weight_of_an_argument_without_gradient_is_an_error(is_module):
    layer = nn.Linear(4, 3).double()
    function = layer if is_module else lambda x: x @ layer.weight.T + layer.bias
    assert "layer.weight" in errors(Adjoint, function, batch().double()).get("PB118", "").replace("function.", "layer.")

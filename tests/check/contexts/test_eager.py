"""The composition rules PB405 to PB415, and the settings that they compare."""

import contextlib
import threading
import traceback
import warnings

import numpy as np
import pytest
import torch
from torch.autograd import Function

from pullback.check.audit import Audit
from pullback.check.case import make_case
from pullback.check.cases import values
from pullback.check.cases.signature import positional_names
from pullback.check.contexts.compare import refusal
from pullback.check.contexts.eager import base_setting, pure, setting_of, settings, slots_of, tensor_slots
from pullback.check.find.discover import subject_of
from pullback.check.rules import rule_named
from pullback.check.run_audit import run_audit
from pullback.check.subject import Options
from pullback.check.trial import Raised

from ...probes import is_backward_kept_by_compiled_grad, is_twin_lost

RULES = tuple(f"PB{number}" for number in range(405, 416))
X = torch.tensor([[0.3, -1.2, 2.1], [0.7, 1.4, -0.4]], dtype=torch.float64)
pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch warns of several of these calls


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Use one thread, as an audit does: for tensors this small, synchronisation costs more than the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Silent:
    def step(self, rule, what, reproduce):
        pass

    def beat(self):
        pass

    def finding(self, finding):
        pass


def audited(target, *args, **kwargs):
    subject = subject_of(target)
    case = make_case(args, kwargs, positional_names(subject), "given")
    return Audit(subject, Options(), case, [], Silent())


def found(target, *args, rules=RULES, **kwargs):
    audit = audited(target, *args, **kwargs)
    return [finding for rule in rules for finding in rule_named(rule).runtime(audit)]


def told(findings):
    return [(finding.rule, finding.severity, finding.verdict) for finding in findings]


def loud(findings):
    return [entry for entry in told(findings) if entry[1] != "info"]


class Cube(Function):
    """Everything that PyTorch lets a Function define."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x * x * g

    @staticmethod
    def jvp(ctx, tx):
        (x,) = ctx.saved_tensors
        return 3 * x * x * tx


class OldCube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x * x * g


class WrongCube(OldCube):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * x * g


class RoundStraightThrough(Function):
    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, g):
        return g


class NumpyCube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(x.detach().numpy() ** 3)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return torch.from_numpy(3 * x.numpy() ** 2 * g.numpy())


@torch.library.custom_op("pullback_test_transforms::cube", mutates_args=())
def op_cube(x: torch.Tensor) -> torch.Tensor:
    return x**3


@op_cube.register_fake
def _(x):
    return torch.empty_like(x)


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


op_cube.register_autograd(lambda ctx, g: 3 * ctx.saved_tensors[0] ** 2 * g, setup_context=_save)


def test_complete_function_gets_only_the_info_that_jvp_breaks_the_graph():
    assert told(found(Cube, X)) == [("PB409", "info", "unsupported")]


def test_old_style_function_gets_one_info_for_each_missing_transform():
    expected = [(rule, "info", "unsupported") for rule in ("PB405", "PB406", "PB407", "PB408")]
    assert told(found(OldCube, X)) == expected


def test_dropped_straight_through_gradient_is_an_info():
    dropped = [finding for finding in found(RoundStraightThrough, X) if finding.verdict == "wrong"]
    compiled = [] if is_backward_kept_by_compiled_grad() else [("PB415", "info", "wrong")]
    assert told(dropped) == [("PB410", "info", "wrong"), *compiled]
    assert all("PyTorch" in finding.message for finding in dropped)


def test_wrong_backward_is_not_reported_as_dropped():
    assert loud(found(WrongCube, X)) == []


def test_numpy_forward_is_reported_where_its_gradient_vanishes():
    """PyTorch 2.11 loses it in torch.compile alone, too."""
    x = X.clone().requires_grad_()
    torch.compiler.reset()
    (g,) = torch.autograd.grad(torch.compile(lambda x: NumpyCube.apply(x), backend="aot_eager")(x).sum(), x)
    expected = [] if g.any() else [("PB409", "error", "wrong")]
    expected += [] if is_backward_kept_by_compiled_grad() else [("PB415", "info", "wrong")]
    findings = found(NumpyCube, X)
    assert [*loud(findings), *(f for f in told(findings) if f[0] == "PB415")] == expected


def test_custom_op_with_zero_tangent_is_a_warning():
    findings = found(op_cube, X)
    assert loud(findings) == [("PB407", "warning", "wrong")]
    assert "custom op" in next(f.message for f in findings if f.rule == "PB407")
    assert ("PB414", "info", "unsupported") in told(findings)


@pytest.mark.parametrize(
    ("target", "rule"),
    [
        (OldCube, "PB405"),
        (op_cube, "PB407"),
        (RoundStraightThrough, "PB410"),
        (RoundStraightThrough, "PB415"),
    ],
)
def test_reproduction_runs(target, rule, capsys):
    for finding in found(target, X, rules=[rule]):
        raised = contextlib.nullcontext() if finding.verdict == "wrong" else pytest.raises(RuntimeError)
        with raised:
            exec(finding.reproduce, {})
        assert finding.verdict != "wrong" or capsys.readouterr().out


def test_func_grad_detects_a_branch_on_grad_mode():
    class Branching(Cube):
        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return (1 if torch.is_grad_enabled() else 3) * x * x * g

    assert told(found(Branching, X, rules=["PB405"])) == [("PB405", "error", "wrong")]


class ScaleRows(Function):
    """rows[i] * scale[index[i]]"""

    @staticmethod
    def forward(rows, scale, index):
        return rows * scale[index][:, None]

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        rows, scale, index = ctx.saved_tensors
        gscale = torch.zeros_like(scale).index_add(0, index, (g * rows).sum(1))
        return g * scale[index][:, None], gscale, None

    @staticmethod
    def vmap(info, in_dims, rows, scale, index):
        def row(t, dim, k):
            return t if dim is None else t.select(dim, k)

        tensors = (rows, scale, index)
        outs = [
            ScaleRows.apply(*(row(t, d, k) for t, d in zip(tensors, in_dims, strict=True)))
            for k in range(info.batch_size)
        ]
        return torch.stack(outs), 0


class ScaleRowsSharedIndex(ScaleRows):
    @staticmethod
    def vmap(info, in_dims, rows, scale, index):
        if in_dims[2] is not None:
            index, in_dims = index.select(in_dims[2], 0), (*in_dims[:2], None)
        return ScaleRows.vmap(info, in_dims, rows, scale, index)


def rows():
    return X, torch.tensor([0.5, 2.0, -1.5], dtype=torch.float64), torch.tensor([2, 0])


def test_vmap_batches_integer_arguments_too():
    assert found(ScaleRows, *rows(), rules=["PB406"]) == []
    assert told(found(ScaleRowsSharedIndex, *rows(), rules=["PB406"])) == [("PB406", "error", "wrong")]


def test_vmap_batches_each_tensor_alone():
    class AllBatched(ScaleRows):
        @staticmethod
        def vmap(info, in_dims, rows, scale, index):
            if None in in_dims:
                scale = torch.zeros_like(scale)
            return ScaleRows.vmap(info, in_dims, rows, scale, index)

    assert told(found(AllBatched, *rows(), rules=["PB406"])) == [("PB406", "error", "wrong")]


def test_broken_vmap_rule_is_a_warning():
    class Branching(Cube):
        @staticmethod
        def forward(x):
            return x**3 if x.sum() > -100 else x

    assert told(found(Branching, X, rules=["PB406"])) == [("PB406", "warning", "unsupported")]


def test_jvp_must_agree_in_torch_func_and_dual_numbers():
    class Branching(Cube):
        @staticmethod
        def jvp(ctx, tx):
            (x,) = ctx.saved_tensors
            return (2 if torch._C._are_functorch_transforms_active() else 3) * x * x * tx

    assert told(found(Branching, X, rules=["PB407"])) == [("PB407", "error", "wrong")]


def test_jvp_with_a_detached_intermediate_has_a_wrong_gradient():
    class Kept(OldCube):
        @staticmethod
        def forward(ctx, x):
            ctx.slope = 3 * x * x
            return OldCube.forward(ctx, x)

        @staticmethod
        def jvp(ctx, tx):
            return ctx.slope * tx

    assert loud(found(Kept, X, rules=["PB407"])) == [("PB407", "error", "wrong")]
    assert loud(found(Cube, X, rules=["PB407"])) == []


def test_jvp_that_raises_is_a_warning():
    class Failing(Cube):
        @staticmethod
        def jvp(ctx, tx):
            return ctx.slope * tx

    assert told(found(Failing, X, rules=["PB407"])) == [("PB407", "warning", "unsupported")]


def test_backward_that_branches_on_transforms_differs_under_jacrev():
    class Normalised(Cube):
        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            many = torch._C._are_functorch_transforms_active()
            return 3 * x * x * g * (2 if many else 1)

    assert told(found(Normalised, X, rules=["PB408"])) == [("PB408", "error", "wrong")]


@pytest.mark.parametrize("when", ["always", "another size", "same tensor"])
def test_compiled_gradient_is_compared_at_another_size_and_with_shared_inputs(when):
    class Product(Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            wrong = {"always": True, "another size": x.shape[1] == 7, "same tensor": x is y}[when]
            ctx.factor = 2 if torch.compiler.is_compiling() and wrong else 1
            return x * y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return ctx.factor * g * y, g * x

    # PyTorch versions that halve this gradient for every Function are excused.
    excused = when == "same tensor" and is_twin_lost()
    assert told(found(Product, X, X + 1, rules=["PB409"])) == ([] if excused else [("PB409", "error", "wrong")])


def test_function_that_cannot_be_compiled_is_a_warning():
    class Refusing(OldCube):
        @staticmethod
        def forward(ctx, x):
            if torch.compiler.is_compiling():
                raise ValueError("not here")
            return OldCube.forward(ctx, x)

    severities = [severity for _, severity, _ in told(found(Refusing, X, rules=["PB409"]))]
    assert severities in (["info"], ["info", "warning"])


def test_reading_saved_tensors_twice_is_an_error_under_checkpoint():
    class Twice(OldCube):
        @staticmethod
        def backward(ctx, g):
            return 3 * ctx.saved_tensors[0] * ctx.saved_tensors[0] * g

    (finding,) = found(Twice, X, rules=["PB411"])
    assert (finding.severity, finding.verdict) == ("error", "wrong")
    assert "saved_tensors once" in finding.hint


def test_backward_that_only_torch_autograd_grad_may_run_is_not_a_failure_of_the_audit():
    class OnlyGrad(OldCube):
        @staticmethod
        def backward(ctx, g):
            frames = traceback.extract_stack()
            if any(frame.name == "backward" and frame.filename == torch.autograd.__file__ for frame in frames):
                raise RuntimeError("use torch.autograd.grad")
            return OldCube.backward(ctx, g)

    assert not found(OnlyGrad, X, rules=["PB411"])


def test_checkpoint_reveals_state_outside_the_context():
    class Counting(OldCube):
        calls = 0

        @staticmethod
        def forward(ctx, x):
            Counting.calls += 1
            ctx.first = Counting.calls
            return OldCube.forward(ctx, x)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 3 * x * x * g * (1 if ctx.first == Counting.calls else 2)

    assert told(found(Counting, X, rules=["PB411"])) == [("PB411", "error", "wrong")]


def test_saved_tensor_hooks_reveal_a_backward_that_needs_the_same_tensor():
    class Attribute(OldCube):
        @staticmethod
        def forward(ctx, x):
            x.known = True
            return OldCube.forward(ctx, x)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 3 * x * x * g if hasattr(x, "known") else g

    assert told(found(Attribute, X, rules=["PB412"])) == [("PB412", "error", "wrong")]


def test_unpacked_copy_has_a_new_address():
    class ByAddress(OldCube):
        known = range(0, 2**63, 64)  # every aligned address, as if all memory had been used before

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            if x.data_ptr() not in ByAddress.known:
                raise KeyError(x.data_ptr())
            return 3 * x * x * g

    assert told(found(ByAddress, X, rules=["PB412"])) == [("PB412", "warning", "unsupported")]


class Matmul(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w.mT, x.mT @ g


def test_autocast_reveals_a_backward_that_mixes_dtypes():
    x, w = X.float(), X.float().mT.contiguous()
    (finding,) = found(Matmul, x, w, rules=["PB413"])
    assert (finding.severity, finding.verdict) == ("error", "wrong")
    assert finding.message.startswith("after a forward under torch.autocast")
    assert "custom_bwd" in finding.hint


def test_forward_that_refuses_autocast_is_an_info():
    class Refusing(Matmul):
        @staticmethod
        def forward(ctx, x, w):
            if torch.is_autocast_enabled("cpu"):
                raise ValueError("not here")
            return Matmul.forward(ctx, x, w)

    x, w = X.float(), X.float().mT.contiguous()
    assert told(found(Refusing, x, w, rules=["PB413"])) == [("PB413", "info", "unsupported")]


@pytest.mark.parametrize(("factor", "expected"), [(1, []), (2, [("PB413", "error", "wrong")])])
def test_autocast_tolerates_rounding_and_no_wrong_factor(factor, expected):
    class Casting(Matmul):
        @staticmethod
        def backward(ctx, g):
            by = factor if g.dtype == torch.bfloat16 else 1
            return Matmul.backward(ctx, by * g.to(ctx.saved_tensors[0].dtype))

    x, w = X.float(), X.float().mT.contiguous()
    assert told(found(Casting, x, w, rules=["PB413"])) == expected


class Scale:
    def __init__(self, factor=2.0):
        self.factor = factor

    def __call__(self, x):
        return x * self.factor


class LockedScale(Scale):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class ForgetfulScale(Scale):
    def __deepcopy__(self, memo):
        return ForgetfulScale(3.0)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (Scale(), []),
        (LockedScale(), [("PB414", "warning", "unsupported")]),
        (ForgetfulScale(), [("PB414", "error", "wrong")]),
        (lambda x: 2 * x, [("PB414", "info", "unsupported")]),
        (torch.ops.pullback_test_transforms.cube, [("PB414", "info", "unsupported")]),
    ],
)
def test_deepcopy_and_pickle_are_compared(target, expected):
    assert told(found(target, X, rules=["PB414"])) == expected


def test_base_setting_needs_a_deterministic_backward():
    class Raising(OldCube):
        @staticmethod
        def backward(ctx, g):
            raise ValueError

    class Random(OldCube):
        @staticmethod
        def backward(ctx, g):
            return g * np.random.default_rng().random()

    for target in (Raising, Random):
        assert base_setting(audited(target, X)) is None
        assert found(target, X) == []


def test_settings_are_the_example_and_its_float32_copy():
    dtypes = [setting.inputs[0].dtype for setting in settings(audited(OldCube, X))]
    assert dtypes == [torch.float64, torch.float32]


def nested(options, *, scale):
    x, mask = options["x"], options["mask"]
    return {"out": [x * scale, mask.sum()], "note": "text"}


def test_setting_handles_nested_arguments_and_outputs():
    mask = X > 0
    setting = base_setting(audited(nested, {"x": X, "mask": mask}, scale=3.0))
    assert setting.form == "tree"
    assert len(tensor_slots(setting)) == 2
    (out,) = setting.function()(X)
    assert torch.equal(out, 3 * X)
    assert found(nested, {"x": X, "mask": mask}, scale=3.0, rules=RULES[:4]) == []


def test_tensor_passed_twice_is_one_input():
    subject = subject_of(torch.mul)
    case = next(values.shared(make_case((X, X + 1), {}, [])))
    assert slots_of(case, case.wrt) == ((0, 1),)
    setting = setting_of(subject, case)
    assert len(setting.gradients) == 1
    assert torch.equal(setting.function()(X + 1)[0], (X + 1) ** 2)


def test_pure_call_restores_its_arguments():
    def counting(x, count):
        count += 1
        return x * count

    count = torch.ones(())
    case = make_case((X, count.clone()), {}, [])
    function = pure(subject_of(counting).called, case, ((0,),), [0])
    assert torch.equal(function(X)[0], function(X)[0])


@pytest.mark.parametrize(
    ("error", "kind", "context", "clear"),
    [
        (
            RuntimeError("... must override the setup_context staticmethod. For more"),
            "function",
            "other",
            True,
        ),
        (NotImplementedError("no second derivative"), "function", "other", True),
        (
            RuntimeError("vmap: It looks like you're calling .item() on a Tensor."),
            "function",
            "vectorised",
            False,
        ),
        (RuntimeError("vmap: It looks like you're calling .item() on a Tensor."), "function", "traced", True),
        (TypeError("unsupported operand"), "function", "traced", False),
    ],
)
def test_refusal_is_clear_or_not(error, kind, context, clear):
    assert refusal(Raised("there", error), kind, context).clear is clear


def test_refusal_reason_is_one_short_sentence():
    error = RuntimeError("It is not supported. For more details see there.\nTraceback …")
    assert refusal(Raised("there", error), "function").reason == "RuntimeError: It is not supported"


def test_audit_with_all_composition_rules_raises_no_exception():
    with warnings.catch_warnings():  # the process of an audit ignores them
        end = run_audit(subject_of(OldCube), Options(select=("PB4",)), [((X,), {})], Silent())
    assert end.cases >= 0


@pytest.mark.parametrize("rule", ["PB409", "PB411", "PB412", "PB413", "PB414"])
def test_backward_that_writes_to_its_cotangent_is_not_reported_by_other_rules(rule):
    class Halves(Function):
        """Half of the square; PB203 tells what is wrong with it."""

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x / 2

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * g.mul_(0.5) * x

    assert [f for f in found(Halves, X, rules=[rule]) if f.verdict == "wrong"] == []

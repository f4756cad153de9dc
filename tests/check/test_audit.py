"""The audit of one subject in this process: order of rules, cases, budget, and failures."""

import itertools
import math
import textwrap
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import Function

import pullback
from pullback.check.clock import Stopwatch
from pullback.check.contexts.eager import base_setting
from pullback.check.find.discover import subject_of
from pullback.check.rules import all_rules, selected
from pullback.check.run_audit import run_audit, static_findings
from pullback.check.subject import Options
from pullback.report.model import to_plain

from .making import Silent, audit_of, function, normal
from .modules import import_source

sine = function(torch.sin, lambda g, x: g * x.cos())
slip = function(torch.sin, lambda g, x: g * x.sin())
QUICK = Options(select=("PB101", "PB401"))


def run(target, *args, options=QUICK, inputs=None, skip=frozenset()):
    """Audit and return the events and the end."""
    subject = target if hasattr(target, "why_unaudited") else subject_of(target)
    events = Silent()
    given = [(args, {})] if args else inputs
    return events, run_audit(subject, options, given, events, skip)


def found(events):
    return [(f.rule, f.severity, f.verdict) for f in events.findings]


def test_right_function_is_clean():
    events, end = run(sine, normal(3))
    assert events.findings == []
    assert end.cases > 20
    assert end.allowed == 0


def test_wrong_function_is_an_error():
    events, _ = run(slip, normal(3))
    assert ("PB101", "error", "wrong") in found(events)
    (wrong,) = [f for f in events.findings if f.rule == "PB101"]
    assert wrong.name == "wrong-vjp"
    assert wrong.evidence.failing >= 1
    assert "out = fn(x)" in wrong.reproduce


def test_steps_name_the_rule_and_the_case():
    events, _ = run(sine, normal(3))
    assert ("PB1", "x: float64(3,) [all zeros]") in [(rule, what) for rule, what, _ in events.steps]
    assert {rule for rule, _, _ in events.steps} == {"", "PB1", "PB101", "PB401"}


def work(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def slow(x):
    work(0.002)
    return x.sin()


def sleepy(x):
    time.sleep(0.002)
    return x.sin()


def test_small_budget_still_runs_every_contract_rule():
    options = Options(budget=1)
    events, _ = run(function(slow, lambda g, x: g * x.cos()), normal(3), options=options)
    ran = {rule for rule, _, _ in events.steps}
    contract = {rule.id for rule in selected(options) if rule.family == "PB1" and rule.runtime}
    assert contract <= ran
    (told,) = [f for f in events.findings if f.rule == "PB006"]
    left_out = {rule.id for rule in all_rules() if rule.id in told.message}
    assert left_out
    assert not any(rule.startswith("PB1") for rule in left_out)
    assert not left_out & ran
    assert (told.severity, told.verdict) == ("info", "inconclusive")


def test_cheap_rules_precede_the_variants_and_slow_rules_follow():
    events, _ = run(sine, normal(3), options=Options(budget=60.0))
    variants = [i for i, (rule, what, _) in enumerate(events.steps) if rule == "PB1" and what.startswith("x: ")]
    first, last = variants[0], variants[-1]
    at = {rule: i for i, (rule, _, _) in reversed(list(enumerate(events.steps)))}
    assert all(at[rule] < first for rule in ("PB101", "PB119", "PB209", "PB401", "PB411", "PB502"))
    assert all(at[rule] > last for rule in ("PB301", "PB303", "PB409", "PB410", "PB415"))
    assert [rule for rule, _ in itertools.groupby(events.steps, key=lambda step: step[0])].count("PB101") == 2


def test_slow_function_has_no_variants_compared_beyond_the_budget():
    def staircase(x):
        work(1e-3)
        return x.round()

    events, _ = run(function(staircase, lambda g, x: g * x), normal(40), options=Options(budget=1.0))
    assert any(rule == "PB101" for rule, _, _ in events.steps)
    assert [what for rule, what, _ in events.steps if rule == "PB1" and what.startswith("x: ")] == []
    (told,) = [f for f in events.findings if f.rule == "PB006"]
    assert "before all variants of the inputs were compared" in told.message


def test_sleeping_function_uses_up_its_budget():
    events, _ = run(function(sleepy, lambda g, x: g * x.cos()), normal(3), options=Options(budget=0.3))
    assert any(f.rule == "PB006" for f in events.findings)


def test_busy_machine_skips_no_rule(monkeypatch):
    target = function(torch.sin, lambda g, x: g * x.cos())
    clock = Stopwatch()
    run(target, normal(3), options=Options(select=("PB1", "PB2"), budget=60.0))
    needed = clock.seconds()
    shared = SimpleNamespace(process_time=time.process_time, monotonic=lambda: 2.9 * time.process_time())
    monkeypatch.setattr("pullback.check.clock.time", shared)  # this process gets a third of a processor
    events, _ = run(target, normal(3), options=Options(select=("PB1", "PB2"), budget=2.6 * needed))
    assert not any(f.rule == "PB006" for f in events.findings)


def test_contract_is_checked_without_any_budget():
    events, _ = run(slip, normal(3), options=Options(select=("PB101",), budget=1e-6))
    assert ("PB101", "error", "wrong") in found(events)


def test_same_seed_gives_the_same_findings():
    def findings(seed):
        events, _ = run(slip, options=Options(select=("PB1", "PB401"), seed=seed))
        return [to_plain(f) for f in events.findings]

    assert findings(0) == findings(0)
    assert findings(0) != findings(1)


ALLOWS = """
import torch

class Slip(torch.autograd.Function):
    # pullback: allow[{name}] known, see issue 7
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].sin()
"""


def test_allow_comments_are_counted(tmp_path):
    options = Options(select=("PB101",))
    allowed, end = run(import_source(ALLOWS.format(name="wrong-vjp"), tmp_path, "allowing").Slip, options=options)
    assert (allowed.findings, end.allowed) == ([], 1)
    other, end = run(import_source(ALLOWS.format(name="wrong-jvp"), tmp_path, "allowing_other").Slip, options=options)
    assert found(other) == [("PB101", "error", "wrong")]
    assert end.allowed == 0


STATIC = """
import torch

class Op(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x * y

    @staticmethod
    def backward(ctx, g):
        return (g,)
"""


def test_function_that_does_not_import_is_checked_by_its_source(tmp_path):
    live = subject_of(import_source(STATIC, tmp_path, "static_only").Op)
    dead = replace(live, target=None, why_unaudited="the file does not import")
    events, end = run(dead, options=Options())
    assert end.cases == 0
    assert ("PB001", "warning", "unaudited") in found(events)
    assert "the file does not import" in next(f for f in events.findings if f.rule == "PB001").message
    of_source = static_findings(dead, Options())
    assert [f.rule for f in of_source] == ["PB103"]
    assert of_source[0] in events.findings
    assert static_findings(dead, Options(ignore=("PB103",))) == []


def test_step_names_the_variant_that_is_called():
    class Doubles(Function):
        @staticmethod
        def forward(ctx, x):
            steps.append(len(x))
            return 2 * x

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    steps = []
    events, _ = run(Doubles, normal(3, 5), options=Options(select=("PB503",)))
    assert 0 in steps
    told = [what for rule, what, _ in events.steps if rule == "PB503"]
    assert told[0] == "x: float64(3, 5) [given]"
    assert "x: float64(0, 5) [size 3 -> 0]" in told


def test_skipped_rules_and_cases_do_not_run():
    events, _ = run(slip, normal(3), skip=frozenset({"PB101", "x: float64(3,) [all zeros]"}))
    assert "PB101" not in {rule for rule, _, _ in events.steps}
    assert all(what != "x: float64(3,) [all zeros]" for rule, what, _ in events.steps if rule == "PB1")
    assert not [f for f in events.findings if f.rule == "PB101"]


def test_select_and_ignore():
    assert [r.id for r in selected(Options(select=("PB10",), ignore=("PB101", "PB105")))] == [
        "PB102", "PB103", "PB104", "PB106", "PB107", "PB108", "PB109",
    ]  # fmt: skip
    events, _ = run(slip, normal(3), options=Options(select=("PB1",), ignore=("PB101",)))
    assert "PB101" not in {rule for rule, _, _ in events.steps}


def test_noisy_forward_is_inconclusive():
    def chaos(x):
        assert x.numel()
        bits = x.contiguous().view(torch.int64)
        return 1e-9 * x + ((bits * 6364136223846793005 + 1442695040888963407) >> 33) / 2**31

    events, _ = run(function(chaos, lambda g, x: g * 1e-9), normal(3), options=Options(select=("PB101",)))
    assert found(events) == [("PB101", "info", "inconclusive")]


@pytest.mark.usefixtures("budgets_as_given")
def test_failure_of_all_guessed_calls_is_reported():
    class Op(Function):
        @staticmethod
        def forward(ctx, x):
            raise RuntimeError("only on Thursdays")

        @staticmethod
        def backward(ctx, g):
            return g

    events, end = run(Op)
    assert found(events) == [("PB001", "warning", "unaudited")]
    assert "guessed calls, none worked" in events.findings[0].message
    assert "only on Thursdays" in events.findings[0].message
    assert "--inputs FILE:function" in events.findings[0].hint
    assert end.cases == 0


UNGUESSED = """
import torch

class Op(torch.autograd.Function):
    @staticmethod
    def forward(ctx, blob):
        assert blob.dim() == 7 and blob.shape[2] == 24
        return blob.sin()

    @staticmethod
    def backward(ctx, g):
        return g

def get_inputs():
    return (torch.randn(1, 1, 24, 1, 1, 1, 1),)
"""


@pytest.mark.usefixtures("budgets_as_given")
def test_failed_guess_names_the_assertion_and_a_function_of_inputs(tmp_path):
    (tmp_path / "unguessed.py").write_text(UNGUESSED)
    (finding,) = pullback.check(f"{tmp_path / 'unguessed.py'}:Op").findings
    assert "AssertionError: assert blob.dim() == 7 and blob.shape[2] == 24" in finding.message
    assert "unguessed.py:get_inputs`" in finding.hint


def test_cotangent_that_is_never_read_is_reported_once():
    events, _ = run(function(torch.sin, lambda g, x: x.cos()), normal(3), options=Options(select=("PB111",)))
    assert [f.message for f in events.findings] == ["no gradient depends on the cotangent of output 0"]

    class Sine(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx, g):
            return ctx.saved_tensors[0].cos()

    events, _ = run(Sine, normal(3), options=Options(select=("PB111",)))
    assert [f.message for f in events.findings] == ["backward never reads its cotangent g"]


def test_undefined_name_in_a_forward_is_not_answered_by_other_inputs():
    class Typo(Function):
        @staticmethod
        def forward(ctx, x):
            return scael * x  # noqa: F821

        @staticmethod
        def backward(ctx, g):
            return g

    events, _ = run(Typo)
    assert found(events) == [("PB001", "warning", "unaudited")]
    assert "scael" in events.findings[0].message
    assert "--inputs" not in events.findings[0].hint


def test_name_that_a_pasted_example_lacks_is_named(tmp_path):
    methods = "    forward = staticmethod(lambda ctx, x: x)\n    backward = staticmethod(lambda ctx, g: g)\n"
    (tmp_path / "pasted.py").write_text(f"class Op(torch.autograd.Function):\n{methods}")
    (finding,) = pullback.check(str(tmp_path / "pasted.py")).findings
    assert (finding.rule, finding.hint) == ("PB001", "define torch, or import it")


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ((torch.ones(2, 3), torch.ones(4)), "given inputs do not work: forward raised"),
        ((torch.ones(2, dtype=torch.int64),) * 2, "no argument is a floating or complex tensor"),
    ],
)
def test_failing_given_inputs_are_an_error(args, why):
    class Product(Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x @ y if x.dim() > 1 else x * y

        @staticmethod
        def backward(ctx, g):
            return g, g

    events, _ = run(Product, *args)
    assert found(events) == [("PB001", "error", "unaudited")]
    assert why in events.findings[0].message


def test_first_working_input_is_varied_and_all_are_checked():
    def picky(x):
        assert x.shape[-1] != 3
        return torch.where(x.sum() > 100, 2 * x.sin(), x.sin())

    fn = function(picky, lambda g, x: g * x.cos())
    inputs = [((normal(3),), {}), ((normal(4),), {}), ((normal(4) + 50,), {})]
    events, _ = run(fn, inputs=inputs)
    (wrong,) = [f for f in events.findings if f.rule == "PB101"]
    assert any(f"{n}." in wrong.reproduce for n in (47, 48, 49, 50, 51)) or "larger" in wrong.message


def test_float32_inputs_are_widened_if_the_forward_accepts_float64():
    factor = 1 + 2e-6  # far below the resolution of float32
    off = function(torch.sin, lambda g, x: factor * g * x.cos())
    events, _ = run(off, normal(3).float())
    assert ("PB101", "warning", "wrong") in found(events)

    def single(x):
        if x.dtype != torch.float32:
            raise TypeError("float32, please")
        return x.tanh()

    events, end = run(function(single, lambda g, x: g * (1 - x.tanh() ** 2)), normal(3).float())
    assert events.findings == []
    assert end.cases > 10


def test_in_place_function_is_audited():
    class Doubled(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    events, end = run(Doubled, normal(3))
    assert events.findings == []
    assert end.cases > 20


def test_system_exit_is_reported_and_the_audit_continues():
    def leaves(x):
        if (x == 0).all() and x.numel():
            raise SystemExit(3)
        return x.sin()

    events, _ = run(function(leaves, lambda g, x: g * x.sin()), normal(3))
    assert ("PB004", "error", "wrong") in found(events)
    assert ("PB101", "error", "wrong") in found(events)


def test_internal_error_of_a_rule_is_inconclusive(monkeypatch):
    from pullback.check.rules import pb101_wrong_vjp

    rule = replace(pb101_wrong_vjp.RULE, runtime=lambda audit: 1 / 0)
    monkeypatch.setattr("pullback.check.run_audit.selected", lambda options: [rule])
    events, _ = run(sine, normal(3))
    assert found(events) == [("PB101", "info", "inconclusive")]
    assert "report it" in events.findings[0].hint
    assert "Pullback failed (test_audit.py" in events.findings[0].message


def test_doubtful_case_settles_only_doubtful_ones(monkeypatch):
    from pullback.check.audit import Audit
    from pullback.check.cases import values

    from .making import audit_of

    audited = audit_of(slip, normal(3))
    asked = []
    compare = Audit.compare

    def spied(self, case, *args, skip_inputs=(), **options):
        asked.append((case.label, case.doubtful, set(skip_inputs)))
        return compare(self, case, *args, skip_inputs=skip_inputs, **options)

    def cases(base):
        for label, doubtful in (("odd 1", True), ("odd 2", True), ("plain 1", False), ("odd 3", True)):
            yield base.with_values({0: base.values[0] + 1}, label, doubtful=doubtful)

    audited.__dict__["base_result"] = None
    monkeypatch.setattr(Audit, "compare", spied)
    monkeypatch.setattr(values, "other_values", cases)
    assert audited.variants[0].case.label == "odd 1"
    first = [(label, skip_inputs) for label, _, skip_inputs in asked[:4]]
    assert first == [("odd 1", set()), ("odd 2", {0}), ("plain 1", set()), ("odd 3", {0})]


@pytest.mark.usefixtures("budgets_as_given")
def test_number_of_compared_elements_depends_on_work_and_not_on_waiting():
    from pullback.check.derivative.compare_input import MAX_ELEMENTS

    from .making import audit_of

    waits = function(sleepy, lambda g, x: g * x.cos())
    assert audit_of(waits, normal(3)).elements == MAX_ELEMENTS

    def works(x):
        end = time.process_time() + 0.005
        while time.process_time() < end:
            pass
        return x.sin()

    assert audit_of(function(works, lambda g, x: g * x.cos()), normal(3)).elements < MAX_ELEMENTS


def test_wrong_shape_on_a_doubtful_case_is_a_warning():
    class Fits(Function):
        @staticmethod
        def forward(ctx, x, count):
            ctx.count = count
            return 2 * x

        @staticmethod
        def backward(ctx, g):
            return 2 * g if g.shape[0] > ctx.count else g.new_ones(ctx.count, *g.shape), None

    events, _ = run(Fits, normal(5), 3, options=Options(select=("PB104",)))
    assert found(events) == [("PB104", "warning", "wrong")]


def test_wrong_factor_equal_to_a_size_is_named():
    def hint(value, gradient, shape):
        events, _ = run(function(value, gradient), normal(*shape))
        return next(f.hint for f in events.findings if f.rule == "PB101")

    rows = "the size of dimension 0 of x"
    assert rows in hint(lambda x: (x * x).mean(0), lambda g, x: 2 * g.expand_as(x) * x, (5, 3))
    assert "1/N of a mean" in hint(lambda x: (x * x).mean(), lambda g, x: 2 * g * x, (5, 3))
    assert "an extra 1/N" in hint(lambda x: (x * x).sum(), lambda g, x: 2 * g * x / x.numel(), (5, 3))
    assert "2 times" in hint(lambda x: x * x, lambda g, x: 4 * g * x, (5, 3))


def test_wrong_gradients_of_broadcast_inputs_are_one_warning():
    class MeanSquaredError(Function):
        """Its gradients are not those of inputs that broadcast."""

        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return (x - y).square().mean()

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            d = g * 2 * (x - y) / x.numel()
            return d.sum_to_size(x.shape), -d.sum_to_size(y.shape)

    events, _ = run(
        MeanSquaredError, normal(3, 4), normal(3, 4, seed=1), options=Options(select=("PB101",), budget=120)
    )
    assert found(events) == [("PB101", "warning", "wrong")]


def test_backward_that_always_raises_is_an_error_without_inputs():
    class SavesNothing(Function):
        @staticmethod
        def forward(ctx, x):
            return x.exp()

        @staticmethod
        def backward(ctx, g):
            (y,) = ctx.saved_tensors
            return g * y

    events, _ = run(SavesNothing, options=Options(select=("PB119",)))
    assert found(events) == [("PB119", "error", "wrong")]


def test_global_that_raises_for_every_attribute_is_skipped(tmp_path):
    source = textwrap.dedent(
        """
        import torch

        class Missing:
            def __getattr__(self, name):
                raise ImportError(name)

        library = Missing()

        class Cube(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return library.cube(x) if x.is_cuda else x**3

            @staticmethod
            def backward(ctx, g):
                (x,) = ctx.saved_tensors
                return g * 2 * x**2
        """
    )
    module = import_source(source, tmp_path, "lazy_library")
    events, _ = run(module.Cube, normal(3))
    assert ("PB101", "error", "wrong") in found(events)


def test_nan_on_the_example_is_not_intended():
    class Rounded(Function):
        """Straight-through."""

        @staticmethod
        def forward(ctx, x):
            return x.round()

        @staticmethod
        def backward(ctx, g):
            return g.clamp(-g.std(), g.std())

    events, _ = run(Rounded, normal(1), options=Options(select=("PB101",)))
    assert found(events) == [("PB101", "error", "wrong")]


def test_size_that_follows_a_number_argument_is_compiled_as_a_constant():
    class Times(Function):
        @staticmethod
        def forward(ctx, x, n):
            ctx.n = n
            return n * x

        @staticmethod
        def backward(ctx, g):
            return ctx.n * g, None

    events, _ = run(Times, normal(3, 5), 5, options=Options(select=("PB409",)))
    assert found(events) == []


def test_finite_failure_is_not_shrunk_to_a_nonfinite_one():
    class Standardised(Function):
        @staticmethod
        def forward(ctx, x):
            centred = x - x.mean(-1, keepdim=True)
            scale = (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
            ctx.save_for_backward(x)
            return centred * scale

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            centred = x - x.mean(-1, keepdim=True)
            scale = (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
            y = centred * scale
            return scale * (g - g.mean(-1, keepdim=True) - y * (g * y).sum(-1, keepdim=True) / (x.shape[-1] - 1))

    events, _ = run(Standardised, normal(3, 5), options=Options(select=("PB101",)))
    (finding,) = events.findings
    assert math.isfinite(finding.evidence.got)


def test_extra_dimension_of_size_one_in_a_gradient_is_an_info():
    class Scale(Function):
        """The gradient of the scale is wrong, and of another shape, which changes nothing."""

        @staticmethod
        def forward(ctx, x, scale):
            ctx.save_for_backward(x, scale)
            return scale * x

        @staticmethod
        def backward(ctx, g):
            x, scale = ctx.saved_tensors
            return g * scale, 2 * (g * x).sum().view(-1)

    events, _ = run(Scale, normal(3, 4), torch.tensor(1.5), options=Options(select=("PB104",)))
    assert found(events) == [("PB104", "info", "wrong")]


class Passes(Function):
    """The identity, with a gradient that is detached from the graph."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g.detach().clone()


def test_lost_second_derivative_of_an_identity_is_an_error():
    events, _ = run(Passes, normal(4), options=Options(select=("PB401",)))
    assert found(events) == [("PB401", "error", "wrong")]


class RefusesZeros(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if not x.any():
            raise RuntimeError("no residual is left")
        return 2 * x * g


def test_explicit_refusal_of_the_backward_is_a_warning():
    events, _ = run(RefusesZeros, normal(4), options=Options(select=("PB119",)))
    assert found(events) == [("PB119", "warning", "unsupported")]


def test_context_rule_ignores_state_changed_between_its_calls():
    scale = [1.0]
    audit = audit_of(lambda x: Passes.apply(x) * scale[0], normal(4))
    (rule,) = [rule for rule in all_rules() if rule.id == "PB414"]
    assert base_setting(audit) is not None
    scale[0] = 2.0
    assert [f.verdict for f in rule.runtime(audit) if f.verdict == "wrong"] == []

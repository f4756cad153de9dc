"""Static rules about a Function and its forward; the runtime half replaces them where the function runs."""

import pytest
import torch

from pullback.check.rules import allow_keys
from pullback.check.run_audit import run_audit, static_findings
from pullback.check.runner.outcome import static_outcome
from pullback.check.subject import Options
from pullback.report.model import Finding

from ..making import Silent
from ..written import found, op, subject


def test_static_rules_import_nothing(tmp_path):
    body = op("ctx.x = x; return x", "return g") + "\nraise SystemExit"
    assert len(found("PB804", body, tmp_path)) == 1


def test_runtime_half_replaces_the_static_half(tmp_path):
    one = subject(op("ctx.x = x; return x", "return g"), tmp_path)
    options = Options(select=("PB804",))
    assert static_findings(one, options, runs=True) == []
    events = Silent()
    run_audit(one, options, None, events)
    assert [finding.rule for finding in events.findings] == ["PB001", "PB201"]


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (Options(select=("PB201",)), 1),
        (Options(select=("PB8",)), 1),
        (Options(ignore=("PB804",)), 0),
        (Options(ignore=("PB8",)), 0),
        (Options(ignore=("PB201",)), 0),
        (Options(select=("PB101",)), 0),
    ],
)
def test_static_half_is_selected_by_its_rule_and_by_its_former_id(tmp_path, options, count):
    one = subject(op("ctx.x = x; return x", "return g"), tmp_path)
    found = [finding for finding in static_findings(one, options) if finding.rule == "PB201"]
    assert [(finding.name, finding.alias) for finding in found] == [("tensor-on-ctx", "PB804")] * count


@pytest.mark.parametrize("name", ["tensor-on-ctx", "PB201", "tensor-on-ctx-in-source", "PB804"])
def test_static_half_is_allowed_by_any_of_its_names(tmp_path, name):
    body = f"# pullback: allow[{name}] it is released by the caller\n" + op("ctx.x = x; return x", "return g")
    outcome = static_outcome(subject(body, tmp_path), Options(), "it needs a GPU")
    assert ([finding.rule for finding in outcome.findings], outcome.allowed) == (["PB001"], 1)


def test_name_of_a_static_half_allows_no_runtime_error():
    finding = Finding("Op", "PB101", "wrong-vjp", "error", "wrong", "")
    assert allow_keys(finding) == ("PB101", "wrong-vjp")


def test_finding_is_at_the_line_of_the_match(tmp_path):
    one = subject(op("y = 1; ctx.x = x; return x", "return g"), tmp_path)
    (finding,) = static_findings(one, Options(select=("PB804",)))
    assert (
        (tmp_path / "kernels.py")
        .read_text(encoding="utf-8")
        .splitlines()[finding.location.line - 1]
        .endswith("ctx.x = x; return x")
    )


def test_801_classmethods_and_plain_methods_are_reported(tmp_path):
    body = """
    @classmethod
    def forward(cls, ctx, x):
        return x

    def backward(ctx, g):
        return g

    @some.decorator
    def jvp(ctx, t):
        return t
    """
    assert found("PB801", body, tmp_path) == [
        ("warning", "forward is a classmethod, which torch.compile does not trace"),
        ("warning", "backward is not a staticmethod"),
    ]


@pytest.mark.parametrize(
    ("line", "severities"),
    [
        ("return torch.symeig(g)[0]", ["error"]),
        ("return torch.rfft(g, 1)", ["error"]),
        ("return Variable(g.data)", ["warning"]),
        ("return g * ctx.saved_variables[0]", ["warning"]),
        ("return torch.fft.rfft(g)", []),
        ("return torch.linalg.solve(g, g)", []),
    ],
)
def test_802_removed_functions_are_errors_and_deprecated_ones_warnings(tmp_path, line, severities):
    assert [severity for severity, _ in found("PB802", op(backward=line), tmp_path)] == severities


def test_802_pytorch_deprecates_saved_variables():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_variables
            return 2 * g * x

    x = torch.ones(2, requires_grad=True)
    with pytest.warns(DeprecationWarning, match="'saved_variables' is deprecated; use 'saved_tensors'"):
        (g,) = torch.autograd.grad(Double.apply(x).sum(), x)
    assert torch.equal(g, torch.full((2,), 2.0))


def test_802_removed_function_in_a_try_block_is_not_reported(tmp_path):
    tried = """
    @staticmethod
    def backward(ctx, g):
        try:
            return torch.rfft(g, 1)
        except AttributeError:
            return torch.fft.rfft(g)

    @staticmethod
    def forward(ctx, x):
        return x
    """
    assert found("PB802", tried, tmp_path) == []


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ("y = Op()(1)", [("error", "an instance of it is called, which raises: Op(…)")]),
        ("op = Op()", [("warning", "an instance of it is made: Op(…)")]),
        ("op = Op.apply", []),
        ("def Op(): pass\ny = Op()", []),
        ("def call(Op): return Op()", []),
    ],
)
def test_803_only_instances_of_the_class_itself_are_reported(tmp_path, after, expected):
    assert found("PB803", op(), tmp_path, after) == expected


@pytest.mark.parametrize(
    ("forward", "backward", "what"),
    [
        ("ctx.x = x; return kernel(x)", "return g, None", "ctx.x, the argument x,"),
        ("ctx.a, ctx.x = 1, x; return kernel(x)", "return g, None", "ctx.x, the argument x,"),
        ("out = kernel(x); ctx.out = out; return out", "return g, None", "ctx.out, a result,"),
        ("ctx.k = k; return kernel(x)", "return g, None", None),
        ("ctx.x = x.shape; return kernel(x)", "return g, None", None),
        ("ctx.x = x; return kernel(x)", "return tuple(g)", None),
    ],
)
def test_804_context_attribute_must_be_provably_a_tensor(tmp_path, forward, backward, what):
    messages = [message for _, message in found("PB804", op(forward, backward, "x, k"), tmp_path)]
    assert messages == ([] if what is None else [f"the forward keeps {what} outside of save_for_backward"])


def test_804_number_before_variadic_tensors_is_not_reported(tmp_path):
    body = op("ctx.k = k; return kernel(x)", "return (None,) + kernel(g)", "k, *x")
    assert found("PB804", body, tmp_path) == []


def test_804_setup_context_is_read(tmp_path):
    body = """
    @staticmethod
    def forward(x, k):
        return kernel(x, k)

    @staticmethod
    def setup_context(ctx, inputs, output):
        a, b = inputs
        ctx.a, ctx.b, ctx.out = a, b, output

    @staticmethod
    def backward(ctx, g):
        return g, None
    """
    messages = [message for _, message in found("PB804", body, tmp_path)]
    assert [message.split(", ")[1] for message in messages] == ["the argument x", "the result"]


@pytest.mark.parametrize(
    ("forward", "count"),
    [
        ("x.relu_(); return x", 1),
        ("x[0] = 0; return x", 1),
        ("x += 1; return x", 1),
        ("x.data.relu_(); return x", 1),
        ("x = x.clone(); x.relu_(); return x", 0),
        ("x.relu_(); ctx.mark_dirty(x); return x", 0),
        ("running.mul_(0.9); return kernel(x)", 0),
        ("x.requires_grad_(); return kernel(x)", 0),
        ("x.__len__(); return kernel(x)", 0),
    ],
)
def test_805_writes_to_differentiated_inputs_are_reported(tmp_path, forward, count):
    assert len(found("PB805", op(forward, "return g, None", "x, running"), tmp_path)) == count


@pytest.mark.parametrize(
    ("backward", "what"),
    [
        ("g.mul_(2); return g", "its cotangent g in place: g.mul_(2)"),
        ("(x,) = ctx.saved_tensors; x *= g; return x", "the saved tensor x in place: x *= g"),
        ("x = ctx.saved_tensors[0]; x[0] = 1; return x", "the saved tensor x in place: x[0] = 1"),
        ("g = g.clone(); g.mul_(2); return g", None),
        ("gx = g * 2; gx.mul_(2); return gx", None),
    ],
)
def test_806_writes_to_cotangents_and_saved_tensors_are_reported(tmp_path, backward, what):
    messages = [message for _, message in found("PB806", op(backward=backward), tmp_path)]
    assert messages == ([] if what is None else [f"the backward changes {what}"])


@pytest.mark.parametrize(
    ("forward", "count"),
    [
        ("x.data.mul_(2); return kernel(x)", 1),
        ("x.data = kernel(x); return x", 1),
        ("x.detach()[0] = 1; return kernel(x)", 1),
        ("x.mul_(2); return kernel(x)", 0),
        ("running.data.mul_(2); return kernel(x)", 0),
        ("y = x.data * 2; return kernel(y)", 0),
    ],
)
def test_807_writes_that_bypass_the_version_counter_are_reported(tmp_path, forward, count):
    assert len(found("PB807", op(forward, "return g, None", "x, running"), tmp_path)) == count

"""Rules about the source: what they tell apart, and that a function which runs is measured instead."""

import textwrap

import pytest

from pullback.check import audit
from pullback.check.find.discover import static_subjects
from pullback.check.subject import Options

from ..making import Silent

HEAD = """
import torch
from torch.autograd import Function

"""


def subject(body, folder, after=""):
    """Return the one Function of a file with this class body, never imported."""
    path = folder / "kernels.py"
    text = f"{HEAD}class Op(Function):\n{textwrap.indent(textwrap.dedent(body), '    ')}\n{textwrap.dedent(after)}"
    path.write_text(text, encoding="utf-8")
    (one,) = static_subjects(str(path), "it needs a GPU")
    return one


def found(rule, body, folder, after=""):
    """Return severity and message of what the rule finds; the rule's own line must hold what it quotes."""
    options = Options(select=(rule,))
    return [(f.severity, f.message) for f in audit.static_findings(subject(body, folder, after), options)]


def op(forward="return kernel(x)", backward="return g", arguments="x"):
    """Return the body of a class with these two methods."""
    return f"""\
@staticmethod
def forward(ctx, {arguments}):
    {forward}

@staticmethod
def backward(ctx, g):
    {backward}
"""


def test_nothing_is_imported(tmp_path):
    body = op("ctx.x = x; return x", "return g") + "\nraise SystemExit"
    assert len(found("PB804", body, tmp_path)) == 1


def test_a_function_that_runs_is_measured_instead(tmp_path):
    one = subject(op("ctx.x = x; return x", "return g"), tmp_path)
    options = Options(select=("PB804",))
    assert audit.static_findings(one, options, runs=True) == []
    events = Silent()
    audit.audit(one, options, None, events)
    assert [finding.rule for finding in events.findings] == ["PB001", "PB804"]


def test_the_line_is_that_of_the_match(tmp_path):
    one = subject(op("y = 1; ctx.x = x; return x", "return g"), tmp_path)
    (finding,) = audit.static_findings(one, Options(select=("PB804",)))
    assert (
        (tmp_path / "kernels.py")
        .read_text(encoding="utf-8")
        .splitlines()[finding.location.line - 1]
        .endswith("ctx.x = x; return x")
    )


def test_801_tells_a_classmethod_from_a_plain_one(tmp_path):
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
        ("warning", "backward is no staticmethod"),
    ]


@pytest.mark.parametrize(
    ("line", "severities"),
    [
        ("return torch.symeig(g)[0]", ["error"]),
        ("return torch.rfft(g, 1)", ["error"]),
        ("return Variable(g.data)", ["warning"]),
        ("return torch.fft.rfft(g)", []),
        ("return torch.linalg.solve(g, g)", []),
    ],
)
def test_802_knows_what_is_gone(tmp_path, line, severities):
    assert [severity for severity, _ in found("PB802", op(backward=line), tmp_path)] == severities


def test_802_leaves_out_what_is_tried(tmp_path):
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
def test_803_sees_instances_of_that_class_alone(tmp_path, after, expected):
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
def test_804_asks_for_proof_that_it_is_a_tensor(tmp_path, forward, backward, what):
    messages = [message for _, message in found("PB804", op(forward, backward, "x, k"), tmp_path)]
    assert messages == ([] if what is None else [f"the forward keeps {what} outside of save_for_backward"])


def test_804_reads_setup_context(tmp_path):
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
def test_805_sees_writes_to_what_gets_a_gradient(tmp_path, forward, count):
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
def test_806_sees_writes_to_what_belongs_to_others(tmp_path, backward, what):
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
def test_807_sees_writes_that_are_not_counted(tmp_path, forward, count):
    assert len(found("PB807", op(forward, "return g, None", "x, running"), tmp_path)) == count


@pytest.mark.parametrize(
    ("backward", "count"),
    [
        ("(x,) = ctx.saved_tensors; return g * x.item()", 1),
        ("return g * float(g)", 1),
        ("return kernel(g.detach())", 1),
        ("\n    with torch.no_grad():\n        return kernel(g)", 1),
        ("return kernel(ctx.scale.item() * g)", 0),
        ("return kernel(g)", 0),
    ],
)
def test_808_sees_what_leaves_the_graph(tmp_path, backward, count):
    body = op(backward=backward)
    assert len(found("PB808", body, tmp_path)) == count
    once = body.replace("@staticmethod\ndef backward", "@staticmethod\n@once_differentiable\ndef backward")
    assert found("PB808", once, tmp_path) == []


@pytest.mark.parametrize(
    ("backward", "count"),
    [
        ("return g * ctx.saved_tensors[0] * ctx.saved_tensors[1]", 1),
        ("\n    for k in range(2):\n        x = ctx.saved_tensors[k]\n    return x", 1),
        (
            "\n    if ctx.a:\n        x = ctx.saved_tensors\n    else:\n        x, y = ctx.saved_tensors\n    return x",
            0,
        ),
        ("\n    if ctx.a:\n        return ctx.saved_tensors[0]\n    return ctx.saved_tensors[1]", 0),
        ("\n    if ctx.a:\n        y = ctx.saved_tensors[0]\n    return ctx.saved_tensors[1]", 1),
        ("\n    if ctx.a:\n        y = ctx.saved_tensors[0]\n        return y * ctx.saved_tensors[0]\n    return g", 1),
    ],
)
def test_809_counts_reads_on_one_way(tmp_path, backward, count):
    assert len(found("PB809", op(backward=backward), tmp_path)) == count


@pytest.mark.parametrize(
    ("forward", "backward", "what"),
    [
        ("Op.k = 2; return kernel(x)", "return g * Op.k", "Op.k"),
        ("global scale; scale = x.max(); return kernel(x)", "return g * scale", "scale"),
        ("Op.calls = 2; return kernel(x)", "return g", None),
        ("k = Op.k; return kernel(x)", "return g * Op.k", None),
        ("scale = x.max(); return kernel(x)", "return g * scale", None),
    ],
)
def test_810_sees_what_calls_share(tmp_path, forward, backward, what):
    messages = [message for _, message in found("PB810", op(forward, backward), tmp_path)]
    expected = f"the forward assigns {what}, which every call shares, and the backward reads it"
    assert messages == ([] if what is None else [expected])


@pytest.mark.parametrize(
    ("backward", "count"),
    [
        ("return g * torch.rand_like(g)", 1),
        ("return F.dropout(g)", 1),
        ("return g * torch.rand(3, generator=ctx.generator)", 0),
        ("torch.manual_seed(ctx.seed); return g * torch.rand(3)", 0),
        ("return torch.randomize(g)", 0),
    ],
)
def test_811_sees_draws(tmp_path, backward, count):
    assert len(found("PB811", op(backward=backward), tmp_path)) == count


@pytest.mark.parametrize(
    ("backward", "count"),
    [
        ("(index,) = ctx.saved_tensors; gx = zeros(); gx[index] += g; return gx", 1),
        ("(index,) = ctx.saved_tensors; gx = zeros(); gx.index_put_((index,), g); return gx", 1),
        ("(index,) = ctx.saved_tensors; gx = zeros(); gx.index_put_((index,), g, accumulate=True); return gx", 0),
        ("(index,) = ctx.saved_tensors; gx = zeros(); gx[~index] += 1; gx[index] += g; return gx", 0),
        ("(mask,) = ctx.saved_tensors; gx = zeros(); gx[mask] += g; return gx", 0),
        ("gx = zeros(); gx[0] += g; return gx", 0),
    ],
)
def test_812_sees_sums_that_lose_terms(tmp_path, backward, count):
    assert len(found("PB812", op(backward=backward), tmp_path)) == count


@pytest.mark.parametrize(
    ("backward", "count"),
    [
        ("return g, g, 2 * g", 1),
        ("return g, g, None", 0),
        ("return g, g, g", 0),
        ("return g, g", 0),
        ("return g", 0),
        ("return (g,)", 1),
    ],
)
def test_103_counts_gradients_in_the_source(tmp_path, backward, count):
    assert len(found("PB103", op(backward=backward, arguments="x, y"), tmp_path)) == count

"""Parsing of Functions from source text, and the source of live objects."""

import functools
import linecache
import textwrap

import pytest
import torch

from pullback.check.find.source import FunctionSource, parse_file, source_of
from pullback.errors import TargetError


@pytest.fixture
def parse(tmp_path):
    def parse(text: str) -> dict[str, FunctionSource]:
        path = tmp_path / "ops.py"
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return {source.qualname: source for source in parse_file(path)}

    return parse


BODY = """
    @staticmethod
    def forward(ctx, x): return x
    @staticmethod
    def backward(ctx, g): return g
"""


@pytest.mark.parametrize(
    ("imports", "base"),
    [
        ("import torch", "torch.autograd.Function"),
        ("import torch.autograd", "torch.autograd.Function"),
        ("import torch.autograd as ag", "ag.Function"),
        ("from torch import autograd", "autograd.Function"),
        ("from torch.autograd import Function", "Function"),
        ("from torch.autograd import Function as F", "F"),
        ("from torch.autograd.function import InplaceFunction", "InplaceFunction"),
        ("import torch\nBase = torch.autograd.Function", "Base"),
        ("from torch.autograd import *", "Function"),
        ("from .compat import Function", "Function"),
    ],
)
def test_function_is_recognised_by_any_spelling_of_its_base(parse, imports, base):
    assert list(parse(f"{imports}\nclass Op({base}):{BODY}")) == ["Op"]


@pytest.mark.parametrize(
    ("imports", "base"),
    [("import sympy", "sympy.Function"), ("from chainer import Function", "Function"), ("", "object")],
)
def test_unrelated_function_classes_are_ignored(parse, imports, base):
    assert parse(f"{imports}\nclass Op({base}):{BODY}") == {}


def test_bases_within_the_file_are_followed(parse):
    found = parse(
        """
        from torch.autograd import Function
        class Mixin:
            @staticmethod
            def backward(ctx, g): return g
        class Base(Function):
            @staticmethod
            def forward(ctx, x): return x
        class Op(Mixin, Base):
            @staticmethod
            def jvp(ctx, t): return t
        """
    )
    assert list(found) == ["Base", "Op"]
    assert set(found["Op"].methods) == {"forward", "backward", "jvp"}
    assert set(found["Base"].methods) == {"forward"}
    assert not found["Op"].inherits


def test_base_from_another_module_is_marked(parse, tmp_path):
    found = parse(f"from torch.autograd import Function\nfrom lib import Mixin\nclass Op(Mixin, Function):{BODY}")
    assert found["Op"].inherits
    path = tmp_path / "derived.py"
    path.write_text("from .ops import Op\nclass More(Op):\n    pass\n")
    assert parse_file(path) == []
    (more,) = parse_file(path, known={"Op"})
    assert more.inherits
    assert more.defines("forward")


def test_nested_classes_are_found_with_their_factories(parse):
    found = parse(
        """
        import torch
        class Layer(torch.nn.Module):
            class Op(torch.autograd.Function): pass
            def make(self):
                def inner():
                    class Deep(torch.autograd.Function): pass
        """
    )
    assert list(found) == ["Layer.Op", "Layer.make.<locals>.inner.<locals>.Deep"]
    assert found["Layer.Op"].factories == ()
    assert found["Layer.make.<locals>.inner.<locals>.Deep"].factories == ("make", "inner")


def test_source_has_decorators_and_docstring(parse):
    source = parse('import torch\n\n@wrap(\n  1)\nclass Op(torch.autograd.Function):\n    """Squares."""\n    x = 1\n')[
        "Op"
    ]
    assert (source.line, source.node.lineno, source.end_line) == (3, 5, 7)
    assert source.docstring == "Squares."
    assert source.assigned == {"x"}


def test_allow_comments_need_a_reason(parse):
    source = parse(
        """
        import torch
        x = 1  # pullback: allow[not-mine] this line has code before it
        # pullback: allow[wrong-vjp] on purpose, see the paper
        # pullback: allow[above] stacked
        class Op(torch.autograd.Function):
            text = "# pullback: allow[in-a-string] no comment at all"
            # pullback: allow[a, b]: two of them
            # pullback: allow[no-reason]
            x = 1  # pullback: allow[] names none
        # pullback: allow[below] too late
        """
    )["Op"]
    assert source.allow == {
        "wrong-vjp": "on purpose, see the paper",
        "above": "stacked",
        "a": "two of them",
        "b": "two of them",
    }
    assert source.allow_without_reason == (9, 10)


def test_call_sites_have_their_enclosing_functions(parse):
    source = parse(
        """
        import torch
        class Op(torch.autograd.Function):
            @classmethod
            def call(cls, x): return cls.apply(x, 1)
        op = Op.apply
        class Layer:
            def __init__(self): self.op = Op.apply
            def forward(self, x): return self.op(x, 2)
        def f(x): return Op.apply(x, 3, other=4)
        def outer(scale):
            def inner(x): return Op.apply(x, scale, 5, 6)
        op(torch.ones(3))
        Other.apply(5)
        """
    )["Op"]
    seen = [
        (len(site.arguments), [f.name for f in site.functions], site.inside_class and site.inside_class.name)
        for site in source.call_sites
    ]
    assert seen == [
        (2, ["call"], "Op"), (2, ["forward"], "Layer"), (2, ["f"], None), (4, ["inner", "outer"], None), (1, [], None),
    ]  # fmt: skip


def test_declared_encoding_is_used(tmp_path):
    path = tmp_path / "latin.py"
    text = f'# -*- coding: latin-1 -*-\nimport torch\nclass Op(torch.autograd.Function):\n    """Größe"""{BODY}'
    path.write_bytes(text.encode("latin-1"))
    assert parse_file(path)[0].docstring == "Größe"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"x = (\n", r"bad\.py:1 is not valid Python: "),
        (b"x = 1\n\ndef f(:\n", r"bad\.py:3 is not valid Python: "),
        (b"x = '\xff'\n", r"bad\.py is not valid Python: "),
        (b"x = 1\x00\n", r"bad\.py.* is not valid Python: "),
    ],
)
def test_invalid_python_is_refused(tmp_path, content, message):
    path = tmp_path / "bad.py"
    path.write_bytes(content)
    with pytest.raises(TargetError, match=message):
        parse_file(path)


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(TargetError, match=r"cannot read .*gone\.py: No such file"):
        parse_file(tmp_path / "gone.py")


def test_deeply_nested_expressions_are_parsed(parse):
    assert parse("x = " + " + ".join(["1"] * 900)) == {}


class Square(torch.autograd.Function):
    """x²."""

    # pullback: allow[some-rule] for the test
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0] * g


class Inherits(Square):
    pass


def make(k):
    class Op(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return k * x

    return Op


def test_source_of_a_class():
    source = source_of(Square)
    assert source is not None
    assert (source.name, source.file, source.docstring) == ("Square", __file__, "x².")
    assert source.allow == {"some-rule": "for the test"}
    assert source_of(Square) == parse_file(__file__)[0]


def test_source_of_a_class_that_inherits_its_methods():
    source = source_of(Inherits)
    assert source is not None
    assert source.qualname == "Inherits"
    assert set(source.methods) == {"forward", "backward"}


def test_source_of_a_class_in_a_function():
    source = source_of(make(2))
    assert source is not None
    assert (source.qualname, source.factories) == ("make.<locals>.Op", ("make",))


def test_source_of_one_of_two_classes_with_the_same_name(tmp_path, monkeypatch):
    path = tmp_path / "twice.py"
    path.write_text(f"import torch\nif True:\n  class Op(torch.autograd.Function):{BODY}\nelse:\n  class Op:{BODY}")
    namespace: dict = {"__name__": "twice"}
    exec(compile(path.read_text(), str(path), "exec"), namespace)
    source = source_of(namespace["Op"])
    assert source is not None
    assert source.line == 3


def test_source_of_a_class_in_a_notebook():
    text = f"import torch\nclass Cell(torch.autograd.Function):{BODY}"
    linecache.cache["<ipython-input-7>"] = (
        len(text),
        None,
        text.splitlines(keepends=True),
        "<ipython-input-7>",
    )
    namespace: dict = {"__name__": "__main__"}
    exec(compile(text, "<ipython-input-7>", "exec"), namespace)
    source = source_of(namespace["Cell"])
    assert source is not None
    assert (source.file, source.line, set(source.methods)) == (
        "<ipython-input-7>",
        2,
        {"forward", "backward"},
    )


def test_source_is_none_without_a_file():
    namespace: dict = {"__name__": "nowhere"}
    exec(f"import torch\nclass Op(torch.autograd.Function):{BODY}", namespace)
    assert source_of(namespace["Op"]) is None
    assert source_of(torch.sin) is None
    assert source_of(lambda x: x) is None


class Layer(torch.nn.Module):
    def forward(self, x):
        return x

    def other(self, x):
        return x


@functools.lru_cache
def decorated(x):
    return x


@torch.library.custom_op("pullback_test_source::copy", mutates_args=())
def copy_op(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@pytest.mark.parametrize(
    ("obj", "qualname"),
    [
        (make, "make"),
        (decorated, "decorated"),
        (functools.partial(make, 2), "make"),
        (Layer(), "Layer.forward"),
        (Layer().other, "Layer.other"),
        (Square.forward, "Square.forward"),
        (copy_op, "copy_op"),
    ],
)
def test_source_of_a_callable(obj, qualname):
    source = source_of(obj)
    assert source is not None
    assert source.qualname == qualname
    assert list(source.methods) == ["forward"]
    assert source.methods["forward"] is source.node

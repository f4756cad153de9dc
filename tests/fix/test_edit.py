"""Insertion of a new backward into the author's source; all other lines stay."""

import difflib
import textwrap

import pytest

from pullback.fix.edit import with_backwards
from pullback.fix.patch import CannotFixError, NewBackward, SavedValue

X = SavedValue("tensor", "input", 0, "x")
Y = SavedValue("tensor", "input", 1, "y")
OUT = SavedValue("tensor", "output", 0, "out")
SQUARE = NewBackward(("ctx", "g"), ("(x,) = ctx.saved_tensors", "return 2 * g * x"), (X,))

OLD = '''\
# A header, kept.
import torch
from torch.autograd.function import once_differentiable


class Square(torch.autograd.Function):
    """x²."""   # two spaces more than need be

    @staticmethod
    def forward( ctx,x ):
        # what is saved
        ctx.save_for_backward(x*x)  # for later
        return x*x   # squared

    # the backward
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        """Of the square."""
        (s,) = ctx.saved_tensors
        return g * s
        # the end of it


last = [ 1,2 ]
'''


def change(source, **derived):
    return with_backwards(textwrap.dedent(source).encode(), derived).decode()


def lines_of(before, after):
    """The lines removed and the lines added."""
    lines = list(difflib.ndiff(before.splitlines(), after.splitlines()))
    return [line[2:] for line in lines if line[0] == "-"], [line[2:] for line in lines if line[0] == "+"]


def test_edit_changes_only_replaced_lines():
    gone, new = lines_of(OLD, change(OLD, Square=SQUARE))
    assert gone == [
        "        ctx.save_for_backward(x*x)  # for later",
        "    @once_differentiable",
        "        (s,) = ctx.saved_tensors",
        "        return g * s",
    ]
    assert new == [
        "        ctx.save_for_backward(x)  # for later",
        "        (x,) = ctx.saved_tensors",
        "        return 2 * g * x",
    ]


def test_empty_edit_keeps_bytes():
    for source in (OLD.encode(), OLD.replace("\n", "\r\n").encode(), b"\xef\xbb\xbf" + OLD.encode()):
        assert with_backwards(source, {}) == source


def test_edit_keeps_encoding_line_endings_and_indentation():
    text = "# -*- coding: latin-1 -*-\n# \xe9\n" + OLD.replace("    ", "\t")
    source = text.replace("\n", "\r\n").encode("latin-1")
    new = with_backwards(source, {"Square": SQUARE})
    assert new.startswith(b"# -*- coding: latin-1 -*-\r\n# \xe9\r\n")
    assert b"\r\n\t\treturn 2 * g * x\r\n" in new
    assert new.count(b"\n") == new.count(b"\r\n")


def test_edit_is_idempotent():
    once = with_backwards(OLD.encode(), {"Square": SQUARE})
    assert with_backwards(once, {"Square": SQUARE}) == once


NEW_STYLE = """
    import torch

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(x, y):
            return x * y

        @staticmethod
        def setup_context(ctx, inputs, output):
            {}

        @staticmethod
        def backward(ctx, g):
            return g, g
"""
BOTH = NewBackward(("ctx", "g"), ("x, y = ctx.saved_tensors", "return g * y, g * x"), (X, Y))


@pytest.mark.parametrize(
    ("setup", "saved"),
    [
        ("ctx.save_for_backward(*inputs)", "ctx.save_for_backward(*inputs)"),
        ("ctx.save_for_backward(output)", "ctx.save_for_backward(inputs[0], inputs[1])"),
        ("a, b = inputs; ctx.save_for_backward(a)", "a, b = inputs\n        ctx.save_for_backward(a, b)"),
        ("a, ctx.b = inputs", "a, ctx.b = inputs\n        ctx.save_for_backward(a, ctx.b)"),
        (
            "ctx.save_for_backward(output); a, b = inputs",
            "a, b = inputs\n        ctx.save_for_backward(inputs[0], inputs[1])",
        ),
        ("pass", "pass\n        ctx.save_for_backward(inputs[0], inputs[1])"),
    ],
)
def test_setup_context_saves_under_its_own_names(setup, saved):
    assert f"        {saved}\n" in change(NEW_STYLE.format(setup), Scaled=BOTH)


def test_outputs_are_saved_by_name_or_index():
    derived = NewBackward(("ctx", "g"), ("(out,) = ctx.saved_tensors", "return g * out, g"), (OUT,))
    assert "ctx.save_for_backward(output)" in change(NEW_STYLE.format("ctx.save_for_backward(*inputs)"), Scaled=derived)
    second = NewBackward(derived.parameters, derived.body, (SavedValue("tensor", "output", 1, "out_1"),))
    assert "ctx.save_for_backward(output[1])" in change(NEW_STYLE.format("pass"), Scaled=second)


FORWARD = """
    import torch

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            {}

        @staticmethod
        def backward(ctx, g): return g{}
"""


def forward_of(body, derived=SQUARE, more=""):
    new = change(FORWARD.format(textwrap.indent(textwrap.dedent(body), " " * 12).strip(), more), Square=derived)
    return textwrap.dedent(new.partition("x):\n")[2].partition("\n\n")[0])


def test_input_is_saved_before_it_is_rebound():
    body = '"""Twice."""\nx = x + 1\nctx.save_for_backward(x)\nreturn x'
    assert forward_of(body) == '"""Twice."""\nctx.save_for_backward(x)\nx = x + 1\nreturn x'


def test_output_is_saved_after_it_is_assigned():
    body = "ctx.save_for_backward(x)\nout = x * x\nreturn out"
    derived = NewBackward(("ctx", "g"), ("(out,) = ctx.saved_tensors", "return g"), (OUT,))
    assert forward_of(body, derived) == "out = x * x\nctx.save_for_backward(out)\nreturn out"


def test_attributes_of_the_old_backward_alone_are_removed():
    body = "ctx.a = x.shape\nctx.set_materialize_grads(False)\nif x.dim():\n    ctx.b = 1\nctx.c = 2\nreturn x * ctx.c"
    kept = "ctx.save_for_backward(x)\nif x.dim():\n    pass\nctx.c = 2\nreturn x * ctx.c"
    assert forward_of(body) == kept


def test_comments_of_removed_lines_stay():
    body = "# the shape\nctx.a = x.shape\nctx.save_for_backward(x)\nreturn x\n# done"
    assert forward_of(body) == "# the shape\nctx.save_for_backward(x)\nreturn x\n# done"


def test_attribute_used_by_another_method_is_not_overwritten():
    derived = NewBackward(SQUARE.parameters, SQUARE.body, (SavedValue("shape", "input", 0, "x", "x_shape"),))
    jvp = "\n\n        @staticmethod\n        def jvp(ctx, t): return t * ctx.x_shape"
    with pytest.raises(CannotFixError, match=r"ctx\.x_shape has another use"):
        forward_of("ctx.x_shape = 3\nreturn x", derived, jvp)
    assert "ctx.x_shape = x.shape" in forward_of("return x", derived)


def test_missing_torch_import_is_added_and_missing_f_alias_expanded():
    derived = NewBackward(("ctx", "g"), ("return torch.exp(g) * F.elu(g)",), ())
    source = FORWARD.format("return x", "").replace("import torch", "from torch.autograd import Function")
    new = change(source.replace("torch.autograd.Function", "Function"), Square=derived)
    assert new.lstrip().startswith("from torch.autograd import Function\nimport torch\n")
    assert "torch.exp(g) * torch.nn.functional.elu(g)" in new
    known = FORWARD.format("return x", "").replace("import torch", "import torch\n    import torch.nn.functional as F")
    assert "torch.exp(g) * F.elu(g)" in change(known, Square=derived)
    assert change(known, Square=derived).count("import torch\n") == 1


def test_class_is_found_by_qualified_name():
    inner = "class Outer:\n" + textwrap.indent(OLD.partition("\n\n\n")[2], "    ")
    assert "return 2 * g * x" in with_backwards(inner.encode(), {"Outer.Square": SQUARE}).decode()
    with pytest.raises(CannotFixError, match="defines Square 2 times"):
        with_backwards((OLD + OLD).encode(), {"Square": SQUARE})
    with pytest.raises(CannotFixError, match="defines Square 0 times"):
        with_backwards(inner.encode(), {"Square": SQUARE})


def test_mismatched_signature_is_replaced():
    source = OLD.replace("def backward(ctx, g):", "def backward(ctx, *gs):")
    assert "def backward(ctx, g):" in change(source, Square=SQUARE)

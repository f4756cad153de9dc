"""Which statements of a forward move to `setup_context`, which stay, and which forwards cannot be split."""

import textwrap

import pytest

from pullback.fix.patch import CannotFixError, NewStyle
from pullback.fix.setup_context import with_new_styles

from .sources import op


def split(body, takes="ctx, x", plain=(), **more):
    """The bodies of the new forward and of setup_context, and the parameters of setup_context."""
    new = with_new_styles(op(body, takes, **more).encode(), {"Op": NewStyle(tuple(plain))}).decode()
    forward, _, rest = new.partition("    @staticmethod\n    def setup_context")
    head, _, setup = rest.partition(":\n")
    first, _, forward = forward.partition("    def forward")[2].partition(":\n")
    assert first == f"({takes.partition(',')[2].strip()})"
    setup = setup.partition("\n\n    @staticmethod\n    def backward")[0]
    return textwrap.dedent(forward).strip(), textwrap.dedent(setup).strip(), head


@pytest.mark.parametrize(
    ("takes", "body", "setup"),
    [
        ("ctx, x", "ctx.save_for_backward(x)\nreturn x", "(x,) = inputs\nctx.save_for_backward(x)"),
        ("ctx, x, y", "ctx.save_for_backward(y)\nreturn x", "_, y = inputs\nctx.save_for_backward(y)"),
        ("ctx, x, y", "ctx.save_for_backward(x)\nreturn x", "x, _ = inputs\nctx.save_for_backward(x)"),
        ("ctx, x, y, z", "ctx.save_for_backward(x)\nreturn x", "x, *_ = inputs\nctx.save_for_backward(x)"),
        ("ctx, *xs", "ctx.save_for_backward(*xs)\nreturn xs[0]", "xs = inputs\nctx.save_for_backward(*xs)"),
        ("ctx, x, *xs", "ctx.n = len(xs)\nreturn x", "xs = inputs[1:]\nctx.n = len(xs)"),
        (
            "ctx, x, *xs",
            "ctx.save_for_backward(x, *xs)\nreturn x",
            "x, *_ = inputs\nxs = inputs[1:]\nctx.save_for_backward(x, *xs)",
        ),
        ("ctx, x, *, k=1", "ctx.save_for_backward(x)\nreturn x * k", "(x,) = inputs\nctx.save_for_backward(x)"),
        ("ctx, x", "return -x", "pass"),
        ("ctx, x", "ctx.mark_non_differentiable()\nreturn x", "ctx.mark_non_differentiable()"),
    ],
)
def test_saved_inputs_are_unpacked_in_setup_context(takes, body, setup):
    forward, new, head = split(body, takes)
    assert (new, head) == (setup, "(ctx, inputs, output)")
    assert forward == body.rpartition("\n")[2]


def test_context_keeps_its_name_and_no_parameter_is_shadowed():
    source = op("self.save_for_backward(inputs)\nreturn inputs + output", "self, inputs")
    new = with_new_styles(source.encode(), {"Op": NewStyle()}).decode()
    assert "def forward(inputs):" in new
    assert "def setup_context(self, inputs_, output_):\n        (inputs,) = inputs_\n" in new
    assert "def forward(x):" in with_new_styles(op("return x", "ctx, /, x").encode(), {"Op": NewStyle()}).decode()
    assert (
        "def forward(x, /, y):" in with_new_styles(op("return x", "ctx, x, /, y").encode(), {"Op": NewStyle()}).decode()
    )


def test_setup_context_takes_outputs_by_name():
    body = "y = x.exp()\nctx.save_for_backward(y)\nreturn y"
    assert split(body) == ("y = x.exp()\nreturn y", "ctx.save_for_backward(y)", "(ctx, inputs, y)")
    body = "y = x.exp()\nm = y > 1\nctx.mark_non_differentiable(m)\nctx.save_for_backward(x, m)\nreturn y, m"
    assert split(body)[1:] == (
        "(x,) = inputs\n_, m = output\nctx.mark_non_differentiable(m)\nctx.save_for_backward(x, m)",
        "(ctx, inputs, output)",
    )
    body = "x += 1\nctx.mark_dirty(x)\nreturn x"
    assert split(body) == ("x += 1\nreturn x", "ctx.mark_dirty(x)", "(ctx, inputs, x)")


def test_statements_for_the_backward_alone_move_to_setup_context():
    body = "mask = x > 0  # where\nctx.save_for_backward(mask)\nreturn x.clamp(min=0)"
    assert split(body)[:2] == (
        "return x.clamp(min=0)",
        "(x,) = inputs\nmask = x > 0  # where\nctx.save_for_backward(mask)",
    )
    assert split("ctx.save_for_backward(torch.sign(x))\nreturn x.abs()")[1].endswith("(torch.sign(x))")


def test_sizes_and_numbers_are_computed_in_both_methods():
    body = "# rows\nn, m = x.shape  # of it\nscale = k / n\nctx.scale = scale\nctx.m = m\nreturn x.sum() * scale"
    forward, setup, _ = split(body, "ctx, x, k", ["k"], gives="g, None")
    assert forward == "# rows\nn, m = x.shape  # of it\nscale = k / n\nreturn x.sum() * scale"
    assert setup == "x, k = inputs\nn, m = x.shape\nscale = k / n\nctx.scale = scale\nctx.m = m"
    with pytest.raises(CannotFixError, match="it saves scale, which is neither an input nor an output"):
        split(body, "ctx, x, k", gives="g, None")  # k may be a tensor


def test_conditional_save_moves_as_a_whole():
    body = "if ctx.needs_input_grad[0]:\n    ctx.save_for_backward(x)\nelse:\n    pass\nreturn x * y"
    assert split(body, "ctx, x, y")[1] == (
        "x, _ = inputs\nif ctx.needs_input_grad[0]:\n    ctx.save_for_backward(x)\nelse:\n    pass"
    )


def test_statements_on_one_line_are_separated():
    assert split("ctx.k = 2; y = x * 2; ctx.save_for_backward(y)  # all\nreturn y")[:2] == (
        "y = x * 2  # all\nreturn y",
        "ctx.k = 2; ctx.save_for_backward(y)",
    )
    one_line = "class Op(Function):\n    def forward(ctx, x): ctx.k = 2; return x\n    def backward(ctx, g): return g\n"
    new = with_new_styles(one_line.encode(), {"Op": NewStyle()}).decode()
    assert "    def forward(x):\n        return x\n" in new
    assert "    def setup_context(ctx, inputs, output):\n        ctx.k = 2\n" in new


def test_context_attribute_read_by_the_forward_becomes_its_value():
    forward, setup, _ = split("ctx.dim = dim\nreturn x.sum(ctx.dim)", "ctx, x, dim", gives="g, None")
    assert (forward, setup) == ("return x.sum(dim)", "_, dim = inputs\nctx.dim = dim")


def test_size_read_from_the_context_is_computed_in_both_methods():
    forward, setup, _ = split("d = x.dim()\nctx.d = d\nreturn x * ctx.d")
    assert (forward, setup) == ("d = x.dim()\nreturn x * d", "(x,) = inputs\nd = x.dim()\nctx.d = d")


def test_name_assigned_in_a_moved_block_is_available_to_later_statements():
    body = "if x.dim():\n    n = 2\n    ctx.n = n\nctx.m = n\nreturn x"
    assert split(body)[:2] == ("return x", "(x,) = inputs\n" + body.removesuffix("\nreturn x"))


def test_forward_without_context_parameter_is_refused():
    with pytest.raises(CannotFixError, match="has no parameter for the context"):
        split("return args[1]", "*args")


def test_several_returns_after_the_saves_are_accepted():
    body = "ctx.save_for_backward(x)\nif k:\n    return x\nreturn x * 2"
    assert split(body, "ctx, x, k", gives="g, None")[1] == "x, _ = inputs\nctx.save_for_backward(x)"


def test_returns_of_nested_functions_are_ignored():
    body = "def twice(t):\n    return t * 2\nctx.save_for_backward(x)\nreturn twice(x)"
    assert split(body)[0] == "def twice(t):\n    return t * 2\nreturn twice(x)"


REFUSED = {
    "an intermediate": ("s = x.sin()\nctx.save_for_backward(s)\nreturn s * s", "it saves s, which is neither"),
    "an intermediate on ctx": ("ctx.s = s = x.sin()\nreturn s * s", "it saves s, which is neither an input nor"),
    "a name from a condition": ("if k:\n    s = 2\n    ctx.s = s\nreturn x * s", "it saves s, which is neither"),
    "a name with another value": ("s = 1\nif k:\n    s = 2\n    ctx.s = s\nreturn x", "it assigns s where it saves"),
    "an input with another value": ("x = x.contiguous()\nctx.save_for_backward(x)\nreturn x * 2", "after rebinding it"),
    "an input before and after": (
        "ctx.n = x.shape\nx = x * 2\nctx.save_for_backward(x)\nreturn x",
        "before and after",
    ),
    "an output that changes later": ("y = x * 2\nctx.save_for_backward(y)\ny = y + 1\nreturn y", "nor computed by one"),
    "a loop": (
        "for i in range(2):\n    y = x * i\nctx.save_for_backward(y)\nreturn x",
        "nor computed by one statement",
    ),
    "an early return": (
        "if x.dim():\n    return x\nctx.save_for_backward(x)\nreturn x * 2",
        "depends on where it returns",
    ),
    "a return in between": (
        "if x.dim():\n    ctx.save_for_backward(x)\n    return x\nreturn x",
        "in the middle of other code",
    ),
    "with": ("with torch.no_grad():\n    ctx.save_for_backward(x)\nreturn x * 2", "in the middle of other code"),
    "a helper": ("keep(ctx, x)\nreturn x * 2", "uses ctx as a whole"),
    "setattr": ("setattr(ctx, 'x', x)\nreturn x * 2", "uses ctx as a whole"),
    "another name": ("c = ctx\nc.save_for_backward(x)\nreturn x * 2", "uses ctx as a whole"),
    "an unknown attribute": ("return x * ctx.k", "reads ctx.k"),
    "set after use": ("y = x * ctx.k\nctx.k = 2\nreturn y", "reads ctx.k"),
    "a computed attribute": ("ctx.k = x.sum()\nreturn x * ctx.k", "reads ctx.k"),
    "an attribute set twice": ("ctx.k = x\ny = ctx.k * 2\nctx.k = y\nreturn y", "reads ctx.k and assigns it again"),
    "an alias with another value": ("ctx.k = x\nx = x * 2\nreturn x * ctx.k", "rebinds x"),
    "an attribute set twice before": ("ctx.k = x\nctx.k = x\nreturn x * ctx.k", "reads ctx.k"),
    "two lines": ("s = x.dim()\ns = s + 1\nctx.s = s\nreturn x", "nor computed by one statement"),
    "a size kept as it is named": ("ctx.n = n = x.dim()\nreturn x * n", "it saves n, which is neither"),
    "a return inside of the last": (
        "y = x * 2\nctx.save_for_backward(y)\nif x.dim():\n    return y",
        "it saves y, which",
    ),
    "a changed attribute": ("ctx.k = 1\nctx.k += 1\nreturn x", "changes ctx.k"),
    "needs_input_grad": ("return x * 2 if ctx.needs_input_grad[0] else x", "reads ctx.needs_input_grad"),
    "an unknown method": ("ctx.mark_shared_storage((x, x))\nreturn x", "reads ctx.mark_shared_storage"),
    "random numbers": ("ctx.save_for_backward(torch.rand_like(x))\nreturn x * 2", "may have another value later"),
    "an unknown function": ("ctx.save_for_backward(kernel(x))\nreturn x * 2", "may have another value later"),
    "a method of an object": ("ctx.save_for_backward(cache.get(x))\nreturn x * 2", "may have another value later"),
    "work in place": ("m = x > 0\nctx.save_for_backward(m)\nx.relu_()\nreturn x", "writes in place afterwards"),
    "super": ("ctx.save_for_backward(x)\nreturn super().forward(ctx, x)", "uses super"),
    "locals": ("ctx.save_for_backward(x)\nreturn x * locals()['x']", "uses locals"),
    "a keyword": ("ctx.k = k\nreturn x", "it saves k, a keyword argument"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_inseparable_forward_is_refused(name):
    body, why = REFUSED[name]
    with pytest.raises(CannotFixError, match=why):
        split(body, "ctx, x, *, k=1" if name == "a keyword" else "ctx, x")


def test_forward_with_amp_decorator_is_refused():
    for decorator in ("@staticmethod\n    @custom_fwd", "@staticmethod\n    @torch.amp.custom_fwd(device_type='cuda')"):
        with pytest.raises(CannotFixError, match="decorated with custom_fwd"):
            split("return x", decorator=decorator)
    assert split("return x", decorator="@staticmethod\n    @torch.no_grad()")[0] == "return x"


def test_defaults_need_one_gradient_per_argument():
    for gives in ("g", "(g, None)[:1]", "gradients", "(*gs, None)"):
        with pytest.raises(CannotFixError, match="default arguments"):
            split("return x", "ctx, x, k=2", gives=gives)
    assert split("return x", "ctx, x, k=2", gives="g, None")[1] == "pass"

"""The HTML representation of ops in notebooks."""

import xml.etree.ElementTree as ElementTree

import torch

import pullback


@pullback.function(derivative_of=torch.nn.functional.hardtanh)
def sign(input):
    return torch.sign(input)


@pullback.function
def clipped(x, bound: float = 1.0):
    return x.clone()


@clipped.vjp(linear=False)
def _(g, out, x, bound):
    return g.clamp(-bound, bound), None


def shown(op):
    """Return the caption of an op's table and its rows."""
    root = ElementTree.fromstring(op._repr_html_())
    rows = {row.find("th").text: row.find("td").text for row in root.iter("tr")}
    return root.find("caption/code").text, rows


def test_derived_op_shows_stable_forms_after_the_first_call():
    def fresh(x):
        return torch.log(torch.sigmoid(x))

    with pullback.backend("eager"):
        op = pullback.function(fresh)
        caption, before = shown(op)
        op(torch.ones(3, requires_grad=True))
        _, after = shown(op)
    assert caption.endswith("fresh(x)")
    assert before["stable forms"].startswith("none known yet")
    assert after == {
        "derivative": "of the formula",
        "higher orders": "all",
        "stable forms": "float32",
        "kernels": "eager",
    }


def test_op_with_stable_false_says_so():
    assert shown(pullback.function(stable=False)(lambda x: x.exp()))[1]["stable forms"] == "none: stable=False"


def test_relaxed_op_names_its_relaxation():
    _, rows = shown(sign)
    assert rows["derivative"] == "of hardtanh"
    assert "stable forms" not in rows


def test_ruled_op_names_its_rule():
    caption, rows = shown(clipped)
    assert caption == "clipped(x, bound: float = 1.0)"
    assert rows["derivative"] == "given by its vjp"
    without = pullback.function(residuals=True)(lambda x: (x, x))
    assert shown(without)[1]["derivative"].startswith("not given yet")


def test_names_are_escaped():
    op = pullback.function(lambda x, tag="<script>alert(1)</script>": x.exp())
    assert "<script" not in op._repr_html_()
    assert "<script>alert(1)</script>" in shown(op)[0]
    assert "<lambda>" in shown(op)[0]

"""Which parts a formula is cut into, and which formulas are not cut."""

import pytest
import torch
import torch.nn.functional as F

import pullback
from pullback.errors import FormulaError
from pullback.stable.parts import Cut

float32 = torch.float32


def softplus_sum(x):
    return torch.log(1 + torch.exp(x)).sum(-1)


def norm_silu(x, w):
    n = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w
    return n / (1 + torch.exp(-n))


def naive_softmax(x):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def attention_entropy(q, k, v):
    p = torch.softmax(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5, -1)
    return p @ v, -(p * torch.log(p)).sum(-1)


def four(x, y, z, w):
    return (torch.log(1 + torch.exp(x * y)) + torch.log(1 + torch.exp(z * w))).sum()


def masked(x, y):
    return torch.where(x > y, torch.log1p(torch.exp(-x)), y).sum()


PARTS = {
    softplus_sum: [("log(exp(x) + 1)", ("x",))],
    norm_silu: [("mul_1 / (exp(-mul_1) + 1)", ("mul_1",))],
    naive_softmax: [("exp(x - amax)", ("x", "amax")), ("exp(x - amax) / sum_1", ("x", "amax", "sum_1"))],
    attention_entropy: [("softmax * log(softmax)", ("softmax",))],
    four: [("log(exp(x * y) + 1)", ("x", "y")), ("log(exp(z * w) + 1)", ("z", "w"))],
    masked: [("where(x > y, log1p(exp(-x)), y)", ("x", "y"))],
}


def shown(formula, dtype=float32):
    cut = Cut(formula)
    cut.require_meant()
    return [(str(part.meaning.term), part.meaning.variables) for part in cut.parts(dtype)]


@pytest.mark.parametrize("formula", PARTS, ids=lambda f: f.__name__)
def test_parts_are_as_large_as_they_can_be(formula):
    assert shown(formula) == PARTS[formula]
    assert shown(formula, torch.bfloat16) == PARTS[formula]


def test_a_part_is_named_by_its_formula():
    (part,) = Cut(softplus_sum).parts(float32)
    assert part.function.__name__ == "softplus_sum, part 1: log(exp(x) + 1)"
    x = torch.randn(3)
    assert torch.equal(part.function(x), torch.log(1 + torch.exp(x)))


def test_what_cannot_be_wrong_is_no_part():
    assert shown(lambda x: (x * x).sum().sqrt() + 1) == []
    assert shown(lambda x, y: (x * y).mean(-1)) == []
    assert shown(lambda x: torch.logsumexp(x**2, -1)) == []
    assert len(shown(lambda x: torch.sqrt(x * x + 1).sum())) == 1  # its square overflows


def test_a_value_that_stops_the_gradient_is_an_input_of_a_part():
    assert shown(lambda x: (torch.log(1 + torch.exp(x)) * x.detach()).sum()) == [
        ("log(exp(x) + 1) * detach", ("x", "detach"))
    ]


def test_another_op_is_an_input_of_a_part():
    inner = pullback.function(softplus_sum)
    assert shown(lambda x: torch.log(1 - torch.exp(-inner(x)))) == [("log(1 - exp(-softplus_sum))", ("softplus_sum",))]


def test_a_default_stays_as_it_is():
    def scaled(x, beta=2.0, *, dim=-1):
        return (torch.log(1 + torch.exp(beta * x)) / beta).sum(dim)

    assert shown(scaled) == [("log(exp(x * 2) + 1) / 2", ("x",))]


def with_no_grad(x):
    with torch.no_grad():
        scale = torch.exp(x)
    return (scale * x).sum()


def in_place(x):
    y = x * x
    y += 1
    return torch.log(y).sum()


def by_method_in_place(x):
    return torch.exp(x).add_(1).log().sum()


def by_kind(x):
    return (torch.exp(x) if isinstance(x, torch.Tensor) else torch.sin(x)).sum()


def by_shape(x):
    return torch.exp(x).sum() if x.dim() == 2 else torch.exp(x)


def by_value(x):
    return torch.log(1 + torch.exp(x)).sum() if x.sum() > 0 else x.sum()


def drawing(x):
    return (torch.exp(x) * torch.rand(3)).sum()


def by_size_in_python(x):
    return torch.log(1 + torch.exp(x)).sum() * float(x.shape[-1])


def of_integers(x):
    return F.one_hot(x, 3).sum()


NOT_CUT = {
    with_no_grad: "does not show",
    in_place: "does not show",
    by_method_in_place: "in place, with `add_`",
    by_kind: "does not show",
    by_shape: "for all shapes",
    by_value: "for all shapes",
    drawing: "not among its inputs",
    by_size_in_python: "for all shapes",
    of_integers: "no float tensors",
}


@pytest.mark.parametrize("formula", NOT_CUT, ids=lambda f: f.__name__)
def test_what_is_not_cut_says_why(formula):
    with pytest.raises(FormulaError, match=f"{formula.__name__} .*{NOT_CUT[formula]}"):
        Cut(formula).require_meant()


def test_a_formula_of_any_number_of_tensors_is_not_cut():
    with pytest.raises(FormulaError, match="a fixed number"):
        Cut(lambda *xs: xs[0].sum())

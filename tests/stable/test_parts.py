"""Partition of a formula into pointwise parts with stable forms, and formulas that are not partitioned."""

from itertools import combinations_with_replacement

import mpmath
import pytest
import torch
import torch.nn.functional as F

import pullback
from pullback.errors import FormulaError
from pullback.stable import forms as forms_module
from pullback.stable.certificate import Certificate, Form, cache_path, save
from pullback.stable.derivative import derivative
from pullback.stable.parts import PartitionedFormula
from pullback.stable.piecewise import Piecewise
from tests.forms import certified
from tests.test_relaxed import same_bits

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
    cut = PartitionedFormula(formula)
    cut.require_faithful()
    return [(str(part.meaning.term), part.meaning.variables) for part in cut.parts(dtype)]


@pytest.mark.parametrize("formula", PARTS, ids=lambda f: f.__name__)
def test_parts_are_maximal(formula):
    assert shown(formula) == PARTS[formula]
    assert shown(formula, torch.bfloat16) == PARTS[formula]


def test_part_is_named_by_its_formula():
    (part,) = PartitionedFormula(softplus_sum).parts(float32)
    assert part.function.__name__ == "softplus_sum, part 1: log(exp(x) + 1)"
    x = torch.randn(3)
    assert torch.equal(part.function(x), torch.log(1 + torch.exp(x)))


def test_accurate_pointwise_ops_are_no_part():
    assert shown(lambda x: (x * x).sum().sqrt() + 1) == []
    assert shown(lambda x, y: (x * y).mean(-1)) == []
    assert shown(lambda x: torch.logsumexp(x**2, -1)) == []
    assert len(shown(lambda x: torch.sqrt(x * x + 1).sum())) == 1  # its square overflows


def test_detached_value_is_an_input_of_a_part():
    assert shown(lambda x: (torch.log(1 + torch.exp(x)) * x.detach()).sum()) == [
        ("log(exp(x) + 1) * detach", ("x", "detach"))
    ]


def test_result_of_another_op_is_an_input_of_a_part():
    inner = pullback.function(softplus_sum)
    assert shown(lambda x: torch.log(1 - torch.exp(-inner(x)))) == [("log(1 - exp(-softplus_sum))", ("softplus_sum",))]


def test_default_arguments_are_constants():
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
def test_unsupported_formula_raises_and_says_why(formula):
    with pytest.raises(FormulaError, match=f"{formula.__name__} .*{NOT_CUT[formula]}"):
        PartitionedFormula(formula).require_faithful()


def test_variadic_formula_raises():
    with pytest.raises(FormulaError, match="a fixed number"):
        PartitionedFormula(lambda *xs: xs[0].sum())


SOFTPLUS = {
    (): "otherwise: softplus(x)",
    ("x",): "otherwise: sigmoid(x)",
    ("x", "x"): "otherwise: sigmoid(x) * sigmoid(-x)",
}
BCE = {
    (): "otherwise: y * softplus(-x) + (1 - y) * softplus(x)",
    ("x",): "otherwise: (1 - y) * sigmoid(x) - y * sigmoid(-x)",
    ("y",): "otherwise: -x",
    ("x", "x"): "otherwise: sigmoid(x) * sigmoid(-x)",
    ("x", "y"): "otherwise: -1",
    ("y", "y"): "otherwise: 0",
}
SILU = {
    (): "otherwise: mul_1 * sigmoid(mul_1)",
    ("mul_1",): "otherwise: sigmoid(mul_1) * (1 + mul_1 * sigmoid(-mul_1))",
    ("mul_1", "mul_1"): "otherwise: sigmoid(mul_1) * sigmoid(-mul_1) * "
    "(2 + mul_1 * (sigmoid(-mul_1) - sigmoid(mul_1)))",
}
KL = {
    (): "otherwise: p * log1p((p - q) / q)",
    ("p",): "otherwise: log1p((p - q) / q) + 1",
    ("q",): "otherwise: -(p / q)",
    ("p", "p"): "otherwise: 1 / p",
    ("p", "q"): "otherwise: -(1 / q)",
    ("q", "q"): "otherwise: p / q / q",
}


def bce(x, y):
    return (-(y * torch.log(torch.sigmoid(x)) + (1 - y) * torch.log(1 - torch.sigmoid(x)))).mean()


def kl(p, q):
    return (p * (torch.log(p) - torch.log(q))).sum(-1)


def norm_silu_right(x, w):
    return F.silu(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w)


def logs(x):
    return F.logsigmoid(x), F.logsigmoid(-x)


X = torch.tensor([[-100.0, 0.5, 120.0], [30.0, -20.0, 2.0]])
Y = torch.tensor([[0.0, 0.25, 1.0], [1.0, 0.0, 0.5]])
P = torch.tensor([[0.5, 0.2, 0.3], [0.1, 0.6, 0.3]])
Q = P * torch.tensor([1 + 2e-7, 1 - 4e-7, 1.0])
CASES = {
    "softplus, sum": (softplus_sum, [SOFTPLUS], lambda x: F.softplus(x, threshold=800).sum(-1), (X,)),
    "bce, mean": (bce, [BCE], lambda x, y: -(y * logs(x)[0] + (1 - y) * logs(x)[1]).mean(), (X, Y)),
    "norm, silu": (norm_silu, [SILU], norm_silu_right, (X, torch.tensor([80.0, 1.0, 90.0]))),
    "kl, sum": (kl, [KL], kl, (P, Q)),
}
by_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def parted(formula, forms):
    """Return an op that uses forms written by hand for the parts of its formula."""
    op = pullback.function(formula)
    parts = PartitionedFormula(formula).parts(torch.float32)
    op._stable.use(*(certified(part.function, f) for part, f in zip(parts, forms, strict=True)))
    return op


def losses(case):
    """Return two scalar losses of a case's tensors: of the op, and of the float64 reference."""
    formula, forms, right, tensors = case
    op = parted(formula, forms)
    weights = torch.linspace(0.5, 1.5, right(*tensors).numel(), dtype=torch.float64).reshape(right(*tensors).shape)
    return lambda *xs: (op(*xs) * weights.float()).sum(), lambda *xs: (right(*xs) * weights).sum()


def gradients(loss, tensors, create_graph=False):
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    found = torch.autograd.grad(loss(*leaves), leaves, create_graph=create_graph)
    if not create_graph:
        return found
    return torch.autograd.grad(sum((g * c).sum() for c, g in enumerate(found, 1)), leaves, materialize_grads=True)


def assert_right(got, right):
    for a, b in zip(got, right, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=2e-5, atol=1e-12)


def wide(tensors):
    return [x.double() for x in tensors]


@by_case
def test_value_gradient_and_second_derivative_are_accurate(case):
    ours, right = losses(case)
    tensors = case[3]
    assert_right([ours(*tensors)], [right(*wide(tensors))])
    assert_right(gradients(ours, tensors), gradients(right, wide(tensors)))
    assert_right(gradients(ours, tensors, True), gradients(right, wide(tensors), True))


@by_case
def test_derivatives_under_transforms_are_accurate(case):
    ours, right = losses(case)
    tensors = case[3]
    n = tuple(range(len(tensors)))
    expected = gradients(right, wide(tensors))
    assert_right(torch.func.grad(ours, n)(*tensors), expected)
    (tangent,) = torch.func.jvp(lambda x: ours(x, *tensors[1:]), (tensors[0],), (torch.ones_like(tensors[0]),))[1:]
    assert_right([tangent], [expected[0].sum()])
    twice = torch.func.vmap(torch.func.grad(ours, n), in_dims=(0,) * len(n))
    both = [torch.stack([x, x]) for x in tensors]
    assert_right([g[1] for g in twice(*both)], expected)
    hessian = torch.func.hessian(lambda x: ours(x, *tensors[1:]))(tensors[0])
    assert_right([hessian], [torch.func.hessian(lambda x: right(x, *wide(tensors)[1:]))(tensors[0].double())])


@by_case
@pytest.mark.few(2)
def test_compiled_gradients_are_accurate(case):
    ours, right = losses(case)
    tensors = case[3]
    for compiled in (
        torch.compile(ours, backend="aot_eager", fullgraph=True),
        torch.compile(torch.func.grad(ours), backend="aot_eager", fullgraph=True),
    ):
        leaves = [x.clone().requires_grad_() for x in tensors]
        out = compiled(*leaves)
        expected = gradients(right, wide(tensors))
        got = torch.autograd.grad(out, leaves) if not out.dim() else [out]
        assert_right(got, expected[: len(got)])


def test_value_matches_mpmath():
    op = parted(kl, [KL])
    with mpmath.workdps(50):
        pairs = zip(P[0].tolist(), Q[0].tolist(), strict=True)
        exact = mpmath.fsum(mpmath.mpf(p) * mpmath.log(mpmath.mpf(p) / mpmath.mpf(q)) for p, q in pairs)
    assert op(P[0], Q[0]).item() == pytest.approx(float(exact), rel=1e-5)
    assert kl(P[0], Q[0]).item() != pytest.approx(float(exact), rel=0.1)  # as written


def test_certificates_of_parts_are_found_and_shown():
    (part,) = PartitionedFormula(softplus_sum).parts(torch.float32)
    found = certified(part.function, SOFTPLUS)
    save(cache_path(found.key), [found])
    op = pullback.function(softplus_sum)
    assert gradients(lambda x: op(x).sum(), (X,))[0][0, 2] == 1
    assert [c.name for c in op.certificates] == ["softplus_sum, part 1: log(exp(x) + 1)"]
    assert "stable forms of part 1: log(exp(x) + 1) for float32" in op.explain(X)
    with_mean = pullback.function(lambda x: torch.log(1 + torch.exp(x)).mean())  # another formula, the same part
    assert gradients(with_mean, (X,))[0].isfinite().all()
    as_written = pullback.function(stable=False)(softplus_sum)
    assert gradients(lambda x: as_written(x).sum(), (X,))[0][0, 2].isnan()


def test_mask_of_a_part_is_saved_as_bits(native):
    op = parted(lambda x: torch.log(1 + torch.exp(x)).amax(-1), [SOFTPLUS])
    x = torch.randn(64, 64, requires_grad=True)
    assert [(s.name, s.bytes) for s in op.saved(x) if not s.alive] == [("truth values, one bit each", 64 * 64 // 8)]


def test_formulas_are_not_partitioned_without_any_certificate(monkeypatch):
    cut = []
    monkeypatch.setattr(
        "pullback.stable.forms.PartitionedFormula", lambda formula: cut.append(formula) or PartitionedFormula(formula)
    )
    pullback.function(softplus_sum)(X)
    assert not cut
    (part,) = PartitionedFormula(kl).parts(torch.float32)[:1]
    found = certified(part.function, dict.fromkeys(SOFTPLUS, f"otherwise: {part.meaning.term}"))
    cache_path(found.key).parent.mkdir(parents=True)
    pullback.function(softplus_sum)(X)  # an empty folder
    assert not cut
    save(cache_path(found.key), [found])
    pullback.function(softplus_sum)(X)
    assert cut == [softplus_sum]


def test_inputs_of_a_part_are_broadcast():
    def spread(x, y):
        return torch.log(1 + torch.exp(x - y.mean(-1, keepdim=True))).sum(0)

    forms = {
        (): "otherwise: softplus(x - mean)",
        ("x",): "otherwise: sigmoid(x - mean)",
        ("mean",): "otherwise: -sigmoid(x - mean)",
        ("x", "x"): "otherwise: sigmoid(x - mean) * sigmoid(mean - x)",
        ("x", "mean"): "otherwise: -(sigmoid(x - mean) * sigmoid(mean - x))",
        ("mean", "mean"): "otherwise: sigmoid(x - mean) * sigmoid(mean - x)",
    }
    op = parted(spread, [forms])
    for shape in ((3,), (4, 3), (2, 4, 3), ()):
        x, y = torch.randn(shape), torch.randn(4, 3)
        assert op(x, y).shape == spread(x, y).shape
        torch.testing.assert_close(
            gradients(lambda *xs: op(*xs).sum(), (x, y)), gradients(lambda *xs: spread(*xs).sum(), (x, y))
        )


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_run_as_written(dtype):
    op, x = parted(softplus_sum, [SOFTPLUS]), torch.randn(4, 3).to(dtype)
    assert same_bits(op(x), softplus_sum(x))


def test_widened_part_runs_as_written():
    def widened(x):
        return torch.log(1 + torch.exp(x.float())).sum(-1)

    (part,) = PartitionedFormula(widened).parts(torch.bfloat16)
    assert part.meaning.variables == ("float_1",)
    forms = {tuple("float_1" for _ in by): text.replace("x", "float_1") for by, text in SOFTPLUS.items()}
    op = pullback.function(widened)
    op._stable.use(certified(part.function, forms, torch.bfloat16))
    assert op.certificates
    x = torch.randn(5).bfloat16()
    assert same_bits(op(x), widened(x))
    assert PartitionedFormula(lambda x: torch.log(1 + torch.exp(x.double())).sum()).parts(torch.float32) == []


def test_certificate_of_another_formula_raises():
    op = pullback.function(kl)
    (part,) = PartitionedFormula(softplus_sum).parts(torch.float32)
    with pytest.raises(FormulaError, match="nor a part of it"):
        op._stable.use(certified(part.function, SOFTPLUS))


@pytest.mark.slow
def test_stabilise_searches_the_parts():
    pytest.importorskip("flint")
    op = pullback.function(lambda x: (1 - torch.sigmoid(x)).mean() + (1 - torch.sigmoid(x)).sum() * 0)  # one part twice
    (found,) = op.stabilise(torch.bfloat16)
    assert found.name == "<lambda>, part 1: 1 - sigmoid(x)"
    assert op.certificates == [found]
    x = torch.tensor([20.0], dtype=torch.bfloat16)
    assert op(x).item() == pytest.approx(2.06e-9, rel=1e-2)


def test_stabilise_without_parts_raises():
    pytest.importorskip("flint")
    with pytest.raises(FormulaError, match="no pointwise part of it can be wrong"):
        pullback.function(lambda x: torch.logsumexp(x**2, -1)).stabilise()
    with pytest.raises(FormulaError, match=r"not cut into parts either: .* in place"):
        pullback.function(lambda x: torch.exp(x).add_(1).sum()).stabilise()


def plainly(part):
    """Return a certificate of a part whose forms are its term and the derivatives of the term."""
    term, names = part.meaning.term, part.meaning.variables
    forms = {}
    for by in (by for n in range(3) for by in combinations_with_replacement(names, n)):
        found = term
        for name in by:
            found = derivative(found, name)
        forms[by] = Form(Piecewise.of(found), "as it is")
    return Certificate(part.function.__name__, str(term), names, "float32", "never", "cpu", "here", forms)


def several(x, y):
    top, place = torch.log1p(x * x).max(-1)
    low, high = torch.exp(-x)[..., :1], torch.log(1 + torch.exp(-x))[..., 1:]
    return {"top": top, "place": place, "pair": (low * torch.sigmoid(y), [high.sum(-1), x.shape[-1]])}


def chosen(x, y):
    kept = torch.where(x > y.mean(), torch.log(1 + torch.exp(x)), torch.tanh(y) * x)
    return kept.masked_fill(kept > 1, 0.5).t().flatten().cumsum(0)


def shared(x, y):
    p = torch.sigmoid(x @ y.t())
    return (p * torch.log(p)).sum(-1) + torch.log1p(-p).mean() - p.detach().exp().sum()


def with_sizes(x, y):
    scaled = torch.exp(-x / x.shape[-1] ** 0.5)
    return (scaled / scaled.sum(-1, keepdim=True)) * F.softplus(y).prod(0) / x.size(0)


def by_methods(x, y):
    return x.exp().log1p().sub(y.sigmoid()).reshape(-1).square().mean() * F.mse_loss(x, y)


def standardised(x, y):
    spread = torch.sqrt(((x - x.mean(-1, keepdim=True)) ** 2).mean(-1, keepdim=True) + 1e-3)
    return F.gelu((x - x.mean(-1, keepdim=True)) / spread * y.exp())


ZOO = [several, chosen, shared, with_sizes, by_methods, standardised]


@pytest.mark.parametrize("formula", ZOO, ids=lambda f: f.__name__)
@pytest.mark.few(2)
def test_formula_with_replaced_parts_computes_the_same(formula, monkeypatch):
    monkeypatch.setattr(
        forms_module, "_require_sound", lambda *certificate: None
    )  # these forms are inaccurate in their tails
    parts = PartitionedFormula(formula).parts(torch.float32)
    op = pullback.function(formula)
    op._stable.use(*map(plainly, parts))
    assert op.certificates
    torch.manual_seed(0)
    x, y = torch.rand(4, 3) + 0.1, torch.rand(4, 3) + 0.1
    layouts = [(x, y), (x.t().contiguous().t(), y), (x[::2], y[::2]), (x[:1].expand(4, 3), y), (x[:0], y[:0])]
    for given in layouts[: 4 if formula is several or formula is with_sizes else 5]:
        assert_same(op(*given), formula(*given))
        loss = floats_of(op), floats_of(formula)
        for create_graph in (False, True):
            got, right = (gradients(f, given, create_graph) for f in loss)
            torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-4, equal_nan=True)
        torch.testing.assert_close(*(torch.func.grad(f)(*given) for f in loss), rtol=1e-4, atol=1e-4, equal_nan=True)


def floats_of(function):
    """Return the sum of the float results of a function."""

    def total(*xs):
        leaves = torch.utils._pytree.tree_leaves(function(*xs))
        return sum(t.sum() * (i + 1) for i, t in enumerate(leaves) if torch.is_tensor(t) and t.is_floating_point())

    return total


def assert_same(got, right):
    """Assert equal structure, shapes and dtypes, and equal numbers up to rounding."""
    (got, spec), (right, expected) = map(torch.utils._pytree.tree_flatten, (got, right))
    assert spec == expected
    for a, b in zip(got, right, strict=True):
        assert type(a) is type(b)
        if torch.is_tensor(b):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)
        else:
            assert a == b


def shares(x):
    e = torch.log(1 + torch.exp(x))
    return e / e.sum(-1, keepdim=True)


def test_inner_part_is_right_where_its_intermediates_are_not_finite():
    op = pullback.function(shares)
    op._stable.use(certified(PartitionedFormula(shares).parts(torch.float32)[0].function, SOFTPLUS))
    x, weights = torch.tensor([-torch.inf, 1.0, 2.0, 90.0]), torch.tensor([1.0, 2.0, -1.0, 3.0])
    right = F.softplus(x.double(), threshold=800) / F.softplus(x.double(), threshold=800).sum()
    for create_graph in (False, True):
        leaf = x.clone().requires_grad_()
        (g,) = torch.autograd.grad((op(leaf) * weights).sum(), leaf, create_graph=create_graph)
        slope = weights.double() - (weights * right).sum()
        wanted = slope * torch.sigmoid(x.double()) / F.softplus(x.double(), threshold=800).sum()
        torch.testing.assert_close(g.detach().double(), wanted, rtol=1e-5, atol=1e-9)


def test_infinite_derivative_of_an_inner_part_stays_infinite():
    def spread(x):
        root = torch.sqrt(x * x + x)
        return root / (1 + root.sum())

    forms = {
        (): "otherwise: sqrt(x * (1 + x))",
        ("x",): "otherwise: (2 * x + 1) / (2 * sqrt(x * (1 + x)))",
        ("x", "x"): "otherwise: -0.25 / (x * (1 + x) * sqrt(x * (1 + x)))",
    }
    op = pullback.function(spread)
    op._stable.use(certified(PartitionedFormula(spread).parts(torch.float32)[0].function, forms))
    assert op(torch.tensor([0.0, 1.0])).isfinite().all()
    x = torch.tensor([0.0, 1.0])
    for ours, right in zip(
        (gradients(lambda x: op(x).sum(), (x,))[0], torch.func.grad(lambda x: op(x).sum())(x)),
        [gradients(lambda x: spread(x).sum(), (x,))[0]] * 2,
        strict=True,
    ):
        assert ours[0] == torch.inf  # as written it is ∞ · 0
        torch.testing.assert_close(ours[1], right[1])

"""Interval bounds in float64, against the oracle."""

import numpy as np
import pytest
import torch

import pullback
from pullback import FormulaError
from pullback.catalog import activations
from pullback.ops.registry import CONDITIONS, OPS
from pullback.stable.certificate import cache_path, save
from pullback.stable.formula import Formula, Quantity
from pullback.stable.intervals import enclose, references
from pullback.stable.oracle.values import exact
from pullback.stable.sampling import sample_points
from pullback.stable.term import Term, parse, var
from tests.forms import LOG_SIGMOID, certified, log_sigmoid_as_written

SAMPLE = {name: x[::41] for name, x in sample_points(["x", "y"], torch.float32).items()}
TENSORS = {name: torch.from_numpy(x) for name, x in SAMPLE.items()}
TWO = {"add", "sub", "mul", "div", "hypot", "pow", "atan2", "maximum", "minimum", "gt", "ge", "lt", "le", "eq", "ne"}
LOGICAL = {"logical_and", "logical_or", "logical_not"}
OPERANDS = {"exact": (var("x"), var("y")), "wide": (parse("x*1.3"), parse("y - 0.7"))}


def of_op(op, a, b):
    """Return a number-valued term that contains an op."""
    if op == "where":
        return Term(op, (parse("x > y"), a, b))
    if op in LOGICAL:
        conditions = (Term("gt", (a, b)), Term("lt", (b, parse("2"))))
        return Term("where", (Term(op, conditions[: 1 if op == "logical_not" else 2]), parse("x"), parse("y + 1")))
    term = Term(op, (a, b) if op in TWO else (a,))
    return Term("where", (term, parse("x"), parse("y + 1"))) if op in CONDITIONS else term


def holds(term):
    """Assert that intervals enclose the oracle's values; return the mask of points bounded to 2⁻³²."""
    (interval,), (truth,) = enclose([term], TENSORS), exact([term], SAMPLE)
    low, high = interval.low.numpy(), interval.high.numpy()
    undefined = np.zeros(len(low), bool) if interval.undefined is None else interval.undefined.numpy()
    known = ~np.isnan(truth.high)
    assert (low <= high).all()
    assert ((low <= truth.high) & (truth.high <= high))[known].all()
    assert not undefined[known | truth.undecided].any()
    with np.errstate(over="ignore", invalid="ignore"):
        return (high - low <= np.abs(truth.high) * 2.0**-32)[known]


@pytest.mark.parametrize("operands", OPERANDS)
@pytest.mark.parametrize("op", OPS)
def test_bounds_of_an_op_enclose_its_values(op, operands):
    settled = holds(of_op(op, *OPERANDS[operands]))
    assert settled.mean() > 0.35 or op == "trigamma"


@pytest.mark.parametrize(
    "text",
    ["1/(1 + exp(-x))", "x*sigmoid(x)*sigmoid(-x)", "where(x > 0, log(x), y/x)", "pow(x, 3)", "pow(x, -2)", "1/3"],
)
def test_bounds_of_a_formula_enclose_its_values(text):
    assert holds(parse(text)).mean() > 0.7


def test_cancellation_widens_the_bounds():
    (interval,) = enclose([parse("exp(x) - 1 - x")], {"x": torch.tensor([1e-12, 1.0], dtype=torch.float64)})
    small, large = (interval.high - interval.low).tolist()
    assert small > 1e-24
    assert large < 1e-13


def test_bounds_of_a_condition_raise():
    with pytest.raises(FormulaError, match="condition"):
        enclose([parse("x > 0")], TENSORS)


POINTS = np.array([-80.5, -9.0, -1.5, -1e-3, 1e-5, 0.3, 2.0, 11.0, 60.0])


@pytest.fixture(autouse=True)
def no_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def found(function, order=1, args=None):
    terms = Formula(function, args).terms(torch.float32, order)
    return terms, references(function, args or {}, terms)


def texts(function, **options):
    return {quantity.by: [str(t) for t in others] for quantity, others in found(function, **options)[1].items()}


def test_references_include_the_rules_forms():
    assert texts(lambda x: torch.log(1 + torch.exp(x))) == {(): ["softplus(x)"], ("x",): ["sigmoid(x)"]}


def test_references_include_a_cached_certificate():
    in_pieces = (
        "x <= -0.5: x - softplus(x)\nx <= 0.5: poly(x, 0, 0, 0.0, 0.0, 0.0, -0.69, 0.5)\notherwise: -softplus(-x)"
    )
    certificate = certified(log_sigmoid_as_written, LOG_SIGMOID | {(): in_pieces})
    save(cache_path(certificate.key), [certificate])
    by_rules, by_certificate = texts(log_sigmoid_as_written)[()]
    assert by_rules == "-softplus(-x)"
    assert by_certificate == "where(x <= (-0.5), x - softplus(x), where(x <= 0.5, log(sigmoid(x)), -softplus(-x)))"


@pytest.mark.parametrize("name", ["gelu", "mish", "sigmoid", "sinc", "softsign", "tanh", "tanhshrink"])
def test_references_from_a_certificate_beside_the_module_equal_the_formula(name):
    terms, others = found(getattr(activations, name), order=2)
    assert any(others.values())
    for quantity, equal in others.items():
        truth, *rest = exact([terms[quantity], *equal], {"x": POINTS})
        for other in rest:
            np.testing.assert_allclose(other.high, truth.high, rtol=1e-9)


def test_references_have_no_polynomials():
    assert "poly" not in str(texts(activations.tanhshrink, order=2))


def test_relaxed_op_has_no_references():
    op = pullback.function(derivative_of=lambda x: torch.log(1 + torch.exp(x)))(lambda x: torch.relu(x))
    assert found(op)[1] == {}


def test_invalid_certificate_file_is_skipped(tmp_path):
    terms = Formula(log_sigmoid_as_written).terms(torch.float32, 0)
    path = cache_path((str(terms[Quantity(0, ())]), ("x",), "float32", "cpu"))
    path.parent.mkdir(parents=True)
    path.write_text("not toml [")
    assert texts(log_sigmoid_as_written, order=0) == {(): ["-softplus(-x)"]}


def test_references_with_non_tensor_parameters():
    def scaled(x, beta):
        return torch.log(1 + torch.exp(beta * x))

    assert texts(scaled, order=0, args={"beta": 2.0}) == {(): ["softplus(x * 2)"]}

"""Other terms of a formula, for bounds in float64: from rules and certificates, equal to its own."""

import numpy as np
import pytest
import torch

import pullback
from pullback.catalog import activations
from pullback.stable.certificate import cached, save
from pullback.stable.formula import Formula, Quantity
from pullback.stable.oracle import exact
from pullback.stable.references import references
from tests.forms import LOG_SIGMOID, certified, log_sigmoid_as_written

POINTS = np.array([-80.5, -9.0, -1.5, -1e-3, 1e-5, 0.3, 2.0, 11.0, 60.0])


@pytest.fixture(autouse=True)
def no_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def found(function, order=1, args=None):
    terms = Formula(function, args).terms(torch.float32, order)
    return terms, references(function, args or {}, terms)


def texts(function, **options):
    return {quantity.by: [str(t) for t in others] for quantity, others in found(function, **options)[1].items()}


def test_those_of_the_rules():
    assert texts(lambda x: torch.log(1 + torch.exp(x))) == {(): ["softplus(x)"], ("x",): ["sigmoid(x)"]}


def test_those_of_a_certificate_in_the_cache():
    in_pieces = (
        "x <= -0.5: x - softplus(x)\nx <= 0.5: poly(x, 0, 0, 0.0, 0.0, 0.0, -0.69, 0.5)\notherwise: -softplus(-x)"
    )
    certificate = certified(log_sigmoid_as_written, LOG_SIGMOID | {(): in_pieces})
    save(cached(certificate.key), [certificate])
    by_rules, by_certificate = texts(log_sigmoid_as_written)[()]
    assert by_rules == "-softplus(-x)"
    assert by_certificate == "where(x <= (-0.5), x - softplus(x), where(x <= 0.5, log(sigmoid(x)), -softplus(-x)))"


@pytest.mark.parametrize("name", ["gelu", "mish", "sigmoid", "sinc", "softsign", "tanh", "tanhshrink"])
def test_those_of_a_certificate_beside_the_module_equal_the_formula(name):
    terms, others = found(getattr(activations, name), order=2)
    assert any(others.values())
    for quantity, equal in others.items():
        truth, *rest = exact([terms[quantity], *equal], {"x": POINTS})
        for other in rest:
            np.testing.assert_allclose(other.high, truth.high, rtol=1e-9)


def test_polynomials_are_none():
    assert "poly" not in str(texts(activations.tanhshrink, order=2))


def test_none_where_the_derivatives_are_of_another_function():
    op = pullback.function(derivative_of=lambda x: torch.log(1 + torch.exp(x)))(lambda x: torch.relu(x))
    assert found(op)[1] == {}


def test_a_file_that_is_none_is_passed_over(tmp_path):
    terms = Formula(log_sigmoid_as_written).terms(torch.float32, 0)
    path = cached((str(terms[Quantity(0, ())]), ("x",), "float32", "cpu"))
    path.parent.mkdir(parents=True)
    path.write_text("not toml [")
    assert texts(log_sigmoid_as_written, order=0) == {(): ["-softplus(-x)"]}


def test_plain_parameters():
    def scaled(x, beta):
        return torch.log(1 + torch.exp(beta * x))

    assert texts(scaled, order=0, args={"beta": 2.0}) == {(): ["softplus(x * 2)"]}

"""Internal faults of Pullback: raised under tests, one warning per op otherwise. User errors are not faults."""

import os
import subprocess
import sys
import warnings

import pytest
import torch

import pullback
from pullback import errors
from pullback.graph import facts, partition
from pullback.ruled import linearity as linear


def formula(x):
    return (x.exp() + 1).log() * x


def fault(*args, **kwargs):
    raise ZeroDivisionError("a fault")


def refusal(*args, **kwargs):
    raise RuntimeError("a fault")


fault.__code__ = fault.__code__.replace(co_filename=errors.__file__)  # as if it were code of Pullback
refusal.__code__ = refusal.__code__.replace(co_filename=errors.__file__)

PLACES = [
    (facts._OpObstacles, "__torch_dispatch__", fault),
    (partition, "_fill_zeros", refusal),
    (partition, "_partitioned", refusal),
]


@pytest.fixture
def lenient(monkeypatch):
    monkeypatch.setenv("PULLBACK_STRICT", "0")
    monkeypatch.setattr(errors, "_reported", set())


@pytest.mark.parametrize(("owner", "name", "broken"), PLACES, ids=["facts", "zeros", "partition"])
def test_fault_is_raised_in_strict_mode(monkeypatch, owner, name, broken):
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(errors.FaultError, match="Error: a fault"):
        pullback.function(stable=False)(formula)(torch.ones(3, requires_grad=True))


@pytest.mark.parametrize(("owner", "name", "broken"), PLACES, ids=["facts", "zeros", "partition"])
def test_fault_warns_once_per_op_and_results_are_right(monkeypatch, lenient, owner, name, broken):
    monkeypatch.setattr(owner, name, broken)
    op = pullback.function(stable=False)(formula)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in (3, 4, 5):
            x = torch.linspace(-2, 2, n, dtype=torch.float64, requires_grad=True)
            ours, theirs = op(x), formula(x)
            assert torch.equal(ours, theirs)
            gradients = [torch.autograd.grad(out.sum(), x)[0] for out in (ours, theirs)]
            torch.testing.assert_close(*gradients, rtol=1e-14, atol=1e-15)
    texts = [str(w.message) for w in caught]
    assert len(texts) == len(set(texts))
    assert 1 <= len(texts) <= 2  # by the op's name, and by the line of the formula where there is no name
    assert all("Please report" in text and "Error: a fault, in " in text for text in texts)


@pytest.mark.parametrize("strict", [True, False])
def test_fault_in_a_linearity_proof_proves_nothing(monkeypatch, strict, lenient):
    monkeypatch.setenv("PULLBACK_STRICT", str(int(strict)))
    monkeypatch.setattr(linear, "_is_additive", fault)
    op = pullback.function(lambda x: x.clone())
    op.vjp(lambda g, out, x: 2 * g)
    x = torch.ones(2)
    if strict:
        with pytest.raises(errors.FaultError):
            torch.func.jvp(op, (x,), (x,))
        return
    with (
        pytest.raises(pullback.DerivativeError, match="cannot be shown"),
        pytest.warns(UserWarning, match="has failed"),
    ):
        torch.func.jvp(op, (x,), (x,))


def raising(x):
    return x * {}["a key of the user's"]


def indivisible(x):
    return x.reshape(7, 7)


@pytest.mark.parametrize(
    ("f", "error"), [(raising, KeyError), (indivisible, RuntimeError), (lambda x: x.nothing, AttributeError)]
)
def test_error_raised_by_a_formula_is_no_fault(f, error):
    with pytest.raises(error):
        pullback.function(f)(torch.ones(3, requires_grad=True))


@pytest.mark.parametrize("f", [lambda x: x[x > 0].sum(), lambda x: torch.nonzero(x) * x.sum(), torch.special.airy_ai])
def test_op_unsupported_by_the_tracer_is_no_fault(f):
    x = torch.ones(3, requires_grad=True)
    assert torch.equal(pullback.function(f)(x), f(x))


def test_subprocesses_of_tests_are_strict():
    done = subprocess.run(
        [sys.executable, "-c", "import os; print(os.environ['PULLBACK_STRICT'])"], capture_output=True
    )
    assert done.stdout.split() == [b"1"]
    assert os.environ["PULLBACK_STRICT"] == "1"

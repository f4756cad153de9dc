"""What is found is judged where it runs."""

import pytest
import torch

import pullback
from pullback.errors import FormulaError, RunnerError
from pullback.stable import precision
from pullback.stable.stabilise import certify


def log_of_sigmoid(x):
    return torch.log(torch.sigmoid(x))


@pytest.mark.slow
def test_a_form_is_judged_in_the_kernels_that_run_it():
    lowered = []

    def lowering(form):
        lowered.append(form)
        return form

    found = certify(log_of_sigmoid, lowering=lowering)
    assert len(lowered) == 3  # value, first and second derivative
    assert "also in compiled kernels" in found.made


@pytest.mark.slow
def test_a_form_that_is_bad_in_its_kernels_is_refused():
    with pytest.raises(FormulaError, match=r"no form of|as accurate as"):
        certify(log_of_sigmoid, lowering=lambda form: lambda x: torch.full_like(form(x), torch.nan))


@pytest.mark.slow
def test_an_op_is_judged_in_its_own(native):
    (found,) = pullback.function(log_of_sigmoid).stabilise()
    assert "also in compiled kernels" in found.made
    (eager,) = pullback.function(backend="eager")(log_of_sigmoid).stabilise()
    assert "compiled" not in eager.made


def test_without_balls_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(precision, "flint", None)
    with pytest.raises(RunnerError, match="pip install"):
        pullback.function(lambda x: x.sigmoid().log()).stabilise()

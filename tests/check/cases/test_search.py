"""Scores of guessed calls: how far they run, and whether the backward or the environment is to blame."""

import pytest
import torch
from torch.autograd import Function

import pullback
from pullback.check.cases.search import Score, attempt, of_environment
from pullback.check.find.discover import subject_of

from ..making import case_of, function, normal


def score(target, *arguments):
    return attempt(subject_of(target), case_of(target, *arguments))


def raising(error):
    """Return a Function of `x` and something else whose backward does `error(x, other)`."""

    class Op(Function):
        @staticmethod
        def forward(ctx, x, other):
            ctx.other = other
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return error(g, ctx.other)

    return Op


def test_score_of_failing_and_perfect_calls():
    assert score(function(lambda x: x.no_such(), None), normal(3)).score == Score.RAISED
    assert score(function(lambda x: x / 0, None), normal(3)).score == Score.NOT_FINITE
    assert score(function(torch.sin, lambda g, x: 0 * g), normal(3)).score == Score.RAN_BACK
    assert score(function(torch.sin, lambda g, x: g), normal(3)).score == Score.PERFECT


def test_call_that_changes_its_input_in_place_works():
    class Exp(Function):
        @staticmethod
        def forward(ctx, x):
            x.exp_()
            ctx.mark_dirty(x)
            ctx.save_for_backward(x)
            return x

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0]

    assert score(Exp, normal(3)).score == Score.PERFECT
    (subject,) = pullback.check(Exp, select="PB101").subjects
    assert subject.status == "ok"


def test_sparse_gradient_is_accepted():
    assert score(function(lambda x: x * 2, lambda g, x: (g * 2).to_sparse()), normal(3)).score == Score.PERFECT


def test_backward_that_fails_on_any_input_scores_broken():
    assert score(raising(lambda g, other: undefined_name), normal(3), 1).score == Score.BROKEN  # noqa: F821
    assert score(raising(lambda g, other: (g.sum(), None)), normal(3), 1).score == Score.BROKEN
    assert score(raising(lambda g, other: g), normal(3), 1).score == Score.BROKEN


def test_backward_that_fails_on_this_input_scores_no_backward():
    assert score(raising(lambda g, other: torch.linalg.inv(g)), normal(3), 1).score == Score.NO_BACKWARD


@pytest.mark.parametrize("other", [2, 0.5, None, "mean", (1, 1), torch.ones(2)], ids=lambda v: type(v).__name__)
def test_missing_attribute_of_a_guessed_argument_is_not_blamed_on_the_backward(other):
    outcome = score(raising(lambda g, other: (g, other.nothing_of_the_kind())), normal(3), other)
    assert outcome.score == Score.RAISED
    assert "nothing_of_the_kind" in outcome.reason


@pytest.mark.parametrize(
    "text",
    [
        "Default process group has not been initialized, please make sure to call init_process_group.",
        "Must initialize torch.distributed first",
        "model parallel group is not initialized",
        "Found no NVIDIA driver on your system",
        "Torch not compiled with CUDA enabled",
        "No module named 'triton'",
        "Could not run 'some::op' with arguments from the 'CPU' backend.",
    ],
)
def test_environment_errors_are_recognised(text):
    assert of_environment(text)

    def lacking(g, other):
        raise RuntimeError(text)

    assert score(raising(lacking), normal(3), 1).score == Score.RAISED


def test_shape_error_is_no_environment_error():
    assert not of_environment("forward raised RuntimeError: mat1 and mat2 shapes cannot be multiplied")


def test_a_refused_kernel_is_no_environment_error():
    text = "KernelError: f (f.py:9): arange(0, 6): Triton needs a length that is a power of two"
    assert not of_environment(f"forward raised {text}")


def test_number_of_returned_gradients_is_compared_with_the_arguments():
    assert score(raising(lambda g, other: (g, g)), normal(3), 1).wants_tensor == 1
    assert score(raising(lambda g, other: g), normal(3), 1).gradients == 1
    assert score(raising(lambda g, other: (g, None)), normal(3), 1).gradients is None

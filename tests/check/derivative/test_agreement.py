"""Comparison of two lists of tensors up to rounding."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pullback.check.derivative.agreement import difference, gradients, show
from pullback.check.find.discover import subject_of
from pullback.check.trial import Raised, standard_cotangents

from ..making import case_of, function, normal

sine = function(torch.sin, lambda g, x: g * x.cos())


def t(*values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        (t(1.0, 2.0), t(1.0, 2.0)),
        (t(1.0, 2.0), t(1.0 + 1e-9, 2.0)),
        (t(1e-9, 2.0), t(0.0, 2.0)),
        (t(1.0, dtype=torch.float32), t(1.0001)),
        (t(1.0, dtype=torch.bfloat16), t(1.05)),
        (t(float("nan"), float("inf")), t(float("nan"), float("inf"))),
        (None, None),
        (None, t(0.0)),
        (t(0.0, 0.0), None),
        (t(), t()),
        (t(1 + 2j, dtype=torch.complex128), t(1 + 2j, dtype=torch.complex128)),
    ],
)
def test_tensors_equal_up_to_rounding(expected, got):
    assert difference([expected], [got]) is None


@pytest.mark.parametrize(
    ("expected", "got", "index"),
    [
        (t(1.0, 2.0), t(1.0, 2.0001), (1,)),
        (t([1.0, 2.0], [3.0, 4.0]), t([1.0, 2.0], [0.0, 4.0]), (1, 0)),
        (t(1.0, float("nan")), t(1.0, 1.0), (1,)),
        (t(1.0, 1.0), t(float("inf"), 1.0), (0,)),
        (t(float("inf")), t(float("-inf")), (0,)),
        (None, t(0.0, 3.0), (1,)),
        (t(3.0), None, (0,)),
        (t(1 + 2j, dtype=torch.complex128), t(1 - 2j, dtype=torch.complex128), (0,)),
        (t(1.0), t(1.0, 1.0), None),
    ],
)
def test_first_difference_has_its_order_and_index(expected, got, index):
    found = difference([t(5.0), expected], [t(5.0), got])
    assert (found.tensor_index, found.index) == (1, index)


def test_worst_difference_is_returned():
    found = difference([t(1.0), t(1.0, 1.0)], [t(1.1), t(1.2, 1.5)])
    assert (found.tensor_index, found.index, found.expected, found.got) == (1, (1,), 1.0, 1.5)
    assert str(found) == "expected 1, got 1.5 at [1]"


def test_rounding_can_be_given():
    assert difference([t(1.0)], [t(1.0 + 1e-9)], rounding=1e-12) is not None
    assert difference([t(1.0)], [t(1.3)], rounding=0.5) is None


def test_show_rounds_numbers():
    assert show(1 / 3) == "0.333333"
    assert show("shape (2,)") == "shape (2,)"


@given(st.lists(st.integers(0, 4), max_size=3).map(tuple), st.sampled_from([torch.float64, torch.bfloat16]))
def test_standard_cotangents_are_exact_deterministic_and_nonzero(shape, dtype):
    (g,) = standard_cotangents([torch.zeros(shape, dtype=dtype)])
    assert (g.shape, g.dtype) == (torch.Size(shape), dtype)
    assert torch.equal(g, standard_cotangents([torch.zeros(shape, dtype=dtype)])[0])
    assert torch.equal(8 * g.double(), (8 * g.double()).round())
    assert ((g.abs() >= 0.5) & (g.abs() <= 1.5)).all()


def test_gradients_are_computed_anew_for_each_call():
    subject, case = subject_of(sine), case_of(sine, normal(3))
    (first,), (again,) = gradients(subject, case), gradients(subject, case)
    assert torch.equal(first, again)
    (doubled,) = gradients(subject, case, cotangents=[2 * torch.ones(3, dtype=torch.float64)])
    assert torch.allclose(doubled, 2 * case.tensors[0].cos())
    (through,) = gradients(subject, case, call=lambda x: 3 * x)
    assert torch.equal(through, 3 * standard_cotangents([case.tensors[0]])[0])


def test_exception_in_backward_becomes_raised():
    def gradient(g, x):
        raise KeyError("lost")

    fn = function(torch.sin, gradient)
    with pytest.raises(Raised, match="backward raised KeyError: 'lost'"):
        gradients(subject_of(fn), case_of(fn, normal(3)))

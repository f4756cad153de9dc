"""The shrunk case still fails and is no larger."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pullback.check.case import make_case
from pullback.check.cases.shrink import shrink

from ..making import normal


def size(case):
    return sum(v.numel() for v in case.values if isinstance(v, torch.Tensor))


def shrunken(case, fails, limit=10_000):
    """Shrink, and count the evaluations of `fails`."""
    asked = []
    return shrink(case, lambda c: asked.append(c) or fails(c), lambda: len(asked) < limit), len(asked)


SHAPES = st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple)
PREDICATES = st.sampled_from(
    [
        lambda c: True,
        lambda c: c.tensors[0].numel() >= 3,
        lambda c: c.tensors[0].shape[0] >= 2,
        lambda c: bool((c.tensors[0] > 0.3).any()),
        lambda c: len(c.wrt) == 1 or c.tensors[0].shape == c.tensors[1].shape,
        lambda c: float(c.tensors[0].abs().sum()) not in (0.0, 1.0),
        lambda c: c.tensors[0].shape[-1] % 2 == 1,
    ]
)


@given(st.lists(SHAPES, min_size=1, max_size=2), PREDICATES, st.integers(0, 5))
@settings(max_examples=60)
def test_shrunk_case_fails_and_is_no_larger(shapes, fails, seed):
    case = make_case([normal(*shape, seed=seed + k) for k, shape in enumerate(shapes)], {}, ["a", "b"], "example")
    if not fails(case):
        return
    small, _ = shrunken(case, fails)
    assert fails(small)
    assert size(small) <= size(case)
    assert small.label == case.label
    assert [t.ndim for t in small.tensors] == [t.ndim for t in case.tensors]


def test_shrinks_to_one_element_and_short_decimals():
    case = make_case((normal(3, 5, 4),), {}, ["x"])
    small, _ = shrunken(case, lambda c: bool((c.tensors[0].abs() > 0.5).any()))
    assert small.tensors[0].numel() == 1
    assert float(small.tensors[0]) == round(float(small.tensors[0]))


def test_equal_sizes_shrink_together():
    case = make_case((normal(4, 6), normal(6, 3)), {}, ["a", "b"])
    small, _ = shrunken(case, lambda c: c.tensors[0].shape[1] == c.tensors[1].shape[0] >= 2)
    assert [tuple(t.shape) for t in small.tensors] == [(1, 2), (2, 1)]


def test_indices_stay_in_range():
    x, index = normal(7), torch.tensor([6, 0, 3])
    small, _ = shrunken(
        make_case((x, index), {}, ["x", "i"]), lambda c: bool(torch.isfinite(c.values[0][c.values[1]]).all())
    )
    assert small.values[0].shape == (1,)
    assert small.values[1].tolist() == [0]


def test_rounding_keeps_only_decimals_that_fail():
    case = make_case((torch.tensor([0.123456], dtype=torch.float64),), {}, ["x"])
    small, _ = shrunken(case, lambda c: 0.12 <= float(c.tensors[0]) <= 0.13)
    assert float(small.tensors[0]) == 0.12


def test_complex_values_are_rounded():
    case = make_case((normal(3, dtype=torch.complex128),), {}, ["z"])
    small, _ = shrunken(case, lambda c: c.tensors[0].is_complex())
    assert small.tensors[0].numel() == 1
    assert small.tensors[0].item() == complex(round(small.tensors[0].real.item()), round(small.tensors[0].imag.item()))


def test_tensor_passed_twice_is_not_shrunk():
    x = normal(5)
    case = make_case((x, x), {}, ["a", "b"])
    assert shrunken(case, lambda c: True)[0] is case


def test_shrinking_stops_at_the_limit():
    case = make_case((normal(7, 5),), {}, ["x"])
    small, asked = shrunken(case, lambda c: True, limit=2)
    assert asked == 2
    assert size(small) < size(case)


def test_ordinary_case_is_not_shrunk_to_a_doubtful_one():
    counted = make_case((normal(5, 7), 3), {}, ["x", "groups"])
    smallest, _ = shrunken(counted, lambda c: True)
    assert not smallest.doubtful
    assert all(s > 3 for s in smallest.tensors[0].shape)

"""Identity of values in cache keys: types and bits count, where `==` would call values equal."""

import collections
import enum
import struct
from typing import NamedTuple

import pytest
import torch

import pullback
from pullback.graph.identity import identity, leaves_and_structure, value_of

NAN, OTHER_NAN = (struct.unpack("=d", struct.pack("=Q", bits))[0] for bits in (0x7FF8 << 48, 0xFFF8 << 48))


class Point(NamedTuple):
    x: float


class Other(NamedTuple):
    x: float


class Count(enum.IntEnum):
    ONE = 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *[(1, 1.0), (1, True), (1.0, True), (0.0, -0.0), (0, -0.0), (0j, complex(-0.0, 0.0)), (0j, 0.0), (1, 1 + 0j)],
        *[((0.0,), (-0.0,)), ((1,), (True,)), (((1,), 2), ((1.0,), 2)), (NAN, OTHER_NAN), ("1", b"1")],
    ],
    ids=repr,
)
def test_equal_values_of_other_type_or_sign_differ(one, other):
    assert identity(one) != identity(other)


@pytest.mark.parametrize(
    "value", [0, 1.5, -0.0, NAN, float("inf"), "a", None, True, torch.float32, torch.device("cpu")]
)
def test_value_round_trips_through_its_identity(value):
    again = value_of(*identity(value))
    assert identity(again) == identity(value)
    assert repr(again) == repr(value)


@pytest.mark.parametrize(
    "value", [[1], {1}, {}, Point(1.0), Count.ONE, frozenset({1}), object(), (1, [2]), torch.ones(1)]
)
def test_mutable_and_user_defined_values_have_no_identity(value):
    assert identity(value) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({1: 0}, {1.0: 0}),
        ({1: 0}, {True: 0}),
        ({0.0: 0}, {-0.0: 0}),
        ({(0.0,): 0}, {(-0.0,): 0}),
        ({"a": {0.0: 0}}, {"a": {-0.0: 0}}),
        ({"a": 0, "b": 1}, {"b": 0, "a": 1}),
        ({1: 0}, collections.OrderedDict({1: 0})),
        (collections.OrderedDict({1: 0}), collections.OrderedDict({1.0: 0})),
        (collections.defaultdict(int, {1: 0}), collections.defaultdict(float, {1: 0})),
        (Point(0), Other(0)),
        (Point(0), (0,)),
        ([0, [1]], [[0], 1]),
        ([0, 1, []], [0, [], 1]),
    ],
    ids=repr,
)
def test_equal_containers_of_other_structure_differ(one, other):
    assert leaves_and_structure(one)[2] is not None
    assert leaves_and_structure(one)[2] == leaves_and_structure(one)[2]
    assert leaves_and_structure(one)[2] != leaves_and_structure(other)[2]


@pytest.mark.parametrize("tree", [{Count.ONE: 0}, {frozenset({1}): 0}, {Point(0.0): 0}, [{object(): 0}]])
def test_dict_with_a_user_defined_key_has_no_identity(tree):
    assert leaves_and_structure(tree)[2] is None


def filled(x, options):
    """Results differ in dtype and sign for equal keys."""
    return x * 2, torch.full((2,), next(iter(options)))


@pytest.mark.parametrize("keys", [(1, 1.0, True), (0.0, -0.0, False, 0), (Count.ONE, 1, 1.0)], ids=repr)
def test_op_distinguishes_equal_dict_keys(keys):
    op, x = pullback.function(filled), torch.ones(2, requires_grad=True)
    for key in (*keys, *keys):
        for ours, theirs in zip(op(x, {key: 0}), filled(x, {key: 0}), strict=True):
            assert ours.dtype == theirs.dtype
            assert torch.equal(ours, theirs)
            assert torch.equal(ours.signbit(), theirs.signbit())


class Keyed:
    """Compares equal to everything."""

    def __init__(self, scale):
        self.scale = scale

    def __hash__(self):
        return 0

    def __eq__(self, other):
        return True


def scaled(x, options):
    return [x * next(iter(options)).scale][0]


def test_op_distinguishes_keys_with_a_permissive_eq():
    op, x = pullback.function(scaled), torch.ones(2, requires_grad=True)
    for scale in (2.0, 3.0):
        assert op(x, {Keyed(scale): 0}).tolist() == [scale, scale]

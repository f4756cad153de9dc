"""Cases: copies of example calls that keep layouts, aliasing and names."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pullback.check.case import copy_tensor, make_case

from ..wrappers import Wrapper
from .making import normal

grid = partial(normal, 4, 6)

LAYOUTS = {
    "contiguous": grid,
    "transposed": lambda: grid().t(),
    "sliced": lambda: grid()[:, ::2],
    "offset": lambda: grid()[1:, 2:],
    "expanded": lambda: normal(1, 6).expand(4, 6),
    "channels last": lambda: normal(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "scalar": normal,
    "empty": lambda: normal(0, 3),
    "conjugated": lambda: normal(3, dtype=torch.complex128).conj(),
    "negated": lambda: normal(3, dtype=torch.complex128).conj().imag,
    "integers": lambda: torch.arange(6).view(2, 3).t(),
    "flags": lambda: torch.tensor([True, False]),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_copy_keeps_values_and_layout(name):
    t = LAYOUTS[name]()
    copy = copy_tensor(t)
    assert torch.equal(copy, t)
    assert (copy.dtype, copy.shape) == (t.dtype, t.shape)
    if not (t.is_conj() or t.is_neg()):
        assert (copy.stride(), copy.storage_offset()) == (t.stride(), t.storage_offset())


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name not in ("empty", "integers", "flags", "negated")])
def test_arguments_are_new_leaves_with_the_same_layout(name):
    t = LAYOUTS[name]()
    case = make_case((t,), {}, ["x"])
    (x,), _, (leaf,) = case.arguments()
    assert x is leaf
    assert x.is_leaf
    assert x.requires_grad
    assert x.stride() == case.tensors[0].stride() == (t.resolve_conj() if t.is_conj() else t).stride()
    with torch.no_grad():
        x.view(-1)[:1].zero_() if x.is_contiguous() else x.select(0, 0).zero_()
    assert torch.equal(case.tensors[0], t)


def test_tensor_passed_twice_stays_one_tensor():
    x = normal(3)
    case = make_case((x, 2, x), {"also": x}, ["a", "b", "c"])
    assert case.wrt == (0, 2, 3)
    (a, _, c), kwargs, inputs = case.arguments()
    assert a is c is kwargs["also"]
    assert a is not x
    assert all(leaf is a for leaf in inputs)


def test_equal_tensors_stay_distinct():
    (a, b), _, _ = make_case((normal(3), normal(3)), {}, ["a", "b"]).arguments()
    assert a is not b


def test_floating_point_tensors_are_differentiated():
    x, index, mask = normal(3), torch.arange(3), torch.tensor([True])
    case = make_case((x, index, mask, 2.0, None), {"z": normal(2, dtype=torch.complex64)}, ["x", "i", "m", "s", "n"])
    assert [case.names[p] for p in case.wrt] == ["x", "z"]


def test_only_tensors_with_requires_grad_are_differentiated_if_there_are_any():
    case = make_case((normal(3), normal(3).requires_grad_()), {}, ["a", "b"])
    assert [case.names[p] for p in case.wrt] == ["b"]
    (a, b), _, _ = case.arguments()
    assert not a.requires_grad
    assert b.requires_grad


def test_arguments_accept_a_mask_and_moved_values():
    case = make_case((normal(3), normal(2)), {}, ["a", "b"])
    (a, b), _, inputs = case.arguments(mask=[False, True])
    assert [a.requires_grad, b.requires_grad] == [False, True]
    moved = [torch.zeros(3), torch.ones(2)]
    args, _, inputs = case.arguments(moved=moved)
    assert args[0] is moved[0]
    assert inputs[1] is moved[1]


def test_non_leaf_inputs():
    case = make_case((normal(3),), {}, ["x"])
    (x,), _, (leaf,) = replace(case, non_leaf=True).arguments()
    assert not x.is_leaf
    x.mul_(2).sum().backward()
    assert torch.equal(leaf.grad, torch.full((3,), 2.0, dtype=torch.float64))


def test_nested_leaves_are_named_by_path():
    options = {"eps": normal(), "deep": (1, normal(2))}
    case = make_case((normal(3), [normal(2), 5], normal()), {"options": options}, ["x", "weights"])
    assert case.names == (
        "x", "weights[0]", "weights[1]", "args[2]", "options['eps']", "options['deep'][0]", "options['deep'][1]",
    )  # fmt: skip
    (x, weights, _), kwargs, _ = case.arguments()
    assert isinstance(weights, list)
    assert weights[1] == 5
    assert kwargs["options"]["deep"][0] == 1
    assert x.shape == (3,)


def test_positions_of_top_level_arguments():
    case = make_case((normal(3), (normal(2), 1), 4), {"k": normal()}, ["x", "pair", "n"])
    assert case.top_level(3) == [0, None, 3]


def test_mapped_cases_keep_other_values():
    case = make_case((normal(3), torch.arange(3), 2), {}, ["x", "i", "n"], "example")
    assert not case.is_variant
    zero = case.map_inputs(torch.zeros_like, "zeros")
    assert zero.is_variant
    assert zero.describe() == "x: float64(3,), i: int64(3,) [zeros]"
    assert torch.equal(zero.values[1], torch.arange(3))
    both = case.map_tensors(lambda t: t[:1], "short")
    assert [tuple(v.shape) for v in both.values[:2]] == [(1,), (1,)]
    assert case.with_values({2: 7}).values[2] == 7
    assert case.values[2] == 2


def test_original_tensors_are_not_modified():
    x = normal(3).requires_grad_()
    case = make_case((x,), {}, ["x"])
    (copy,), _, _ = case.arguments()
    (copy * 2).sum().backward()
    assert x.grad is None
    assert not case.tensors[0].requires_grad


@given(st.lists(st.integers(0, 3), max_size=4).map(tuple), st.data())
def test_copy_of_any_strided_view(shape, data):
    strides = tuple(data.draw(st.integers(0, 4)) for _ in shape)
    offset = data.draw(st.integers(0, 3))
    t = torch.arange(64.0).as_strided(shape, strides, offset)
    copy = copy_tensor(t)
    assert torch.equal(copy, t)
    assert (copy.stride(), copy.storage_offset()) == (t.stride(), t.storage_offset())


def test_wrapper_subclass_is_copied_by_its_own_clone():
    given = Wrapper(normal(3))
    copy = copy_tensor(given)
    given.inner.zero_()
    assert torch.equal(copy.inner, normal(3))


def test_copy_of_a_subclass_with_attributes_is_plain():
    class Tagged(torch.Tensor):
        pass

    t = normal(3).as_subclass(Tagged)
    t.tag = "metres"
    copy = copy_tensor(t)
    assert type(copy) is torch.Tensor  # a Tagged without `tag` would break the function that reads it
    assert torch.equal(copy, t)


@pytest.mark.parametrize(
    ("label", "phrase"),
    [
        ("transposed", "transposed inputs"),
        ("sliced with a step", "inputs sliced with a step"),
        ("x expanded", "x expanded"),
    ],
)
def test_phrase_of_a_layout(label, phrase):
    case = make_case((grid(),), {}, ["x"], label)
    assert case.phrase == label
    assert replace(case, layout_only=True).phrase == phrase

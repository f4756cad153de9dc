"""Variants differ from the example only as their label says."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pullback.check.case import make_case
from pullback.check.cases import layouts, sizes, structure, values

from ..making import normal, uniform


def case(*args):
    return make_case(args, {}, ["x", "y", "z"], "example")


def labels(found):
    return [c.label for c in found]


def by_label(found, label):
    return next(c for c in found if c.label == label)


EXAMPLES = {
    "vector": lambda: case(normal(5)),
    "matrices": lambda: case(normal(3, 5), normal(5, 4)),
    "image": lambda: case(normal(2, 3, 6, 6), normal(3)),
    "scalar": lambda: case(normal()),
    "indexed": lambda: case(normal(5, 3), torch.tensor([0, 4, 2])),
    "masked": lambda: case(normal(3, 5), torch.tensor([True, False, True])),
    "complex": lambda: case(normal(3, 5, dtype=torch.complex128)),
    "empty": lambda: case(normal(0, 3)),
    "float32": lambda: case(normal(3, 5, dtype=torch.float32)),
}
MAKERS = [
    values.other_values,
    values.shared,
    sizes.other_sizes,
    layouts.other_layouts,
    layouts.other_dtypes,
    values.extremes,
]


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_variant_is_a_labelled_case_of_the_same_arguments(make, name):
    example = EXAMPLES[name]()
    found = list(make(example))
    for one in found:
        assert one.label
        assert one.names == example.names
        assert one.wrt == example.wrt
        one.arguments()
    assert len(set(labels(found))) == len(found)


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_is_not_modified(name):
    example = EXAMPLES[name]()
    before = [v.clone() if isinstance(v, torch.Tensor) else v for v in example.values]
    for make in MAKERS:
        list(make(example))
    assert all(torch.equal(a, b) for a, b in zip(before, example.values, strict=True))


def test_other_values_cover_signs_zeros_and_integers():
    x = normal(3, 5)
    found = list(values.other_values(case(x)))
    assert (by_label(found, "all zeros").tensors[0] == 0).all()
    assert (by_label(found, "negative numbers").tensors[0] < 0).all()
    assert (by_label(found, "positive numbers").tensors[0] > 0).all()
    assert by_label(found, "all equal").tensors[0].unique().numel() == 1
    zeros = by_label(found, "exact zeros").tensors[0]
    assert 0 < (zeros == 0).sum() < 15
    whole = by_label(found, "whole numbers").tensors[0]
    assert torch.equal(whole, whole.round())


def test_spread_values_lie_off_the_integers():
    spread = torch.cat([c.tensors[0].flatten() for c in values.other_values(case(normal(3))) if "from -12" in c.label])
    assert spread.numel() >= 3 * 48
    assert spread.abs().max() < 12.5
    gaps = spread.sort().values.diff()
    assert gaps.max() < 0.3


def test_each_input_alone_gets_exact_zeros():
    found = labels(values.other_values(case(normal(3), normal(3, seed=1))))
    assert "x with exact zeros" in found
    assert "y with exact zeros" in found


def test_integer_arguments_are_repeated_and_reversed():
    found = list(values.other_values(case(normal(5), torch.tensor([0, 4, 2]))))
    assert by_label(found, "whole-number arguments all equal").values[1].tolist() == [0, 0, 0]
    assert by_label(found, "whole-number arguments reversed").values[1].tolist() == [2, 4, 0]


def test_sizes_of_one_zero_and_primes_are_tried():
    found = sizes.uniform_sizes(case(normal(3, 5)))
    shapes = {tuple(c.tensors[0].shape) for c in found}
    assert {(1, 5), (0, 5), (3, 1), (3, 0), (1, 1), (0, 0), (7, 5), (3, 11)} <= shapes


def test_equal_sizes_change_together():
    for c in sizes.uniform_sizes(case(normal(3, 5), normal(5, 4))):
        assert c.tensors[0].shape[1] == c.tensors[1].shape[0]


def test_enlarged_matrices_are_not_singular():
    grown = next(c for c in sizes.uniform_sizes(case(normal(3, 3))) if c.tensors[0].shape == (7, 7))
    assert torch.linalg.matrix_rank(grown.tensors[0]) == 7


def test_indices_stay_in_range():
    for c in sizes.uniform_sizes(case(normal(5, 3), torch.tensor([0, 4, 2]))):
        x, index = c.values
        if x.shape[0] and index.numel():
            assert index.max() < x.shape[0]


def test_size_that_may_depend_on_a_number_makes_the_case_doubtful():
    with_k = make_case((normal(5), 3), {}, ["x", "k"])
    doubtful = {c.tensors[0].shape[0]: c.doubtful for c in sizes.uniform_sizes(with_k)}
    assert doubtful[2]
    assert not doubtful[7]


def test_broadcast_variants_are_doubtful():
    found = list(sizes.broadcasts(case(normal(3, 5), normal(3, 5))))
    assert all(c.doubtful for c in found)
    assert {tuple(c.tensors[0].shape) for c in found} == {(1, 5), (3, 1), (), (5,), (3, 5)}
    assert list(sizes.broadcasts(case(normal(3, 5)))) == []


@pytest.mark.parametrize("name", ["vector", "matrices", "image", "complex", "float32"])
def test_layout_variants_hold_the_same_values(name):
    example = EXAMPLES[name]()
    for c in layouts.other_layouts(example):
        assert c.layout_only
        if "expanded" not in c.label:
            assert all(torch.equal(a, b) for a, b in zip(c.tensors, example.tensors, strict=True))
        plain = layouts.contiguous(c)
        assert not plain.layout_only
        assert all(t.is_contiguous() for t in plain.tensors)
        assert all(torch.equal(a, b) for a, b in zip(plain.tensors, c.tensors, strict=True))


def test_layout_variants_have_the_strides_of_their_label():
    found = {c.label: c.tensors[0] for c in layouts.other_layouts(case(normal(2, 3, 4, 5)))}
    assert found["transposed"].stride()[-2] == 1
    assert found["sliced with a step"].stride()[-1] == 2
    assert found["non-zero storage offset"].storage_offset() == 3
    assert found["channels last"].is_contiguous(memory_format=torch.channels_last)
    assert found["x expanded"].stride()[0] == 0
    assert "transposed" not in labels(layouts.other_layouts(case(normal(5))))


def test_dtype_variants_narrow_floating_point_tensors():
    assert labels(layouts.other_dtypes(case(normal(3)))) == ["float32", "bfloat16", "float16"]
    assert labels(layouts.other_dtypes(case(normal(3, dtype=torch.complex128)))) == ["float32"]
    (narrow, *_) = layouts.other_dtypes(case(normal(3), torch.arange(3)))
    assert [v.dtype for v in narrow.values] == [torch.float32, torch.int64]


def test_dtypes_round_trip():
    example = case(normal(3), torch.arange(3))
    narrow = by_label(layouts.other_dtypes(example), "bfloat16")
    back = layouts.as_dtypes_of(narrow, example)
    assert back.tensors[0].dtype == torch.float64
    assert torch.equal(back.tensors[0], narrow.tensors[0].double())
    assert layouts.widened(narrow).tensors[0].dtype == torch.float64


def test_complex_variant_has_imaginary_parts():
    z = layouts.made_complex(case(normal(3))).tensors[0]
    assert z.dtype == torch.complex128
    assert (z.imag != 0).all()


def test_tensors_of_equal_shape_are_shared():
    (found,) = values.shared(case(normal(3), normal(3, seed=1), normal(4)))
    assert found.values[0] is found.values[1]
    assert found.label == "y the same tensor as x"


def test_extremes_are_tiny_and_huge():
    tiny, huge = values.extremes(case(uniform(3, low=1)))
    assert tiny.extreme
    assert tiny.tensors[0].max() < 1e-11
    assert huge.tensors[0].min() >= 1e6


STRUCTURED = {
    "one-hot": torch.eye(4)[[0, 2]],
    "flags as numbers": torch.tensor([0.0, 1.0, 1.0]),
    "symmetric": (normal(3, 3) + normal(3, 3).t()),
    "triangular": normal(3, 3).tril(),
    "probabilities": normal(3, 5).softmax(-1),
    "unit rows": torch.nn.functional.normalize(normal(3, 5), dim=-1),
}


@pytest.mark.parametrize("name", STRUCTURED)
def test_structured_tensors_are_not_varied(name):
    t = STRUCTURED[name].double()
    assert structure.is_structured(t)
    assert "negated" not in labels(values.other_values(case(t)))
    assert list(values.extremes(case(t))) == []


@pytest.mark.parametrize("t", [normal(3, 5), normal(4, 4), normal(5), normal(), normal(3, 1), torch.zeros(3)])
def test_ordinary_tensors_are_not_structured(t):
    assert not structure.is_structured(t)


@given(st.lists(st.integers(0, 6), max_size=3).map(tuple), st.integers(1, 6), st.integers(0, 8))
def test_resizing_changes_only_the_given_size(shape, old, new):
    (resized,) = sizes.resized(case(normal(*shape)), {old: new}).tensors
    assert tuple(resized.shape) == tuple(new if size == old else size for size in shape)
    assert torch.isfinite(resized).all()


@pytest.mark.parametrize("labels", [torch.tensor([[0.0, 1.0, 1.0]]), torch.tensor([[1.0, -1.0, -1.0]])])
def test_labels_of_a_loss_stay_labels_at_a_larger_size(labels):
    (resized,) = sizes.resized(case(labels), {3: 20}).tensors
    assert set(resized.flatten().tolist()) == set(labels.flatten().tolist())


def test_a_new_size_keeps_shares_and_rows_of_length_1():
    rows = torch.nn.functional.normalize(normal(7, 4), dim=-1)
    shares, rows = sizes.resized(case(normal(7, 4).sigmoid(), rows), {7: 30}).tensors
    assert shares.min() >= 0
    assert shares.max() <= 1
    torch.testing.assert_close(rows.norm(dim=-1), torch.ones(30, dtype=rows.dtype))
    assert rows.unique(dim=0).shape == rows.shape


def test_a_flag_may_ask_for_what_an_argument_stands_in_for():
    for indices, doubtful in ((torch.zeros(1, dtype=torch.int32), True), (torch.tensor([2, 0, 1]), False)):
        call = make_case((normal(3, 5), indices, False), {}, ["x", "indices", "has_indices"])
        (other,) = values.other_numbers(call)
        assert other.values[2] is True
        assert other.doubtful == doubtful


@pytest.mark.parametrize(("shape", "doubtful"), [((3, 8), True), ((3, 7), False), ((4, 8), False)])
def test_another_dim_of_odd_size_is_doubtful_beside_one_of_even_size(shape, doubtful):
    (other,) = values.other_numbers(make_case((normal(*shape), 1), {}, ["x", "dim"]))
    assert other.values[1] == 0
    assert other.doubtful == doubtful


def test_different_indices_that_become_equal_are_doubtful():
    scatter = case(normal(6, 3, 8), torch.tensor([4, 0, 2]))
    assert sizes.resized(scatter, {8: 1}).doubtful
    assert not sizes.resized(scatter, {8: 9}).doubtful
    assert not sizes.keeps_sizes(scatter, sizes.resized(scatter, {8: 1}))
    (equal,) = (c for c in values.other_values(scatter) if c.label == values.ALL_EQUAL)
    assert equal.doubtful


def test_integer_equal_to_a_size_follows_it():
    call = make_case((normal(3, 5), 3, 3), {}, ["x", "count", "dim"])
    smaller = sizes.resized(call, {3: 2})
    assert (smaller.values[0].shape, smaller.values[1], smaller.values[2]) == ((2, 5), 2, 3)
    assert sizes.resized(call, {3: 0}).doubtful
    kept = case(normal(3, 5), 3, 1)
    assert not sizes.resized(kept, {3: 7}).doubtful
    assert sizes.resized(kept, {3: 7}).values[1] == 7
    assert sizes.resized(kept, {5: 2}).values[1] == 3
    assert sizes.resized(kept, {5: 2}).doubtful


class Operator:
    """Made for images of one size."""


@pytest.mark.parametrize(
    ("argument", "doubtful"),
    [
        (Operator(), True),
        (torch.nn.Linear(5, 5), True),
        (torch.sin, False),
        (None, False),
        ("sum", False),
        (0.5, False),
    ],
)
def test_object_argument_makes_a_resized_case_doubtful(argument, doubtful):
    assert sizes.resized(case(normal(5, 5), argument), {5: 1}).doubtful is doubtful


def test_constant_values_of_a_likely_parameter_are_doubtful():
    ones = [v for v in values.other_values(case(normal(3, 5), normal(5))) if "all ones" in v.label]
    plain, both = ones
    assert not plain.doubtful
    assert not bool((plain.tensors[1] == 1).any())
    assert both.doubtful
    assert all(bool((t == 1).all()) for t in both.tensors)
    alike = case(normal(3, 5), normal(3, 5, seed=1))
    assert [v.doubtful for v in values.other_values(alike) if "all ones" in v.label] == [False]


@pytest.mark.parametrize("sign", [1, -1])
def test_symmetric_filter_stays_symmetric_when_resized(sign):
    half = normal(1, 3)
    filters = torch.cat([half, sign * half.flip(-1)], -1)
    longer = sizes.resized(case(normal(2, 9), filters), {6: 7}).values[1]
    assert longer.shape == (1, 7)
    assert torch.equal(longer, sign * longer.flip(-1))
    assert len(longer.abs().unique()) >= 3


def test_integer_tensor_bounded_by_a_size_follows_it():
    lengths = torch.tensor([[6, 4], [5, 6]])
    assert sizes.resized(case(normal(2, 6, 6), lengths), {6: 3}).values[1].tolist() == [[3, 3], [3, 3]]
    assert torch.equal(sizes.resized(case(normal(2, 6, 6), lengths), {6: 7}).values[1], lengths)


def experts(count=4, tokens=45, width=9):
    """Tokens sorted by expert, a matrix for each expert, and the offsets of each expert's tokens."""
    offsets = torch.tensor([0, 17, 20, 40, tokens])
    return make_case((normal(tokens, width), normal(count, width, 21), offsets), {}, ["x", "w", "offsets"], "example")


@pytest.mark.parametrize(
    ("change", "count"),
    [({4: 7}, 7), ({4: 1}, 1), ({5: 8}, 7), ({4: 6, 5: 9}, 6), ({45: 60}, 4), ({4: 10, 45: 100}, 10)],
)
def test_offsets_are_one_more_than_the_parts_that_another_tensor_has(change, count):
    found = sizes.resized(experts(), change)
    tokens, offsets = change.get(45, 45), found.values[2].tolist()
    assert (len(found.values[1]), len(offsets)) == (count, count + 1)
    assert (offsets[0], offsets[-1], sorted(set(offsets))) == (0, tokens, offsets)
    assert not found.doubtful
    assert sizes.fit(experts(), found)


def test_offsets_follow_a_size_in_the_label():
    assert sizes.resized(experts(), {4: 7}).label == "size 4 -> 7, size 5 -> 8"
    assert sizes.resized(experts(), {5: 8}).label == "size 5 -> 8, size 4 -> 7"
    assert sizes.resized(experts(), {45: 60}).label == "size 45 -> 60"


def test_offsets_of_another_length_than_parts_do_not_fit():
    example = experts()
    offsets = torch.tensor([0, 9, 18, 27, 36, 45])
    assert not sizes.fit(example, example.with_values({2: offsets}))
    more = example.with_values({1: normal(5, 9, 21)})
    assert not sizes.fit(example, more)
    assert sizes.fit(example, more.with_values({2: offsets}))


def test_offsets_beside_no_tensor_of_so_many_parts_have_a_length_of_their_own():
    example = experts(count=3)
    assert sizes.resized(example, {3: 7}).values[2].shape == (5,)
    longer = sizes.resized(example, {5: 8})
    assert (longer.values[1].shape, longer.values[2].shape) == ((3, 9, 21), (8,))
    assert longer.values[2].tolist() == [0, 6, 12, 19, 25, 32, 38, 45]


def test_lengths_follow_the_number_of_parts_itself():
    example = case(normal(45, 9), normal(4, 9, 21), torch.tensor([17, 3, 20, 5]))
    found = sizes.resized(example, {4: 7})
    assert found.values[1].shape == (7, 9, 21)
    assert found.values[2].tolist() == [6, 6, 7, 6, 7, 6, 7]


def test_more_parts_than_elements_are_doubtful_unless_the_example_has_empty_ones():
    assert sizes.resized(experts(), {4: 50}).doubtful
    empty = experts().with_values({2: torch.tensor([0, 17, 17, 40, 45])})
    assert not sizes.resized(empty, {4: 50}).doubtful


def varlen(bound, name="max_seqlen", width=6):
    offsets = torch.tensor([0, 5, 23, 31])
    return make_case((normal(31, width), offsets, bound), {}, ["x", "cu_seqlens", name], "example")


@pytest.mark.parametrize(
    ("name", "bound", "after"),
    [
        ("max_seqlen", 18, 44),
        ("max_seqlen_q", 20, 44),
        ("max_len", 18, 44),
        ("max_length", 30, 44),
        ("longest", 19, 44),
        ("n", 18, 44),
        ("max_seqlen", 100, 100),
        ("n", 20, 20),
        ("BLOCK", 18, 18),
        ("max_seqlen", 17, 17),
    ],
)
def test_bound_on_the_parts_is_raised_to_the_longest(name, bound, after):
    example = varlen(bound, name)
    found = sizes.resized(example, {31: 131})
    assert found.values[1].tolist() == [0, 43, 87, 131]  # parts of 43, 44 and 44
    assert found.values[2] == after
    is_bound = name != "BLOCK" and not (name == "n" and bound == 20) and bound >= 18
    assert sizes.fit(example, found) == (is_bound or bound == after)
    if is_bound and after > bound:
        assert not sizes.fit(example, found.with_values({2: bound}))


def test_bound_on_the_parts_is_not_lowered():
    found = sizes.resized(varlen(18), {31: 11})
    assert found.values[1][-1] == 11
    assert found.values[2] == 18


def test_bound_that_is_a_size_too_follows_it_and_is_doubtful_beyond():
    table = make_case(
        (normal(31, 6), torch.tensor([0, 5, 23, 31]), 18, normal(18, 6)), {}, ["x", "cu", "max_len", "table"], "example"
    )
    assert not sizes.resized(table, {31: 50}).doubtful  # parts of 16 and 17
    beyond = sizes.resized(table, {31: 131})
    assert (beyond.values[2], beyond.doubtful) == (44, True)
    both = sizes.resized(table, {31: 131, 18: 60})
    assert (both.values[2], len(both.values[3]), both.doubtful) == (60, 60, False)


def test_number_that_is_a_size_too_bounds_no_parts_without_a_name():
    example = varlen(18, "heads", width=18)
    assert sizes.resized(example, {31: 131}).values[2] == 18


def test_labels_may_be_ignored_and_offsets_may_not():
    classes, offsets = torch.tensor([2, 0, 1, 1, 0, 2]), torch.tensor([0, 2, 2, 6])
    names = ["weights", "classes", "offsets", "padding_idx"]
    (found,) = values.some_ignored(make_case((normal(6), classes, offsets, 9), {}, names, "example"))
    assert found.label == "every other element of classes 9"
    assert found.values[1].tolist() == [9, 0, 9, 1, 9, 2]
    assert torch.equal(found.values[2], offsets)


@pytest.mark.parametrize(("shape", "is_product"), [((2, 2, 8, 16), False), ((3, 8), True)])
def test_product_beside_its_factors_is_a_coincidence(shape, is_product):
    """A batch of 2, of 8 steps, beside a width of 16; 2 heads of 8 beside a weight of 16 rows."""
    others = [] if len(shape) == 4 else [torch.randn(16, 3), torch.randn(2)]
    case = make_case([torch.randn(shape), *others], {}, ["x", "w", "b"][: 1 + len(others)], "example")
    longer = sizes.resized(case, {8: 33})
    assert sizes.fit(case, longer) == (not is_product)


def test_height_of_images_may_differ_from_their_width():
    images = make_case([torch.randn(2, 3, 5, 5), torch.randn(3, 3, 3)], {}, ["x", "w"], "example")
    parted = [case for case in sizes.parted_sizes(images) if sizes.is_parted(images, case)]
    assert {tuple(case.values[0].shape) for case in parted} == {(2, 3, 5, 7), (2, 3, 7, 5)}
    assert not any(sizes.is_parted(images, case) for case in sizes.uniform_sizes(images))


def test_floats_and_words_of_comparisons_are_tried():
    case = make_case([normal(3), 0.5, None], {}, ["x", "beta", "activation"], "example")
    found = [other.label for other in values.other_numbers(case, {"beta": (0.0, 1.0), "activation": ("silu",)})]
    assert {"beta = 0", "beta = 1", "activation = 'silu'"} <= set(found)

"""Tensors, sequences of them and callables in a guessed call."""

import pytest
import torch

from pullback.check.cases.templates import DISTANCES, SMOOTH, make_tensor, named_families


def made(kind, shape=(3, 5), first=(3, 5), dtype=torch.float64):
    return make_tensor(kind, shape, first, dtype, torch.Generator().manual_seed(0))


def test_made_tensors_have_the_values_dtype_and_shape_of_their_kind():
    assert (made("positive") > 0).all()
    assert set(made("binary").unique().tolist()) == {0.0, 1.0}
    assert made("mask").dtype == torch.bool
    assert made("mask", (2,)).shape == (3, 5)
    assert made("index", (2,)).shape == (3,)
    assert made("index", (2,), None).shape == (2,)


@pytest.mark.parametrize("shape", [(), (5,), (3, 5), (2, 3, 4)])
def test_structured_matrices_are_square(shape):
    definite, negative, lower = (made(kind, shape) for kind in ("definite", "negative definite", "triangular"))
    assert definite.shape[-1] == definite.shape[-2] == (shape or (3,))[-1]
    torch.linalg.cholesky(definite)
    torch.linalg.cholesky(-negative)
    assert torch.equal(lower, lower.tril())
    assert (lower.diagonal(0, -2, -1) > 0).all()


def test_smooth_callable_accepts_any_arguments():
    x, y = torch.tensor([0.5]), torch.tensor([0.25])
    assert torch.equal(SMOOTH(x), x.tanh())
    assert torch.equal(SMOOTH(x, 3, y, None), x.tanh() + y.tanh())
    assert SMOOTH(1, "mean").shape == ()


@pytest.mark.parametrize("stand_in", [SMOOTH, *DISTANCES])
def test_repr_of_a_callable_evaluates_to_it(stand_in):
    a, b = torch.randn(4, 2), torch.randn(4, 2)
    assert torch.equal(eval(repr(stand_in))(a, b), stand_in(a, b))


def test_indices_name_the_last_of_three_rows_twice():
    indices = made("index", (6,), None)
    assert indices.max() == 2
    assert (indices == 2).sum() >= 2


@pytest.mark.parametrize(
    ("names", "shapes"),
    [
        ("x cos sin", [(2, 4, 2, 6), (4, 3), (4, 3)]),
        ("q k v g beta scale", [(2, 8, 2, 16)] * 3 + [(2, 8, 2)] * 2),
        ("q k v beta h0", [(2, 8, 2, 16)] * 3 + [(2, 8, 2), (2, 2, 16, 16)]),
        ("q k v", [(2, 2, 8, 16)] * 3),
        ("_input weight target", [(5, 16), (11, 16), (5,)]),
        ("embeddings indices", [(3, 8), (7,)]),
        ("X W B eps", [(4, 16), (16,), (16,)]),
    ],
)
def test_names_of_parameters_give_shapes_of_kernels(names, shapes):
    first = next(named_families(names.split()))
    assert [shape for _, (_, shape) in sorted(first.items())] == shapes


def test_one_name_alone_is_of_no_family():
    assert list(named_families(["x", "number"])) == []


def test_offsets_part_the_rows_of_the_first_tensor():
    assert made("offsets", (2,)).tolist() == [0, 1, 3]

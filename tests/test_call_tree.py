"""`call.Tree`: the structure of arguments and results without their tensors."""

import pytest
import torch

from pullback.call import TENSOR, Tree, described

A, B = torch.zeros(2), torch.ones(3)


@pytest.mark.parametrize(
    "value",
    [
        A,
        (A,),
        (A, 1.0, "a", None, B),
        ((A, 2), B),
        {"a": A, "b": [B, {"c": 3}]},
        [A],
        (),
        torch.return_types.max((A, B)),
    ],
)
def test_tree_round_trips(value):
    tree, tensors = Tree.of(value)
    leaves, spec = torch.utils._pytree.tree_flatten(tree.filled(tensors))
    expected, expected_spec = torch.utils._pytree.tree_flatten(value)
    assert spec == expected_spec
    assert all(a is b or a == b for a, b in zip(leaves, expected, strict=True))
    assert tree.spec == expected_spec


def test_owners_are_the_top_level_items_of_the_tensors():
    assert Tree.of((A, 1, B))[0].owners() == [0, 2]
    assert Tree.of((1, [A, (B,)], {"a": A}))[0].owners() == [1, 1, 2]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (A, "tensor"),
        ((A, None, 2.0), "(tensor, None, float)"),
        ({"a": [A, TENSOR]}, "{'a': [tensor, tensor]}"),
    ],
)
def test_described_spells_out_the_structure(value, words):
    assert described(value) == words

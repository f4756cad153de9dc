"""Candidate values of a parameter, the likeliest first."""

import ast
import inspect

import pytest
import torch
from torch import Tensor

from pullback.check.cases.guess import candidates, hints_from_calls, names_at_calls
from pullback.check.cases.signature import Usage
from pullback.check.cases.templates import SMOOTH, SequenceOf, TensorOf
from pullback.check.find.discover import subject_of

from ..modules import import_source


def ranked(name, default=inspect.Parameter.empty, annotation=inspect.Parameter.empty, hints=()):
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return candidates(inspect.Parameter(name, kind, default=default, annotation=annotation), hints)


FLOAT = TensorOf()
FIRST = {
    "x": FLOAT, "input": FLOAT, "weight": FLOAT, "query": FLOAT, "bias": FLOAT,
    "dim": -1, "axis": -1, "k": 2, "eps": 1e-6, "alpha": 0.5, "scale": 0.5, "n_iter": 50, "num_steps": 3,
    "idx": TensorOf("index"), "labels": TensorOf(), "target": TensorOf(), "row_index": TensorOf("index"),
    "mask": TensorOf("mask"), "attention_mask": TensorOf("mask"), "spikes": TensorOf("binary"),
    "training": True, "inplace": True, "use_bias": True, "keepdim": True, "causal": True,
    "stride": 1, "padding": 1, "reduction": "mean", "dtype": torch.float32, "shape": (3, 5), "fn": SMOOTH,
}  # fmt: skip


@pytest.mark.parametrize("name", FIRST)
def test_name_gives_the_first_candidate(name):
    assert ranked(name)[0] == FIRST[name]


def test_default_precedes_the_name():
    assert ranked("alpha", default=25.0)[0] == 25.0
    assert ranked("bias", default=None)[0] is None


def test_call_site_value_precedes_the_default():
    assert ranked("alpha", default=25.0, hints=[7])[:2] == [7, 25.0]


@pytest.mark.parametrize(
    ("annotation", "first"),
    [(Tensor, FLOAT), ("torch.Tensor", FLOAT), (int, 2), ("int", 2), (bool, True), ("Optional[Tensor]", FLOAT)],
)
def test_annotation_gives_the_first_candidate(annotation, first):
    assert ranked("thing", annotation=annotation)[0] == first


def test_name_gives_the_kind_of_an_annotated_tensor():
    assert ranked("mask", annotation=Tensor)[0] == TensorOf("mask")
    assert ranked("idx", annotation=Tensor)[0] == TensorOf("index")


def test_other_candidates_follow_without_duplicates():
    for name in ("x", "alpha", "dim"):
        found = ranked(name, default=1.0)
        assert len({(type(value), repr(value)) for value in found}) == len(found)
        for value in (FLOAT, 2, 0.5, None, True, TensorOf("index")):
            assert any(type(v) is type(value) and v == value for v in found)


def used(name, *roles, **more):
    parameter = inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return candidates(parameter, (), Usage(frozenset(roles), **more))


def test_usage_in_the_body_precedes_the_name():
    assert used("x", "callable")[0] is SMOOTH
    assert used("x", "int")[0] == 3
    assert used("x", "dim")[0] == -1
    assert used("x", "sequence", lengths=(3,))[0] == SequenceOf(3)
    assert used("mode", constants=("valid", "same"))[:2] == ["valid", "same"]


def test_tensor_candidates_come_first_for_a_parameter_used_as_tensor():
    ranked_kinds = [isinstance(value, TensorOf) for value in used("alpha", "tensor")]
    assert ranked_kinds == sorted(ranked_kinds, reverse=True)
    assert used("index", "tensor")[0] == TensorOf("index")
    assert used("y", "tensor", "flag")[0] == FLOAT


def test_name_at_the_call_site_counts_if_the_parameter_name_is_unknown():
    parameter = inspect.Parameter("p0", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    assert candidates(parameter, (), None, ["padding"])[0] == 1
    parameter = inspect.Parameter("dim", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    assert candidates(parameter, (), None, ["padding"])[0] == -1


@pytest.mark.parametrize("name", ["process_group", "pg", "copy_stream"])
def test_process_groups_and_streams_are_none(name):
    assert ranked(name) == [None]


SOURCE = """
import torch
from torch import nn

class Op(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, alpha, window, mode):
        return x * alpha

    @staticmethod
    def backward(ctx, g):
        return g, None, None, None

def op(x, alpha=1.75, *, window=(2, 3)):
    return Op.apply(x, alpha, window, "valid")

class Layer(nn.Module):
    def __init__(self, alpha=0.125, window=None):
        super().__init__()
        self.alpha = alpha
        self.window = window

    def forward(self, x):
        return Op.apply(x, self.alpha, self.window, unknown(3))

def make(alpha=25, window=(4, 5)):
    def op(x, window=None):
        return Op.apply(x, alpha, window, mode)

    return op
"""


def test_constants_and_names_at_call_sites(tmp_path):
    source = subject_of(import_source(SOURCE, tmp_path, "guess_call_sites").Op).source
    assert hints_from_calls(source, 0) == []
    assert set(hints_from_calls(source, 1)) == {1.75, 0.125, 25}
    assert hints_from_calls(source, 2) == [(2, 3)]  # the inner `window` shadows the outer one
    assert hints_from_calls(source, 3) == ["valid"]
    assert hints_from_calls(source, 4) == []
    assert hints_from_calls(None, 0) == []
    assert names_at_calls(source, 1) == ["alpha"] * 3
    assert names_at_calls(source, 2) == ["window"] * 3
    assert names_at_calls(source, 0) == []  # `x` is too common a name to tell anything
    assert isinstance(source.call_sites[0].arguments[0], ast.expr)


def test_setting_is_a_number_before_it_is_a_tensor():
    parameter = inspect.Parameter("limit", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = candidates(parameter, (), is_setting=True)
    assert isinstance(found[0], int | float)
    assert found.index(FLOAT) > found.index(TensorOf("mask"))
    assert candidates(parameter.replace(annotation=Tensor), (), is_setting=True)[0] == FLOAT

"""The words that an argument takes are read from the source of its module."""

import torch

from pullback.check.case import make_case
from pullback.check.cases.values import other_numbers
from pullback.check.cases.words import words_in

_MODULE = """
from typing import Literal

MODES = {"llama": 0, "gemma": 1}
KINDS = ["sum", "mean"]

def a(x, reduction, mode, kind, side: Literal["left", "right"], n=1):
    if reduction == "none" or reduction in ("mean", "sum"):
        return x
    assert kind in KINDS
    return x * MODES[mode] if n == 1 else x
"""


def test_words_of_comparisons_lookups_and_annotations(tmp_path):
    file = tmp_path / "module.py"
    file.write_text(_MODULE)
    found = {name: words for name, words in words_in(str(file)).items() if words}
    assert found == {
        "reduction": ("none", "mean", "sum"), "kind": ("sum", "mean"), "mode": ("llama", "gemma"),
        "side": ("left", "right"),
    }  # fmt: skip
    assert words_in(str(tmp_path / "missing.py")) == {}


def test_call_with_each_other_word():
    case = make_case((torch.ones(2), "mean", "fast"), {}, ["x", "reduction", "mode"])
    labels = [c.label for c in other_numbers(case, {"reduction": ("none", "mean", "sum")})]
    assert labels == ["reduction = 'none'", "reduction = 'sum'"]

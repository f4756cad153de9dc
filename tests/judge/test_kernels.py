"""Candidates with Triton kernels, judged without a GPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import pullback
from tests.check.triton_functions.mutants import MUTANTS, RIGHT, source

EXAMPLE = torch.linspace(-2, 2, 66).view(6, 11), 1.5


@pytest.mark.parametrize(
    ("slug", "verdict"), [pytest.param("", "right", marks=pytest.mark.slow), ("zero_in_maximum", "wrong")]
)
def test_a_kernel_against_a_formula(tmp_path, slug, verdict):
    text = (RIGHT / "softmax.py").read_text()
    if slug:
        (mutant,) = (m for m in MUTANTS if m.name == f"softmax.{slug}")
        text = source(mutant)
    candidate = tmp_path / "candidate.py"
    candidate.write_text(text)
    found = pullback.judge(f"{candidate}:Softmax", f"{RIGHT / 'softmax.py'}:reference", *EXAMPLE, seed=0)
    assert found.verdict == verdict, found
    assert found.computed == "float64"  # the kernels are lifted

"""Hacks are caught for the right reason, and honest candidates are right."""

import pytest
import torch

import pullback

from . import formulas
from .hacks import HACKS
from .honest import HONEST

SEED = 1  # a failure can be repeated


@pytest.fixture(autouse=True)
def _no_shrinking(monkeypatch):
    monkeypatch.setattr("pullback.judge.api._SHRINK_SECONDS", 0.0)


@pytest.mark.parametrize("name", HACKS)
@pytest.mark.few(12)
def test_hack_is_caught(name):
    hack = HACKS[name]
    reference = getattr(formulas, hack.formula)
    inputs = formulas.example(hack.formula, hack.dtype)
    verdict = pullback.judge(hack.run, reference, *inputs, forbid=hack.forbid, seed=SEED)
    assert verdict.verdict in ("wrong", "cheats"), verdict
    assert {reason.kind for reason in verdict.reasons} & set(hack.kinds), verdict


@pytest.mark.parametrize("name", HONEST)
@pytest.mark.few(8)
def test_honest_candidate_is_right(name):
    run, formula, dtype = HONEST[name]
    verdict = pullback.judge(run, getattr(formulas, formula), *formulas.example(formula, dtype), seed=SEED)
    assert verdict.verdict == "right", verdict


def test_some_label_is_ignored_whatever_the_seed():
    """With seed 0 a draw chose none of four."""
    hack = HACKS["ignored_labels_counted"]
    verdict = pullback.judge(hack.run, formulas.cross_entropy, *formulas.example("cross_entropy"), seed=0)
    assert verdict.verdict == "wrong", verdict


@pytest.mark.parametrize("seed", [3, 4])
@pytest.mark.parametrize("of_dim", [torch.softmax, torch.log_softmax])
def test_wrong_dimension_is_no_stale_result(of_dim, seed):
    """The softmax of equal numbers is uniform, of whichever call they are."""
    x = torch.randn(4, 37)
    verdict = pullback.judge(lambda x: of_dim(x, -1), lambda x: of_dim(x, 0), x, seed=seed)
    assert verdict.verdict == "wrong"
    assert not {reason.kind for reason in verdict.reasons} & {"stale", "state"}
    assert repr(verdict).startswith("<pullback.Verdict wrong (value")

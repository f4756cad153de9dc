"""Every reproduction that an audit prints runs and shows its finding."""

import itertools
import sys
import warnings
from dataclasses import replace

import pytest
import torch

from pullback.check.find.discover import discover
from pullback.check.runner import replay

from ..bulk import OPTIONS, audit_all, outcomes_of
from ..mutants.catalogue import MUTANTS
from ..mutants.load import build, function_of

TUTORIAL = "examples/tutorial_functions.py"

MADE = """
import enum
from typing import NamedTuple

import torch


class Parameters(NamedTuple):
    slope: float = 2.0
    offset: torch.Tensor = torch.zeros(())


class Mode(enum.Enum):
    FAST = 1


def make(k):
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * k * x

    return lambda x: Scaled.apply(x)


class Holder:
    apply = staticmethod(make(5))


class Tuned(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, p, mode):
        assert mode is Mode.FAST
        ctx.save_for_backward(x)
        return x * x * p.slope, None, {"unused": p.offset}

    @staticmethod
    def backward(ctx, g, *_):
        return g * ctx.saved_tensors[0], None, None


class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        noise = torch.rand_like(x)
        ctx.save_for_backward(noise)
        return x * noise

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0] * 2


def inputs(fn):
    x = torch.tensor([1.5, -0.5], dtype=torch.float64)
    return [((x, Parameters(), Mode.FAST), {})] if fn is Tuned else [((x,), {})]
"""


def blocks_that_a_prompt_refuses(code):
    """Return the lines that follow a block without the empty line that ends it at Python's prompt."""
    pairs = itertools.pairwise(code.splitlines())
    return [line for before, line in pairs if before.startswith(" ") and line and not line.startswith(" ")]


def complaint(finding):
    """Return why a reproduction does not show its finding; empty if it does."""
    if blocks_that_a_prompt_refuses(finding.reproduce):
        return "it cannot be pasted"
    torch.compiler.reset()
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return replay.complaint(finding)


def complaints(findings):
    found = [(finding, complaint(finding)) for finding in findings if finding.reproduce]
    assert found
    return [f"{finding.subject} {finding.rule}: {what}\n{finding.reproduce}" for finding, what in found if what]


def audited(target, inputs=lambda subject: None):
    subjects = discover(target)
    return [finding for outcome in outcomes_of(subjects, OPTIONS, inputs) for finding in outcome.findings]


OF_CHANCE = {"masked-scale/cached-by-address"}
"""Mutants whose fault needs an address to be reused, which no script can guarantee."""


def one_for_each_rule(family):
    """Return few mutants that cover all rules of a family which any mutant expects."""
    seen, chosen = set(), []
    for mutant in MUTANTS:
        new = {rule for rule in mutant.expects if rule.startswith(family)} - seen
        if new and not mutant.survives and mutant.id not in OF_CHANCE:
            seen |= new
            chosen.append(mutant)
    return chosen


@pytest.mark.slow
def test_reproductions_of_the_tutorial():
    assert complaints(audited(TUTORIAL)) == []


@pytest.mark.parametrize(
    ("family", "rules"),
    [
        pytest.param("PB1", 17, marks=pytest.mark.slow),
        ("PB2", 3),
        ("PB3", 5),
        pytest.param("PB4", 12, marks=pytest.mark.slow),
    ],
)
@pytest.mark.few(1)
def test_reproductions_of_mutants(family, rules, tmp_path):
    mutants = one_for_each_rule(family)
    modules = [build(mutant, tmp_path) for mutant in mutants]
    options = replace(OPTIONS, select=(family,))
    found = audit_all([(function_of(module), module.inputs) for module in modules], options)
    findings = [
        finding
        for mutant, each in zip(mutants, found, strict=True)
        for finding in each
        if finding.severity != "info" or finding.rule in mutant.expects
    ]
    assert len({finding.rule for finding in findings}) >= rules
    assert complaints(findings) == []


@pytest.mark.slow
def test_reproductions_of_factories_structures_and_random_functions(tmp_path, monkeypatch):
    (tmp_path / "made_up.py").write_text(MADE)
    monkeypatch.chdir(tmp_path)
    findings = audited("made_up.py", lambda subject: sys.modules[subject.target.__module__].inputs(subject.target))
    errors = [finding for finding in findings if finding.severity == "error"]
    assert {finding.subject for finding in errors} == {"Scaled", "Tuned", "Noisy"}
    assert complaints(findings) == []


def test_reproductions_with_a_compiler_are_short():
    findings = [f for f in audited(f"{TUTORIAL}:RoundStraightThrough") if f.rule in ("PB410", "PB415")]
    assert findings
    assert all(len(finding.reproduce) < 1200 for finding in findings)

"""The examples on each rule's page: the rule reports the bad one and not the good one."""

import re

import pytest
import torch

import pullback
from pullback.check.find.discover import static_subjects
from pullback.check.rules import all_rules, rule_named
from pullback.check.run_audit import static_findings
from pullback.check.runner.task import Limits
from pullback.check.subject import Options

from ..probes import is_backward_kept_by_compiled_grad
from .modules import import_source

SECTIONS = ("## What it finds", "## Why it hurts", "## Limits", "## Bad", "## Good")
OPTIONS = {"PB006": {"budget": 0.01}}
AT_WORK = {f"PB00{k}": ("PB1",) for k in range(1, 8)} | {"PB003": ("PB101",), "PB006": ("PB401",)}
"""Rules about the audit itself need other rules to run."""
each_rule = pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.id)
alone_and_among_all = pytest.mark.parametrize(
    "alone", [pytest.param(True, id="alone"), pytest.param(False, id="among all", marks=pytest.mark.slow)]
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder whose modules can be imported: a process that has CUDA's threads sends them to another."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def example(rule, heading, folder):
    """Import the code block under a heading of a rule's page."""
    if rule.family == "PB9":
        pytest.importorskip("triton", reason="Triton is not installed")
        if torch.accelerator.is_available() != (rule.id == "PB909"):
            pytest.skip("kernels are interpreted" if rule.id == "PB909" else "kernels run on the GPU")
    block = re.search(rf"^## {heading}\n```python\n(.*?)^```", rule.page, re.DOTALL | re.MULTILINE)
    assert block, f"{rule.id} has no code under '## {heading}'"
    return import_source("import torch\n" + block.group(1), folder, f"{rule.id.lower()}_{heading.lower()}")


def findings(rule, module, alone):
    """Return what a rule finds, selected alone or in an audit by all rules."""
    classes = [v for v in vars(module).values() if isinstance(v, type) and issubclass(v, torch.autograd.Function)]
    target = module.example if hasattr(module, "example") else classes[-1]
    inputs = module.inputs() if hasattr(module, "inputs") else ()
    select = (rule.id, *AT_WORK.get(rule.id, ())) if alone else ()
    given = {"reference": module.reference} if hasattr(module, "reference") else {}
    report = pullback.check(target, *inputs, select=select, **given, **OPTIONS.get(rule.id, {}))
    return [finding for finding in report.findings if finding.rule == rule.id]


@each_rule
@alone_and_among_all
@pytest.mark.few(35)
def test_bad_example_is_found(rule, alone, folder, monkeypatch):
    if rule.id == "PB003":  # the example never returns: shorten the wait of ten seconds for each attempt
        monkeypatch.setattr(Limits, "of", lambda options: Limits(silence=0.6, total=20))
    if rule.id == "PB415" and is_backward_kept_by_compiled_grad():
        pytest.skip("PyTorch keeps the backward here, as the page says")
    found = findings(rule, example(rule, "Bad", folder), alone)
    assert found
    assert {finding.name for finding in found} == {rule.name}


@each_rule
@alone_and_among_all
@pytest.mark.few(38)
def test_good_example_is_not_accused(rule, alone, folder):
    found = findings(rule, example(rule, "Good", folder), alone)
    assert [f.message for f in found if f.severity != "info"] == []


@each_rule
def test_page_has_its_sections_in_order(rule):
    places = [rule.page.find(section) for section in SECTIONS]
    assert -1 not in places
    assert places == sorted(places)


@pytest.mark.parametrize("rule", [rule for rule in all_rules() if rule.alias], ids=lambda rule: rule.alias.id)
@pytest.mark.parametrize("level", ["Bad", "Good"])
def test_examples_of_a_static_half(rule, level, tmp_path):
    section = rule.page[rule.page.index("## In the source: ") :]
    block = re.search(rf"^### {level}\n```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    assert block, f"{rule.alias.id} has no code under '### {level}'"
    path = tmp_path / "kernels.py"
    path.write_text("import torch\n" + block.group(1), encoding="utf-8")
    (subject,) = static_subjects(str(path), "it needs a GPU")
    found = static_findings(subject, Options(select=(rule.alias.id,)))
    assert {(f.rule, f.name, f.alias) for f in found} == (
        {(rule.id, rule.name, rule.alias.id)} if level == "Bad" else set()
    )


def test_ids_and_names_are_unique():
    rules = all_rules()
    halves = [rule.alias for rule in rules if rule.alias]
    ids, names = ([getattr(one, field) for one in (*rules, *halves)] for field in ("id", "name"))
    assert len(set(ids)) == len(set(names)) == len(rules) + len(halves)


def test_rule_is_found_by_id_and_by_name():
    assert rule_named("pb101") is rule_named("wrong-vjp")
    assert rule_named("pb804") is rule_named("tensor-on-ctx-in-source") is rule_named("PB201")
    assert rule_named("PB999") is None

"""The catalogue passes the audit: no error, nothing unaudited, and only the gradient modifiers are `intended`."""

import pkgutil
from importlib import import_module
from pathlib import Path

import pytest
from tests.bulk import outcomes_of

import pullback
from pullback import catalog
from pullback.check.find.discover import subjects_of_module

MODULES = [import_module(f"{catalog.__name__}.{m.name}") for m in pkgutil.iter_modules(catalog.__path__)]
OPS = {
    value.__name__: value
    for module in MODULES
    for value in vars(module).values()
    if isinstance(value, pullback.Op) and value.__module__ == module.__name__
}
MODIFIERS = {"reverse_grad", "scale_grad", "clip_grad"}
PAGE = Path(__file__).parents[2] / "docs" / "catalogue.md"


@pytest.fixture(scope="module")
def subjects():
    return {subject.name: subject for subject in subjects_of_module(catalog)}


def test_audit_discovers_every_op():
    assert sorted(subject.name for subject in subjects_of_module(catalog)) == sorted(OPS)
    assert len(OPS) >= 30


def case(name):
    """The short run audits the first op of each module."""
    siblings = [op for op in OPS if OPS[op].__module__ == OPS[name].__module__]
    return pytest.param(name, marks=[] if name == min(siblings) else [pytest.mark.slow])


@pytest.mark.parametrize("name", [case(name) for name in sorted(OPS)])
@pytest.mark.few(2)
def test_audit_of_op_has_no_findings(name, subjects):
    (outcome,) = outcomes_of([subjects[name]])
    bad = [f for f in outcome.findings if f.severity != "info"]
    assert not bad, "\n".join(f"{f.rule} {f.name}: {f.message}\n{f.reproduce}" for f in bad)
    assert outcome.result.status == ("intended" if name in MODIFIERS else "ok")
    assert outcome.result.cases >= 15


def test_catalogue_page_lists_every_op():
    rows = [line.split("|")[1].strip() for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:3] == "| `"]
    listed = [row.strip("`").partition("(")[0] for row in rows]
    assert sorted(listed) == sorted([*OPS, "where_safe"])

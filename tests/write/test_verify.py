"""Written classes import, pass their own tests and the audit, and equal the op in value and two derivatives.

`write` itself compares the class with the op and raises on a difference: `test_source_that_differs_from_the_op_raises`.
"""

import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

import pullback
from pullback.check.find.discover import subjects_of_module
from pullback.check.subject import Options
from pullback.errors import FormulaError
from pullback.write import verify
from pullback.write.api import written
from pullback.write.target import spec_of
from tests.bulk import outcomes_of
from tests.catalog.test_audit import OPS
from tests.check.modules import import_source

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
tutorial = import_module("tutorial_functions")
sys.path.pop(0)

EXAMPLES = {
    f"tutorial {name}": value
    for name, value in vars(tutorial).items()
    if isinstance(value, type) and value.__module__ == tutorial.__name__ and name != "RoundStraightThrough"
}
TARGETS = OPS | EXAMPLES
OPTIONS = Options(budget=3)
WITHOUT_A_GRADIENT = {"stop_grad"}
"""Ops without anything for the audit to test."""


@pytest.fixture(scope="module")
def modules(name, tmp_path_factory):
    """The module written for a target, and the module of its tests."""
    folder = tmp_path_factory.mktemp("written")
    number = sorted(TARGETS).index(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        found = written(TARGETS[name], (), {})
        module = import_source(found.source, folder, f"written_{number}")
        return module, import_source(found.test(module.__name__), folder, f"tests_of_written_{number}")


@pytest.mark.parametrize("name", sorted(TARGETS), scope="module")
@pytest.mark.few(17)
def test_written_tests_pass(name, modules):
    tests = [value for key, value in vars(modules[1]).items() if key.startswith("test_")]
    assert len(tests) >= (1 if name in WITHOUT_A_GRADIENT | {"tutorial MaskedSum"} else 2)
    for test in tests:
        test()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TARGETS.keys() - WITHOUT_A_GRADIENT), scope="module")
def test_audit_of_written_class_finds_no_error(modules):
    for outcome in outcomes_of(subjects_of_module(modules[0]), OPTIONS):
        assert not [f.message for f in outcome.findings if f.severity == "error"]
        if not outcome.result.name.endswith("Last"):  # its derivative raises on purpose
            assert outcome.result.cases > 0


def test_source_that_differs_from_the_op_raises():
    x = torch.linspace(-1, 1, 7)
    d, tensors = spec_of(lambda x: torch.sin(x) * x, (x,), {})
    source = pullback.write(lambda x: torch.sin(x) * x, x)
    verify.require_equivalent(d, source, tensors)
    for right, wrong, part in (
        ("return torch.sin(x) * x", "return torch.sin(x) * 2 * x", "value"),
        ("return g * (", "return 2 * g * (", "gradient"),
        ("(x,) = ctx.saved_tensors", "x = ctx.saved_tensors[0].detach()", "second derivative"),
    ):
        assert right in source
        with pytest.raises(FormulaError, match=part):
            verify.require_equivalent(d, source.replace(right, wrong), tensors)

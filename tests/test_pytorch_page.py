"""The page on PyTorch's nested derivatives: its programs are short, and show the faults that it tells of."""

import importlib
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "pytorch.md"
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
# PyTorch's own: its first use of forward mode compiles decompositions with it.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
NUMBER = re.compile(r"nan|-?\d+\.?\d*")


@pytest.fixture(scope="module")
def audit():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    yield importlib.import_module("audit_pytorch")
    sys.path.remove(str(ROOT / "benchmarks"))


@pytest.fixture(scope="module")
def programs(audit):
    return [(match[1], match[2]) for match in audit.PROGRAM.finditer(PAGE.read_text(encoding="utf-8"))]


def test_each_program_has_at_most_12_lines_and_what_it_printed(programs):
    assert [code for code, _ in programs] == BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert all(len([line for line in code.splitlines() if line]) <= 12 for code, _ in programs)


def test_each_program_shows_a_wrong_number_and_the_formula_that_mends_it(programs):
    """`ff 1.0, rf 1.0; by the formula ff 2.0, rf 2.0; exactly 2`: first wrong, in some version; then right in all."""
    for code, printed in programs:
        lines = [line.partition(": ")[2] for line in printed.splitlines() if ": raises " not in line]
        parts = [[[float(n) for n in NUMBER.findall(part)] for part in line.split(";")] for line in lines]
        assert any(abs(n - exact[0]) > 0.01 or n != n for got, _, exact in parts for n in got), code
        assert all(abs(n - exact[0]) < 1e-3 for _, mended, exact in parts for n in mended), code


def test_programs_print_what_the_page_says(audit, programs):
    """With this PyTorch, if the page has it. If PyTorch has mended a rule, write the page anew."""
    for code, printed in programs:
        told = dict(line.split(": ", 1) for line in printed.splitlines())
        if audit.VERSION in told:
            assert audit.output_of(code) == told[audit.VERSION]

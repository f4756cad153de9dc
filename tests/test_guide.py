"""The guide, the tutorial, the cookbook, the FAQ and the core in 300 lines: their code prints what they show."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pullback import errors
from tests.check.modules import import_source
from tests.test_docs import assert_shown

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
CORE = DOCS / "dev" / "how_it_works.md"
PAGES = [*sorted(DOCS.glob("guide/*.md")), DOCS / "cookbook.md", DOCS / "faq.md", CORE]
TUTORIAL = DOCS / "tutorial.md"
ERRORS = (DOCS / "guide" / "errors.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```python\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)
_END = "<end of a block>"
_STEP = re.compile(r"^```(python|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_PROGRESS = re.compile(r"^pullback: auditing: .*\n", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
@pytest.mark.few(5)
def test_page_prints_what_it_shows(page, tmp_path, capsys):
    """All blocks of Python are one module; a block of text below one is what it prints, to the letter."""
    blocks = _BLOCK.findall(page.read_text(encoding="utf-8"))
    source = "".join(f"{code}\n\nprint({_END!r})\n\n\n" for code, _ in blocks)
    import_source(source, tmp_path, f"guide_{page.stem}")
    printed = capsys.readouterr().out.split(f"{_END}\n")
    assert printed[:-1] == [shown for _, shown in blocks]


def test_core_has_at_most_300_lines():
    code = "".join(block for block, _ in _BLOCK.findall(CORE.read_text(encoding="utf-8")))
    assert 200 < len(code.splitlines()) <= 300


@pytest.mark.slow
def test_tutorial_prints_what_it_shows(tmp_path):
    """Blocks of Python are files, named in their first line; blocks of a console are run beside them, in order."""
    for language, block in _STEP.findall(TUTORIAL.read_text(encoding="utf-8")):
        if language == "python":
            (tmp_path / block.partition("\n")[0].removeprefix("# ")).write_text(block, encoding="utf-8")
            continue
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = step.partition("\n")
            assert_shown(shown, run_in(tmp_path, command))


def run_in(folder, command):
    """Run a line of a console with this Python; return its output, then its errors, without the progress."""
    program = {"python": f"{sys.executable}", "pullback": f"{sys.executable} -m pullback"}
    name, _, rest = command.partition(" ")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        f"{program.get(name, name)} {rest}", shell=True, cwd=folder, env=environment, capture_output=True, text=True
    )
    return done.stdout + _PROGRESS.sub("", done.stderr)


def test_errors_page_lists_each_class():
    classes = {name for name, value in vars(errors).items() if getattr(value, "__module__", "") == errors.__name__}
    classes = {name for name in classes if isinstance(getattr(errors, name), type)}
    assert len(classes) == 8
    assert set(re.findall(r"^## `(\w+)`$", ERRORS, re.MULTILINE)) == classes


def test_errors_page_quotes_messages_of_the_source():
    """The code in the first column of its tables, and at the start of each listed warning."""
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    said = re.sub(r'"\s*\n\s*f?"', "", sources)  # strings over several lines
    cells = re.findall(r"^\| (`.*?`) \| ", ERRORS, re.MULTILINE)
    quoted = [text for cell in cells for text in re.findall(r"`([^`]+)`", cell)]
    quoted += re.findall(r"^- `([^`]+)`", ERRORS, re.MULTILINE)
    assert len(quoted) > 40
    assert [text for text in quoted if text not in said] == []

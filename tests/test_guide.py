"""The pages of the guide: their code runs, and prints what they show below it."""

import re
from pathlib import Path

import pytest

from pullback import errors
from tests.check.modules import import_source

ROOT = Path(__file__).resolve().parents[1]
GUIDE = ROOT / "docs" / "guide"
ERRORS = (GUIDE / "errors.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```python\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)
_END = "<end of a block>"


@pytest.mark.parametrize("page", sorted(GUIDE.glob("*.md")), ids=lambda page: page.stem)
@pytest.mark.few(5)
def test_a_page_prints_what_it_shows(page, tmp_path, capsys):
    """All blocks of Python are one module; a block of text below one is what it prints, to the letter."""
    blocks = _BLOCK.findall(page.read_text(encoding="utf-8"))
    source = "".join(f"{code}\n\nprint({_END!r})\n\n\n" for code, _ in blocks)
    import_source(source, tmp_path, f"guide_{page.stem}")
    printed = capsys.readouterr().out.split(f"{_END}\n")
    assert printed[:-1] == [shown for _, shown in blocks]


def test_the_page_on_errors_has_each_class():
    classes = {name for name, value in vars(errors).items() if getattr(value, "__module__", "") == errors.__name__}
    classes = {name for name in classes if isinstance(getattr(errors, name), type)}
    assert len(classes) == 8
    assert set(re.findall(r"^## `(\w+)`$", ERRORS, re.MULTILINE)) == classes


def test_the_page_on_errors_quotes_what_is_said():
    """What stands in code in the first column of its tables, and first in the list of warnings."""
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    said = re.sub(r'"\s*\n\s*f?"', "", sources)  # strings over several lines
    cells = re.findall(r"^\| (`.*?`) \| ", ERRORS, re.MULTILINE)
    quoted = [text for cell in cells for text in re.findall(r"`([^`]+)`", cell)]
    quoted += re.findall(r"^- `([^`]+)`", ERRORS, re.MULTILINE)
    assert len(quoted) > 40
    assert [text for text in quoted if text not in said] == []

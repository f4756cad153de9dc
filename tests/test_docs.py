"""The documentation is current: its pages, its links, its code, and the report that the README shows."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import pullback
from tests.check.modules import import_source

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
PAGES += sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_NUMBER = re.compile(r"\d+(\.\d+)?(e[-+]?\d+)?")


def blocks(path, language):
    """Return the code blocks of a page in one language."""
    return [code for found, code in _FENCE.findall(path.read_text(encoding="utf-8")) if found == language]


def links(path):
    """Return the targets of a page's links, those in code left out."""
    text = re.sub(r"`[^`]*`", "", _FENCE.sub("", path.read_text(encoding="utf-8")))
    return [target for target in _LINK.findall(text) if not re.match(r"[a-z]+:", target)]


def anchors(path):
    """Return the names that the headings of a page go by in a link."""
    text = _FENCE.sub("", path.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.fixture(scope="module")
def generator():
    return runpy.run_path(str(ROOT / "docs" / "generate_rules.py"))


def test_the_rule_pages_are_current(generator):
    stale = generator["outdated"](ROOT / "docs" / "rules")
    assert not stale, "run python docs/generate_rules.py"


def test_an_outdated_rule_page_is_noticed_and_mended(generator, tmp_path):
    folder = tmp_path / "rules"
    generator["write"](folder)
    assert generator["outdated"](folder) == []
    (folder / "pb101.md").write_text("old")
    (folder / "pb102.md").unlink()
    (folder / "pb999.md").write_text("no such rule")
    assert generator["outdated"](folder) == ["pb101.md", "pb102.md", "pb999.md"]
    generator["write"](folder)
    assert generator["outdated"](folder) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    for target in links(page):
        file, _, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        assert there.is_relative_to(ROOT), target
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


def test_pictures_are_small():
    pictures = [*ROOT.glob("docs/*.png"), *ROOT.glob("docs/*.svg")]
    assert pictures
    assert all(picture.stat().st_size < 300_000 for picture in pictures)


def module_of(page, folder):
    """Run the Python of a page, all its blocks as one module."""
    return import_source("\n\n".join(blocks(page, "python")), folder, f"code_of_{page.stem.lower()}")


def test_the_code_of_the_guide_runs(tmp_path):
    module = module_of(ROOT / "docs" / "check.md", tmp_path)
    module.test_cube_is_sound()
    for args, kwargs in module.inputs(module.Cube):
        module.Cube.apply(*args, **kwargs)


def test_the_code_of_the_page_on_programs_runs(tmp_path, capsys):
    assert module_of(ROOT / "docs" / "run.md", tmp_path).watched.report.ok
    assert "Square" in capsys.readouterr().out


@pytest.mark.slow
def test_the_code_of_the_guide_to_making_runs(tmp_path, capsys):
    module = module_of(ROOT / "docs" / "make.md", tmp_path)
    assert "sigmoid" in capsys.readouterr().out
    assert module.clip_grad.kind == "ruled"


def test_the_code_of_the_page_on_accuracy_runs(tmp_path, capsys):
    module_of(ROOT / "docs" / "numerics.md", tmp_path)
    assert "d/dx" in capsys.readouterr().out


def test_the_page_on_writing_shows_what_is_written(tmp_path):
    """To renew it: write the block of code to gates.py and run `pullback write gates.py:gate`."""
    page = ROOT / "docs" / "write.md"
    (shown,) = blocks(page, "text")
    assert shown == pullback.write(module_of(page, tmp_path).gate)


@pytest.mark.slow
def test_the_page_on_fixing_shows_what_would_change(tmp_path):
    """To renew it: write the block of code to ops.py and run `pullback check ops.py --diff`."""
    page = ROOT / "docs" / "fix.md"
    (source,), (shown,) = blocks(page, "python"), blocks(page, "diff")
    (tmp_path / "ops.py").write_text(source)
    command = [sys.executable, "-m", "pullback", "check", "ops.py", "--diff"]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert printed.stdout == shown, printed.stderr


def test_the_code_of_the_readme_runs_and_finds_the_mistake(tmp_path):
    module = module_of(ROOT / "README.md", tmp_path)
    with pytest.raises(AssertionError, match="PB101 wrong-vjp"):
        module.test_sin_squared()


def test_the_readme_sums_up_the_table_of_contexts():
    rows = re.findall(r"^\| .*\|$", (ROOT / "docs" / "composition.md").read_text(encoding="utf-8"), re.MULTILINE)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    totals = [row for row in rows if re.match(r"\| (kept|refused|error|SILENTLY WRONG) \| \d", row)]
    assert len(totals) == 4
    for row in totals:
        assert row in readme
    contexts = sum(int(row.split(" | ")[1]) for row in totals)
    assert f"in {contexts} ways" in readme


@pytest.mark.slow
def test_the_readme_shows_what_the_program_prints(tmp_path):
    """To renew it: write the first block of code to ops.py and run `pullback check ops.py`."""
    (shown,) = blocks(ROOT / "README.md", "text")
    (tmp_path / "ops.py").write_text(blocks(ROOT / "README.md", "python")[0])
    command = [sys.executable, "-m", "pullback", "check", "ops.py"]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    # Numbers aside: the last digits depend on the processor, and the seconds on everything.
    assert _NUMBER.sub("#", shown).split() == _NUMBER.sub("#", printed).split()

"""The documentation is current: pages, links, code, and the report in the README."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import pullback
from tests.check.modules import import_source

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
PAGES += sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_IN_WORDS = ("faq.md", "performance.md", "cookbook.md")
_NUMBER = re.compile(r"\d+(\.\d+)?(e[-+]?\d+)?")


def blocks(path, language):
    """Return the code blocks of a page in one language."""
    return [code for found, code in _FENCE.findall(path.read_text(encoding="utf-8")) if found == language]


def links(path):
    """Return the targets of a page's links, except in code."""
    text = re.sub(r"`[^`]*`", "", _FENCE.sub("", path.read_text(encoding="utf-8")))
    return [target for target in _LINK.findall(text) if not re.match(r"[a-z]+:", target)]


def anchors(path):
    """Return the anchors of a page's headings."""
    text = _FENCE.sub("", path.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def assert_shown(shown, printed):
    """Assert that a page shows what a program prints; a line `…` of the page stands for omitted lines.

    Numbers are not compared: last digits depend on the processor, and times vary.
    """
    rest = _NUMBER.sub("#", printed).split()
    for k, part in enumerate(re.split(r"^…\n", _NUMBER.sub("#", shown), flags=re.MULTILINE)):
        words = part.split()
        starts = [0] if k == 0 else range(len(rest) - len(words) + 1)
        start = next((start for start in starts if rest[start : start + len(words)] == words), None)
        assert start is not None, f"{part}\nis not printed in\n{printed}"
        rest = rest[start + len(words) :]
    assert not rest or shown.endswith("…\n"), f"{shown}\nends before\n{printed}"


@pytest.fixture(scope="module")
def generator():
    return runpy.run_path(str(ROOT / "docs" / "generate_rules.py"))


def test_rule_pages_are_current(generator):
    stale = generator["outdated"](ROOT / "docs" / "rules")
    assert not stale, "run python docs/generate_rules.py"


def test_outdated_rule_pages_are_reported_and_rewritten(generator, tmp_path):
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
def test_links_resolve(page):
    for target in links(page):
        file, _, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        assert there.is_relative_to(ROOT), target
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


def test_files_named_by_the_pages_exist():
    """Paths are relative to the root, the package or the tests: `graph/partition.py`."""
    names = {
        name for page in PAGES for name in re.findall(r"`([a-z_]+/[a-z0-9_/]+\.py)`", page.read_text(encoding="utf-8"))
    }
    assert len(names) > 40
    folders = ROOT, ROOT / "src" / "pullback", ROOT / "tests"
    assert sorted(name for name in names if not any((folder / name).exists() for folder in folders)) == []
    starts = [cells[-1] for cells in table(ROOT / "docs" / "dev" / "how_it_works.md", "| step | above").values()][2:]
    modules = [re.findall(r"`([\w/]+\.py)`", cell) for cell in starts]
    assert len(modules) == 9
    for names in modules:
        assert names
        assert all((ROOT / "src" / "pullback" / name).exists() for name in names), names


def test_rule_in_contributing_matches_its_file():
    (shown,) = blocks(ROOT / "CONTRIBUTING.md", "python")
    (file,) = ROOT.glob("src/pullback/check/rules/pb803_*.py")
    assert file.read_text(encoding="utf-8").endswith(f'"""\n\n{shown}')


def test_op_in_contributing_matches_its_files():
    (shown,) = blocks(ROOT / "CONTRIBUTING.md", "diff")
    parts = re.split(r"^--- (.+)\n", shown, flags=re.MULTILINE)[1:]
    assert len(parts) == 4
    for name, added in zip(parts[::2], parts[1::2], strict=True):
        assert re.sub(r"^\+", "", added, flags=re.MULTILINE) in (ROOT / name).read_text(encoding="utf-8")


def test_reference_lists_every_public_name():
    page = (ROOT / "docs" / "reference" / "index.md").read_text(encoding="utf-8")
    names = set(re.findall(r"^::: pullback\.(?:\w+\.api\.)?(\w+)$", page, re.MULTILINE))
    assert names == {*pullback.__all__} - {"__version__", "catalog"}
    catalog = (ROOT / "docs" / "reference" / "catalog.md").read_text(encoding="utf-8")
    families = {path.stem for path in (ROOT / "src" / "pullback" / "catalog").glob("[a-z]*.py")}
    assert set(re.findall(r"^::: pullback\.catalog\.(\w+)$", catalog, re.MULTILINE)) == families


def test_pictures_are_small():
    pictures = [*ROOT.glob("docs/*.png"), *ROOT.glob("docs/*.svg")]
    assert pictures
    assert all(picture.stat().st_size < 300_000 for picture in pictures)


def test_readme_picture_is_self_contained():
    """Its colours do not depend on the style sheet of the report."""
    picture = (ROOT / "docs" / "sin_squared.svg").read_text(encoding="utf-8")
    assert "the numeric derivative" in picture
    assert "var(" not in picture
    assert not re.findall(r'(?:href|src)="(?!#)|url\((?!#)', picture)


def module_of(page, folder):
    """Run the Python of a page, all its blocks as one module."""
    return import_source("\n\n".join(blocks(page, "python")), folder, f"code_of_{page.stem.lower()}")


def test_code_of_the_check_page_runs(tmp_path):
    module = module_of(ROOT / "docs" / "check.md", tmp_path)
    module.test_cube_is_sound()
    for args, kwargs in module.inputs(module.Cube):
        module.Cube.apply(*args, **kwargs)


@pytest.mark.parametrize("page", ["judge.md", "agents.md"])
@pytest.mark.few(1)
def test_code_of_the_pages_on_judging_runs(page, tmp_path):
    module = module_of(ROOT / "docs" / page, tmp_path)
    assert getattr(module, "verdict", None) is None or module.verdict.is_right


def test_code_of_the_run_page_runs(tmp_path, capsys):
    assert module_of(ROOT / "docs" / "run.md", tmp_path).watched.report.ok
    assert "Square" in capsys.readouterr().out


@pytest.mark.slow
def test_code_of_the_make_page_runs(tmp_path, capsys):
    module = module_of(ROOT / "docs" / "make.md", tmp_path)
    assert "sigmoid" in capsys.readouterr().out
    assert module.clip_grad.kind == "ruled"


def test_code_of_the_numerics_page_runs(tmp_path, capsys):
    module_of(ROOT / "docs" / "numerics.md", tmp_path)
    assert "d/dx" in capsys.readouterr().out


def test_write_page_shows_the_written_class(tmp_path):
    """To update the page: write the block of code to gates.py and run `pullback write gates.py:gate`."""
    page = ROOT / "docs" / "write.md"
    (shown,) = blocks(page, "text")
    assert shown == pullback.write(module_of(page, tmp_path).gate)


@pytest.mark.slow
def test_fix_page_shows_the_printed_diff(tmp_path):
    """To update the page: write the block of code to ops.py and run `pullback check ops.py --diff`."""
    page = ROOT / "docs" / "fix.md"
    (source,), (shown,) = blocks(page, "python"), blocks(page, "diff")
    (tmp_path / "ops.py").write_text(source)
    command = [sys.executable, "-m", "pullback", "check", "ops.py", "--diff"]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert printed.stdout == shown, printed.stderr


def test_readme_code_prints_what_the_readme_shows(tmp_path, capsys):
    _, printed, written = blocks(README, "text")
    module = module_of(README, tmp_path)
    assert capsys.readouterr().out == printed
    assert_shown(written, pullback.write(module.SinSquared))


@pytest.mark.slow
def test_readme_shows_the_output_of_check(tmp_path):
    """To update the README: write the first block of code to ops.py and run `pullback check ops.py`."""
    shown = blocks(README, "text")[0]
    (tmp_path / "ops.py").write_text(blocks(README, "python")[0])
    command = [sys.executable, "-m", "pullback", "check", "ops.py"]
    assert_shown(shown, subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout)


def test_abridged_output_is_compared_around_the_ellipsis():
    assert_shown("a 1\n…\nd\n", "a 2\nb\nc\nd\n")
    assert_shown("…\nc\n…\n", "a\nb\nc\nd\n")
    for shown in ("b\n…\n", "a\nc\n…\n", "a\n…\nc\n", "…\nc\nb\n…\n", "a\n"):
        with pytest.raises(AssertionError, match=r"is not printed in|ends before"):
            assert_shown(shown, "a\nb\nc\nd\n")


def table(path, head):
    """Return the rows of the table whose header starts with `head`: a dict from the first cell to the others."""
    text = path.read_text(encoding="utf-8")
    lines = text[text.index(head) :].split("\n\n")[0].split("\n")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {name: cells for name, *cells in rows}


def test_readme_figures_match_the_tables():
    """Each claim is formatted from the table that it links to."""
    readme = " ".join(README.read_text(encoding="utf-8").split())
    wild = table(ROOT / "docs" / "in_the_wild.md", "| package")["13 packages"]
    power = table(ROOT / "benchmarks" / "README.md", "| found, of 205 mutants")
    contexts = table(ROOT / "docs" / "composition.md", "|  | derived")
    wrong = dict(zip(contexts[""], contexts["SILENTLY WRONG"], strict=True))
    everywhere = sum(int(contexts[how][0]) for how in ("kept", "refused", "error", "SILENTLY WRONG"))
    truth = table(ROOT / "benchmarks" / "README.md", "| | tuned")
    share, errors = (int(number) for number in truth["errors that are correct"][-1].split(" % of "))
    alarms, correct = truth["false alarms on correct derivatives"][-1].split(" of ")
    performance = ROOT / "docs" / "performance.md"
    speed = table(performance, "|  | op / sigmoid")
    size = dict(zip(speed[""], speed["σ(x)·rsqrt(1+exp x), 2^20"], strict=True))
    over = {peer: f"{1 / float(size[f'op / {peer}']):.1f}" for peer in ("eager", "hand", "compile")}
    slow = [speed[f"{formula}, 2^20"][speed[""].index("op / compile")] for formula in ("GELU", "SwiGLU")]
    gpu = [float(cell.split()[0]) for cell in table(performance, "| op / peer: median (least, most)")["eager"]]
    for claim in (
        f"In {wild[2]} custom functions of 13 packages the audit finds {wild[3]} errors",
        f"`gradcheck` and `gradgradcheck` with every flag find {power['the three together'][0]}",
        f"`pullback check` finds {power['`pullback.check`'][0]}",
        f"We differentiated a straight-through estimator with PyTorch 2.13 in {everywhere} ways",
        f"it is silently wrong in {wrong['Function, old style']}, as a `custom_op` in {wrong['custom_op']},",
        f"as a Pullback op in {max(int(wrong[op]) for op in ('derived', 'relaxed', 'ruled', 'ruled by jvp'))}:",
        f"Of {truth['known bugs'][-1]} bugs in {truth['packages'][-1]} packages",
        f"it reports {truth['reported as an error'][-1].partition(' of')[0]} as an error,"
        f" {truth['as an error or a warning'][-1].partition(' of')[0]} as an error or a warning",
        f"Of the {errors} errors whose ground truth is undisputed, {share * errors / 100:.0f} were real",
        f"on {correct} correct derivatives there were {alarms} false alarms",
        f"{over['eager']} times faster than in eager PyTorch",
        f"{over['hand']} times faster than in a Function written by hand",
        f"{over['compile']} times faster than with `torch.compile`",
        f"are {float(slow[0]):.1f} and {float(slow[1]):.1f} times slower than `torch.compile`",
        f"{max(gpu[:3]):.1f} times slower than eager PyTorch up to 2^20 numbers",
        f"and {1 / gpu[3]:.1f} times faster at 2^24",
    ):
        assert claim in readme
    assert len(README.read_text(encoding="utf-8").splitlines()) < 120


def test_summaries_in_prose_match_the_tables():
    """In the FAQ, the performance page and the cookbook: "n times faster", where a table has a ratio of times."""
    performance = ROOT / "docs" / "performance.md"
    rows = table(performance, "| median, worst (floor; goal)")
    sizes = [cell.partition(" (")[0].split(" = ")[-1] for cell in rows["median, worst (floor; goal)"]]

    def faster(peer, size):
        median, _, _ = rows[f"op / {peer}"][sizes.index(size)].partition(",")
        return f"{1 / float(median):.1f} times faster"

    words = {page: " ".join((ROOT / "docs" / page).read_text(encoding="utf-8").split()) for page in _IN_WORDS}
    eager, small = faster("eager", "2^20"), faster("eager", "8")
    assert f"{eager} than eager PyTorch at 2^20 float32 numbers and {small} at 8" in words["faq.md"]
    assert f"at 2^20 numbers the median op is {eager} than eager PyTorch" in words["performance.md"]
    assert (
        f"and {faster('compile', '2^20')} than `torch.compile`. At 8 numbers it is {small}" in words["performance.md"]
    )
    memory, time = table(performance, "| 2048 rows, vocabulary 32768")["op"]
    chunked = f"{memory} times the peak memory of eager PyTorch, and is {1 / float(time):.1f} times faster"
    assert chunked in words["cookbook.md"]
    assert chunked in words["performance.md"]
    kept = table(performance, "| bytes kept for the backward")["median, worst (floor 0.5; 1.0)"][0]
    assert kept.startswith("0.50,")
    assert "half the bytes for the backward that autograd keeps" in words["performance.md"]
    contexts = table(ROOT / "docs" / "composition.md", "|  | derived")
    derived, relaxed, ruled = contexts["kept"][:3]
    everywhere = sum(int(contexts[how][0]) for how in ("kept", "refused", "error", "SILENTLY WRONG"))
    assert (
        f"keeps its derivative in {derived} of {everywhere} contexts, and one with a relaxation in {relaxed}"
        in words["faq.md"]
    )
    assert f"A rule (`@op.vjp`) is kept in {ruled}." in words["faq.md"]
    power = table(ROOT / "benchmarks" / "README.md", "| found, of 205 mutants")
    flags, three = power["`gradcheck`, every flag"][0], power["the three together"][0]
    assert f"the audit finds {power['`pullback.check`'][0]}." in words["faq.md"]
    assert f"`gradcheck` with every flag finds {flags}, and together with `gradgradcheck` {three}" in words["faq.md"]

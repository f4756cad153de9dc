"""The site builds without a warning, links every page, and loads nothing from a network."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = {"README.md": "index", "CONTRIBUTING.md": "contributing", "CHANGELOG.md": "changes"}
LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href", "object": "data"}


class Page(HTMLParser):
    """Links of a page, and the resources that it loads."""

    def __init__(self, file):
        super().__init__()
        self.links, self.loads = set(), set()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag == "a" and "href" in given:
            self.links.add(given["href"])
        if (address := given.get(LOADING.get(tag))) and given.get("rel") not in ("canonical", "prev", "next"):
            self.loads.add(address)


def build(folder, *options):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder), *options]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # silences the theme's announcement
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    built = build(folder)
    assert built.returncode == 0, built.stderr
    return folder


def pages():
    """Yield the path of each expected page."""
    for file in ROOT.glob("docs/**/*.md"):
        if "dev" not in file.parts:
            yield file.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
    yield from (f"{page}.html" for page in (*OUTSIDE.values(), "benchmarks", "dev/how_it_works", "dev/architecture"))


def test_navigation_links_every_page(site):
    assert set(pages()) <= Page(site / "index.html").links


def test_pages_load_nothing_from_a_network(site):
    files = [*site.rglob("*.html")]
    assert len(files) > 100
    for file in files:
        assert not [address for address in Page(file).loads if "//" in address], file
        assert 'class="mermaid"' not in file.read_text(encoding="utf-8"), "the theme loads what draws diagrams"
    for file in site.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", file.read_text(encoding="utf-8")), file


def test_links_between_files_become_links_between_pages(site):
    assert {"make.html", "rules/index.html", "benchmarks.html", "contributing.html"} <= Page(site / "index.html").links
    assert "numerics.html#rows" in Page(site / "benchmarks.html").links
    assert "benchmarks.html" in Page(site / "make.html").links


def test_rule_pages_are_titled_by_their_heading(site):
    page = (site / "rules" / "pb101.html").read_text(encoding="utf-8")
    assert "<title>wrong-vjp (PB101) - Pullback</title>" in page


def test_page_missing_from_the_navigation_fails_the_build(tmp_path):
    """With a configuration that omits one page."""
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert config.count("run.md") == 1
    other = tmp_path / "mkdocs.yml"
    other.write_text(
        re.sub(r"\n.*run\.md", "", config)
        .replace("docs_dir: docs", f"docs_dir: {ROOT / 'docs'}")
        .replace("docs/site_hooks.py", str(ROOT / "docs" / "site_hooks.py"))
    )
    built = build(tmp_path / "site", "--config-file", str(other))
    assert built.returncode == 1
    assert "run.md" in built.stderr

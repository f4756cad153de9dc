"""What MkDocs cannot be told in mkdocs.yml: pages that lie outside of docs/, and a navigation of the rules' pages."""

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
_OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    "benchmarks/README.md": "benchmarks.md",
}
"""Files of the repository, and the pages of the site that they become."""

_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
_FAMILY = re.compile(r"^## (.+) \((PB\d)\)$")
_RULE = re.compile(r"^\| \[PB\d{3}\]\((pb\d{3}\.md)\)")
_FORMER = re.compile(r"^\| (PB\d{3}) \|")


def on_config(config):
    """Put the pages of the rules, by family, where the navigation has the folder."""
    config.nav = [{name: _rules() if page == "rules/" else page} for item in config.nav for name, page in item.items()]
    return config


def _rules():
    families = [{"What they cover": "rules/coverage.md"}]
    for line in (ROOT / "docs" / "rules" / "index.md").read_text(encoding="utf-8").splitlines():
        if found := _FAMILY.match(line):
            pages = []
            families.append({f"{found[2]}: {found[1]}": pages})
        elif line == "## Former ids":
            families.append({"Former ids": (pages := [])})
        elif found := _RULE.match(line):
            pages.append(f"rules/{found[1]}")
        elif found := _FORMER.match(line):
            pages.append(f"rules/{found[1].lower()}.md")
    return ["rules/index.md", *families]


def on_files(files, config):
    """Take in the pages from outside of docs/."""
    for source, page in _OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown, page, config, files):
    """Turn links between files of the repository into links between pages; of a file that is not a page the name stays.

    A comment above the heading goes: with it MkDocs would take the page's title from the name of its file.
    """
    uri = page.file.src_uri
    source = next((source for source, moved in _OUTSIDE.items() if moved == uri), f"docs/{uri}")
    text = re.sub(r"\A<!--.*?-->\s*", "", markdown, flags=re.DOTALL)
    return _LINK.sub(lambda link: _moved(link, posixpath.dirname(source), uri, files), text)


def _moved(link, folder, uri, files):
    text, target = link.groups()
    file, mark, anchor = target.partition("#")
    there = posixpath.normpath(posixpath.join(folder, file))
    if not file or not (ROOT / there).exists():  # another site, this page, or no link: `functions[i](x)` in code
        return link[0]
    there = _OUTSIDE.get(there, there.removeprefix("docs/"))
    if files.get_file_from_path(there) is None:
        return text
    return f"[{text}]({posixpath.relpath(there, posixpath.dirname(uri) or '.')}{mark}{anchor})"

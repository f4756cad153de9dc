"""Writes a page for each rule from its docstring, and the index, to docs/rules.

python docs/generate_rules.py            # write them
python docs/generate_rules.py --check    # change nothing; exit with status 1 if any is out of date
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from pullback.check import rules
from pullback.check.rules import Rule, all_rules

FOLDER = Path(__file__).resolve().parent / "rules"

FAMILIES = {
    "PB0": "The audit itself, and the process",
    "PB1": "Contract",
    "PB2": "Context",
    "PB3": "Numerics",
    "PB4": "Composition",
    "PB5": "Layout and shape",
    "PB6": "Determinism and purity",
    "PB7": "Memory and speed",
    "PB8": "Source only",
    "PB9": "Triton kernels",
}
SUBJECTS = {"function": "`autograd.Function` classes", "op": "custom ops", "callable": "callables"}

INDEX_HEAD = """\
# The rules

Each rule tests one property. Its id never changes and is never reused. Its name silences it in the source:
`# pullback: allow[NAME] reason`. The command `pullback rules` prints this list, and `pullback rules PB101` a page.

A *static* rule reads the source, and a *runtime* rule runs the function. A rule that is both also examines the source
of functions that cannot be run. *Runner* rules report how the audit, or its process, ended. The page on the audit
explains [verdicts and severities](../check.md#verdicts-and-severities).
"""

FORMER = """\
These rules examined the source of functions that cannot be run. Each is now the static half of the runtime rule that
measures the same property. The old ids and names still select, ignore and allow its findings."""


def main() -> None:
    """Write the pages, or say which are out of date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a page is out of date")
    options = parser.parse_args()
    stale = outdated(FOLDER)
    if options.check and stale:
        sys.exit(f"out of date: {', '.join(stale)}; run python docs/generate_rules.py")
    if not options.check:
        write(FOLDER)


def pages() -> dict[str, str]:
    """Return the text of each file of docs/rules, by its name."""
    catalogue = all_rules()
    halves = {f"{rule.alias.id.lower()}.md": alias_page(rule) for rule in catalogue if rule.alias}
    return {"index.md": index(catalogue), **{file_name(rule): page(rule, catalogue) for rule in catalogue}, **halves}


def outdated(folder: Path) -> list[str]:
    """Return the names of the files that are missing, differ from what they should be, or should not be there."""
    wanted = pages()
    paths = [*folder.glob("pb*.md"), *folder.glob("index.md")]
    present = {path.name: path.read_text(encoding="utf-8") for path in paths}
    return sorted(name for name in wanted.keys() | present.keys() if wanted.get(name) != present.get(name))


def write(folder: Path) -> None:
    """Bring the folder up to date."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = pages()
    for name in outdated(folder):
        if name in wanted:
            (folder / name).write_text(wanted[name], encoding="utf-8")
        else:
            (folder / name).unlink()


def index(catalogue: Sequence[Rule]) -> str:
    """Return the table of all rules, one section a family."""
    lines = [_generated("the docstrings of src/pullback/check/rules"), "", INDEX_HEAD]
    for family, members in groupby(catalogue, key=lambda rule: rule.family):
        lines += [f"## {FAMILIES[family]} ({family})", "", "| id | name | summary | kind |", "| -- | -- | -- | -- |"]
        lines += [f"| [{r.id}]({file_name(r)}) | `{r.name}` | {r.summary} | {kind(r)} |" for r in members]
        lines.append("")
    lines += ["## Former ids", "", FORMER, "", "| id | name | now |", "| -- | -- | -- |"]
    halves = [(rule.alias, rule) for rule in catalogue if rule.alias]
    for half, rule in sorted(halves, key=lambda pair: pair[0].id):
        lines.append(f"| {half.id} | `{half.name}` | [{rule.id}]({file_name(rule)}) |")
    return "\n".join([*lines, ""])


def alias_page(rule: Rule) -> str:
    """Return the page of a former rule, which points to the one whose static half it is."""
    assert rule.alias is not None
    return "\n".join(
        [
            _generated(f"the docstring of {_source(rule)}"),
            "",
            f"# {rule.alias.name} ({rule.alias.id})",
            "",
            f"This rule is now the static half of [{rule.name} ({rule.id})]({file_name(rule)}). "
            f"`--select`, `--ignore`, allow comments and baselines still accept `{rule.alias.id}`.",
            "",
            "[All rules](index.md)",
            "",
        ]
    )


def page(rule: Rule, catalogue: Sequence[Rule]) -> str:
    """Return a rule's page: its docstring, with a heading, what kind it is, and links to the rules it names."""
    _, _, body = rule.page.partition("\n")
    others = {other.id for other in catalogue} - {rule.id}
    subjects = ", ".join(SUBJECTS[subject] for subject in rule.kinds)
    head = [
        _generated(f"the docstring of {_source(rule)}"),
        "",
        f"# {rule.name} ({rule.id})",
        "",
        f"What goes wrong: {rule.summary}.",
        "",
        f"Family: {FAMILIES[rule.family].lower()} ({rule.family}). Kind: {kind(rule)}. Applies to: {subjects}.",
    ]
    return "\n".join(head) + "\n\n" + _linked(_runnable(body.strip("\n")), others) + "\n\n[All rules](index.md)\n"


def _runnable(body: str) -> str:
    """Return the body with `import torch` in each program, which a docstring leaves out."""

    def with_import(match: re.Match[str]) -> str:
        code = match[1]
        if re.search(r"^import torch$", code, re.MULTILINE):
            return match[0]
        gap = "" if code.startswith(("import ", "from ")) else "\n"
        return f"```python\nimport torch\n{gap}{code}```"

    return re.sub(r"```python\n(.*?)```", with_import, body, flags=re.DOTALL)


def kind(rule: Rule) -> str:
    """Say whether a rule runs the function or reads its source."""
    kinds = ["runtime"] * (rule.runtime is not None) + ["static"] * (rule.static is not None)
    return " and ".join(kinds) or "runner"


def file_name(rule: Rule) -> str:
    """Return the name of a rule's page, e.g. "pb101.md"."""
    return f"{rule.id.lower()}.md"


def _generated(source: str) -> str:
    return f"<!-- Generated by docs/generate_rules.py from {source}: edit there. -->"


def _source(rule: Rule) -> str:
    (path,) = Path(rules.__path__[0]).glob(f"{rule.id.lower()}_*.py")
    return f"src/pullback/check/rules/{path.name}"


def _linked(text: str, ids: set[str]) -> str:
    """Turn the ids that the prose mentions into links; code is left alone."""

    def link(match: re.Match[str]) -> str:
        name = match.group(0)
        return f"[{name}]({name.lower()}.md)" if name in ids else name

    parts = re.split(r"(^```.*?^```|`[^`\n]*`)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("`") else re.sub(r"\bPB\d{3}\b", link, part) for part in parts)


if __name__ == "__main__":
    main()

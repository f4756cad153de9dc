"""Count the source: modules, lines, imports, and what a call of an op loads.

    python benchmarks/source_size.py

Prints a table of files and lines by part, how many modules have a single importer, the modules that `op.py` imports
directly or not, and the time that `import pullback` adds to `import torch` (median of seven processes).
"""

import ast
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1] / "src" / "pullback"
_PARTS = ("_torch", "ops", "graph", "kernels", "stable", "ruled", "check", "fix", "write", "report", "cli", "catalog")


def modules() -> dict[str, Path]:
    """Return every module of the package by its dotted name."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path, known: dict[str, Path]) -> set[str]:
    """Return the modules of the package that a file imports as it is loaded."""
    tree = ast.parse(path.read_text())
    inside = {
        id(n) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef) for n in ast.walk(f)
    }
    typing = {
        id(n)
        for test in ast.walk(tree)
        if isinstance(test, ast.If) and getattr(test.test, "id", "") == "TYPE_CHECKING"
        for n in ast.walk(test)
    }
    found = set()
    for node in ast.walk(tree):
        is_ours = isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "pullback"
        if is_ours and id(node) not in inside | typing:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (names & known.keys()) or {node.module}
    return found


def closure(name: str, imports: dict[str, set[str]]) -> set[str]:
    """Return the modules that importing one loads, packages included."""
    found, waiting = set(), [name]
    while waiting:
        one = waiting.pop()
        if one in imports and one not in found:
            found.add(one)
            waiting += [*imports[one], one.rpartition(".")[0]]
    return found


def seconds(code: str) -> float:
    """Return the median time of seven processes that run some code."""
    taken = []
    for _ in range(7):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def main() -> None:
    """Print the counts."""
    known = modules()
    lines = {name: len(path.read_text().splitlines()) for name, path in known.items()}
    imports = {name: imported(path, known) for name, path in known.items()}

    def row(what: str, names: set[str] | list[str]) -> None:
        print(f"| {what} | {len(names)} | {sum(lines[name] for name in names)} |")

    print("| part | modules | lines |\n|---|---|---|")
    for part in _PARTS:
        row(f"{part}/", [name for name in known if name.split(".")[1:2] == [part]])
    row("all", list(known))
    row("loaded by `op.py`", closure("pullback.op", imports))
    importers = {name: [other for other in known if name in imports[other]] for name in known}
    print(f"\nmodules with one importer: {sum(len(found) == 1 for found in importers.values())}")
    plain = seconds("import torch")
    print(
        f"import torch: {plain:.2f} s; import pullback adds {1000 * (seconds('import torch, pullback') - plain):.0f} ms"
    )


if __name__ == "__main__":
    main()

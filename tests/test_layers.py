"""Arrows point down: which part may import which."""

import ast
from pathlib import Path

import pullback

_ROOT = Path(pullback.__file__).parent

_MAY_IMPORT = {
    "ops": {"ops"},
    "graph": {"graph", "ops"},
    "kernels": {"kernels", "graph", "triton", "ops"},
    "stable": {"stable", "dispatch", "guards", "graph", "report", "plan", "ops"},
    "ruled": {"ruled", "dispatch", "modes", "call", "guards", "graph"},
    "chunked": {"chunked", "dispatch", "kernels", "graph", "call", "plan", "kernel_function"},
    "node": {"node", "call", "kernels", "graph", "plan", "kernel_function"},
    "triton": {"triton", "kernels", "graph"},
    "catalog": {"catalog", "op"},
    "check/find": {"check/find", "check", "report"},
    "check/cases": {"check/find", "check/cases", "check", "report"},
    "check/derivative": {"check/find", "check/cases", "check/derivative", "check", "report"},
    "check/contexts": {"check/find", "check/cases", "check/derivative", "check/contexts", "check", "report"},
    "check/numeric": {"check/find", "check/cases", "check/derivative", "check/numeric", "check", "report", "stable"},
    "report": {"report"},
    "write": {
        "write",
        "graph",
        "ops",
        "stable",
        "ruled",
        "call",
        "op",
        "introspect",
        "function_class",
        "check/find",
        "check/cases",
        "check",
    },
}
"""For each folder, those whose modules it may import (beside `errors`, `dtypes`, `caches`, `settings` and `_torch`)."""

_COMMANDS = {"stable/command.py": {"check/find", "check/runner"}, "stable/renew.py": {"check/find"}}
"""What the command line runs of `stable` finds its targets as the audit does. Nothing below may import these two."""

_MAKING = {
    "op",
    "introspect",
    "function_class",
    "graph",
    "kernels",
    "catalog",
    "call",
    "plan",
    "plans",
}
_MAKING |= {
    "sizes",
    "derived",
    "dispatch",
    "modes",
    "kernel_function",
    "relaxed",
    "ruled",
    "guards",
    "chunked",
    "node",
    "triton",
}
"""What the audit does not know: it calls an op like anything else."""

_TOP_OF_CHECK = {"case", "clock", "trial", "events", "subject"}
"""What every folder of `check` may import from `check` itself."""


def _imports(path: Path) -> set[str]:
    """Return the modules that a file imports when it runs (not those for type checking only)."""
    tree = ast.parse(path.read_text())
    guarded = {
        id(node)
        for test in ast.walk(tree)
        if isinstance(test, ast.If) and getattr(test.test, "id", "") == "TYPE_CHECKING"
        for node in ast.walk(test)
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and id(node) not in guarded and (node.module or "").startswith("pullback."):
            assert node.module is not None
            as_module = _ROOT / Path(*node.module.split(".")[1:])
            found |= {f"{node.module}.{a.name}" for a in node.names} if as_module.is_dir() else {node.module}
    return found


def test_arrows_point_down() -> None:
    wrong = []
    for folder, allowed in _MAY_IMPORT.items():
        files = list((_ROOT / folder).glob("*.py"))
        assert files
        for path in files:
            for module in _imports(path):
                parts = module.split(".")[1:]
                if len(parts) == 1 or parts[0] == "_torch":
                    ok = parts[0] in {"errors", "dtypes", "_torch", "caches", "settings"} or parts[0] in allowed
                elif parts[0] == "check" and len(parts) == 2:
                    ok = "check" in allowed and parts[1] in _TOP_OF_CHECK
                else:
                    more = _COMMANDS.get(f"{folder}/{path.name}", set())
                    ok = "/".join(parts[:-1]) in allowed | more
                    ok = ok and (bool(more) or "/".join(parts) + ".py" not in _COMMANDS)
                if not ok:
                    wrong.append(f"{folder}/{path.name} imports {module}")
    assert not wrong


def test_the_audit_knows_no_kernels() -> None:
    files = [*(_ROOT / "check").rglob("*.py"), *(_ROOT / "report").rglob("*.py")]
    known = {module for path in files for module in _imports(path)}
    assert len(known) > 50
    assert not {module for module in known if module.split(".")[1] in _MAKING}


def test_only_the_command_line_imports_what_changes_files() -> None:
    importing = {
        path.relative_to(_ROOT).parts[0]
        for path in _ROOT.rglob("*.py")
        for module in _imports(path)
        if module.split(".")[1] == "fix"
    }
    assert importing == {"fix", "cli.py"}


def test_private_pytorch_is_used_in_one_folder_alone() -> None:
    private = {
        f"{path.relative_to(_ROOT)}: {node.module}"
        for path in _ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("torch.")
        and any(part.startswith("_") for part in (node.module or "").split("."))
    }
    assert {line.partition("/")[0] for line in private} == {"_torch"}

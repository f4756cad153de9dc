"""Import layers: the parts that each part may import. Imports for type checking and inside functions count, too."""

import ast
from pathlib import Path

import networkx

import pullback

_ROOT = Path(pullback.__file__).parent

_BASE = {"errors", "dtypes", "caches", "settings", "_torch"}
"""Every part may import these."""

_CHECK = {"check", "check/find", "check/cases", "check/derivative", "report"}

_MAY_IMPORT: dict[str, set[str]] = {
    "_torch": set(),
    # Making ops.
    "ops": {"ops"},
    "graph": {"graph", "ops"},
    "kernels": {"graph", "kernels", "ops", "triton"},
    "kernels/include": set(),
    "triton": {"kernels", "triton"},
    "modes": set(),
    "nesting": {"nesting"},
    "dispatch": {"graph"},
    "call": {"graph"},
    "guards": {"dispatch", "modes"},
    "plan": {"call", "dispatch", "graph", "kernels", "nesting"},
    "kernel_function": {"dispatch", "graph", "nesting", "plan"},
    "stable": {"dispatch", "graph", "guards", "ops", "plan", "report", "stable", "stable/oracle"},
    "stable/oracle": {"ops", "stable", "stable/oracle"},
    "stable/search": {"ops", "stable", "stable/oracle", "stable/search"},
    "sizes": {"call", "graph", "kernels", "plan"},
    "chunked": {"call", "chunked", "dispatch", "graph", "kernel_function", "kernels", "plan"},
    "node": {"call", "graph", "kernel_function", "kernels", "node", "plan"},
    "plans": {"call", "chunked", "graph", "kernel_function", "kernels", "nesting", "node", "plan", "sizes"},
    "derived": {"call", "dispatch", "kernel_function", "nesting", "plan", "plans", "stable"},
    "relaxed": {"call", "derived", "dispatch", "guards", "nesting", "plan"},
    "ruled": {"call", "dispatch", "graph", "guards", "modes", "ops", "ruled"},
    "introspect": {"call", "chunked", "graph", "kernel_function", "stable"},
    "op": {"call", "derived", "dispatch", "introspect", "kernels", "plan", "plans", "relaxed", "ruled", "stable"}
    | {"stable/oracle", "stable/search"},
    "function_class": {"dispatch", "graph", "guards", "op"},
    "catalog": {"catalog", "op"},
    "interpreter": {"interpreter"},
    # The audit, which imports of the above only `stable` and, where code uses Triton, `interpreter`.
    "report": {"report"},
    "check/find": {"check/find", "check", "report", "interpreter"},
    "check/cases": {"check/cases", "check/find", "check", "report"},
    "check/derivative": _CHECK,
    "check/contexts": {*_CHECK, "check/contexts"},
    "check/purity": {"check/purity", "check/find", "check", "report"},
    "check/numeric": {*_CHECK, "check/numeric", "stable", "stable/oracle"},
    "check/rules": {*_CHECK, "check/contexts", "check/numeric", "check/purity", "check/rules", "stable", "interpreter"},
    "check/runner": {"check/runner", "check/find", "check/cases", "check/rules", "check", "report"},
    "check": {*_CHECK, "check/contexts", "check/numeric", "check/purity", "check/rules"} | {"check/runner"},
    # Writing, fixing, and entry points.
    "write": {"write", "call", "function_class", "graph", "introspect", "op", "ops", "ruled", "stable"}
    | {"check", "check/cases", "check/find"},
    "fix": {"fix", "write", "report", "check", "check/cases", "check/contexts", "check/find", "check/rules"}
    | {"check/runner"},
    "judge": {"judge", "report", "check", "check/cases", "check/derivative", "check/find", "check/runner"},
    "testing": {"check", "report"},
    "pytest_plugin": {"check", "check/cases", "check/runner", "report"},
    "cli": {"cli", "fix", "judge", "write", "report", "node", "stable", "stable/oracle", "stable/search"}
    | {"check", "check/cases", "check/find", "check/runner"},
    "__main__": {"cli"},
    "__init__": {
        "op",
        "function_class",
        "catalog",
        "check",
        "judge",
        "kernels",
        "nesting",
        "report",
        "stable",
        "write",
    },
}
"""For each folder, and each module of the top folder: the parts that it may import besides the base."""

_TOP_OF_CHECK = {"audit", "case", "clock", "events", "subject", "trial"}
"""Modules of `check` itself that each of its folders may import."""

_MORE_OF_CHECK = {
    "check/cases": {"weights", "report"},
    "check/derivative": {"facts"},
    "check/numeric": {"facts"},
    "check/rules": {
        "interpreted_process",
        "kernel_compilation",
        "kernel_runs",
        "optional_arguments",
        "pages",
        "weights",
    },
    "check/runner": {"run_audit", "weights"},
    "fix": {"variants", "working_example"},
    "judge": {"weights", "working_example"},
    "testing": {"api"},
    "pytest_plugin": {"options"},
    "cli": {"options", "pages", "watch"},
    "__init__": {"api", "watch"},
}
"""Modules of `check` that a part may import in addition."""

_MAKING = {
    "op",
    "ops",
    "function_class",
    "introspect",
    "graph",
    "kernels",
    "catalog",
    "call",
    "plan",
    "plans",
    "sizes",
} | {
    *(
        "chunked",
        "derived",
        "dispatch",
        "guards",
        "kernel_function",
        "modes",
        "nesting",
        "node",
        "relaxed",
        "ruled",
        "triton",
    ),
}
"""Parts that the audit must not import: it calls an op like any other callable."""


def _modules() -> dict[str, Path]:
    """Return every module by its dotted name below `pullback`; a package by its own."""
    found = {}
    for path in _ROOT.rglob("*.py"):
        parts = path.relative_to(_ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path
    return found


_MODULES = _modules()


def _part(path: Path) -> str:
    """Return the folder of a file, or its name if it is in the top folder."""
    folder = path.relative_to(_ROOT).parent
    return folder.as_posix() if folder.parts else path.stem


def _imports(path: Path) -> set[str]:
    """Return the modules that a file imports: anywhere, and for any purpose."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "pullback":
            module = (node.module or "").partition(".")[2]
            for alias in node.names:
                inside = f"{module}.{alias.name}".removeprefix(".")
                found.add(inside if inside in _MODULES else module or "__init__")
        elif isinstance(node, ast.Import):
            names = (alias.name.partition(".") for alias in node.names)
            found |= {rest or "__init__" for package, _, rest in names if package == "pullback"}
    return found


def test_every_part_is_listed() -> None:
    parts = {_part(path) for path in _MODULES.values()}
    assert parts - _BASE == _MAY_IMPORT.keys() - _BASE


def test_arrows_point_down() -> None:
    wrong = []
    for path in _MODULES.values():
        part = _part(path)
        allowed = _MAY_IMPORT.get(part, set()) | _BASE
        for module in _imports(path):
            target = _part(_MODULES[module])
            ok = target in allowed
            if target == "check" and part != "check" and module != "check":
                known = _TOP_OF_CHECK | _MORE_OF_CHECK.get(part, set())
                ok = ok and module.removeprefix("check.") in known
            if not ok:
                wrong.append(f"{path.relative_to(_ROOT)} imports {module}")
    assert not sorted(wrong)


def test_there_are_no_import_cycles() -> None:
    imports = {(name, module) for name, path in _MODULES.items() for module in _imports(path) if module != name}
    circles = [c for c in networkx.strongly_connected_components(networkx.DiGraph(imports)) if len(c) > 1]
    assert [sorted(circle) for circle in circles] == []


def test_audit_does_not_import_op_making_parts() -> None:
    files = [*(_ROOT / "check").rglob("*.py"), *(_ROOT / "report").rglob("*.py")]
    known = {module for path in files for module in _imports(path)}
    assert len(known) > 50
    assert not {module for module in known if module.partition(".")[0] in _MAKING}


def test_only_cli_imports_fix() -> None:
    importing = {
        path.relative_to(_ROOT).parts[0]
        for path in _MODULES.values()
        for module in _imports(path)
        if module.partition(".")[0] == "fix"
    }
    assert importing == {"fix", "cli"}


def test_private_pytorch_modules_are_imported_only_in_torch_folder() -> None:
    private = {
        f"{path.relative_to(_ROOT)}: {node.module}"
        for path in _MODULES.values()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("torch.")
        and any(part.startswith("_") for part in (node.module or "").split("."))
    }
    assert {line.partition("/")[0] for line in private} == {"_torch"}

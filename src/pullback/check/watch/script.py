"""Runs the user's program as Python would: `pullback run` is to change nothing about it."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from pullback.errors import TargetError


def run_program(program: str, arguments: list[str], is_module: bool) -> int:
    """Run a script or a module as `__main__`, and return its exit status.

    An exception is printed as Python prints it. `sys.argv`, `sys.path[0]` and `sys.modules["__main__"]` are set for the
    program, and stay set: its classes are looked up there.

    Args:
        program: path of the script, or name of the module.
        arguments: its command line.
        is_module: whether it is a module.

    Raises:
        TargetError: if there is no such program, or it is not Python.
    """
    code, main, first = _of_module(program) if is_module else _of_script(program)
    sys.argv = [str(main.__file__), *arguments]
    sys.path.insert(0, first)
    sys.modules["__main__"] = main
    try:
        exec(code, main.__dict__)
    except SystemExit as error:
        return _status(error.code)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: auditing what was called so far (Ctrl-C again ends that)\n")
        return 130
    except BaseException as error:
        trace = error.__traceback__.tb_next if error.__traceback__ else None  # without this function
        traceback.print_exception(type(error), error, trace)
        return 1
    return 0


def _of_script(path: str) -> tuple[CodeType, ModuleType, str]:
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        raise TargetError(f"{path}: {error.strerror}.") from None
    return _compiled(source, path), _module(path), str(Path(path).resolve().parent)


def _of_module(name: str) -> tuple[CodeType, ModuleType, str]:
    sys.path.insert(0, "")
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ImportError as error:
        raise TargetError(f"module {name}: {error}.") from None
    finally:
        sys.path.remove("")
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        raise TargetError(f"there is no module {name} that can be run.")
    main = _module(spec.origin)
    main.__spec__, main.__package__ = spec, spec.parent
    return _compiled(Path(spec.origin).read_bytes(), spec.origin), main, str(Path.cwd())


def _compiled(source: bytes, path: str) -> CodeType:
    try:
        return compile(source, path, "exec")
    except (SyntaxError, ValueError) as error:
        raise TargetError(f"{path} is no Python: {error}.") from None


def _module(path: str) -> ModuleType:
    main = ModuleType("__main__")
    main.__file__ = path
    main.__dict__["__builtins__"] = __builtins__
    return main


def _status(code: Any) -> int:
    if code is None or isinstance(code, int):
        return code or 0
    sys.stderr.write(f"{code}\n")
    return 1

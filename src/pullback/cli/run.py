"""`pullback run`: run a program as Python does, and audit the custom functions that it called."""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

import click

from pullback.cli.reporting import Reporting, reporting
from pullback.errors import PullbackError, TargetError

if TYPE_CHECKING:
    from pullback.check.watch import Watch

_NOTHING_AUDITED = 2
"""Exit status of an audit that could not be run."""


@click.command(
    context_settings={"allow_interspersed_args": False}, short_help="Run a program, and audit what it calls."
)
@click.option("-m", "is_module", is_flag=True, help="Take PROGRAM as the name of a module.")
@click.option("--steps", type=click.IntRange(1), metavar="N", help="Audit after N backward passes, then continue.")
@click.argument("name", type=click.Path(), metavar="PROGRAM")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@reporting
def run(name: str, arguments: tuple[str, ...], is_module: bool, steps: int | None, **options: Any) -> int:
    """Run a program, and audit the custom autograd functions that it calls.

    The audit uses copies of their inputs. It starts when the program has ended, also by an exception or Ctrl-C.
    Options of the program follow its name.
    """
    from pullback.check.watch import Watch

    reports = Reporting(**options)
    audit = reports.audit
    if os.environ.get("RANK", "0") != "0":  # of several processes that train together (`torchrun`), one is watched
        return run_program(name, list(arguments), is_module)
    return _watched(lambda: run_program(name, list(arguments), is_module), Watch(audit), steps, reports)


def _watched(program: Callable[[], int], watch: Watch, steps: int | None, reports: Reporting) -> int:
    """Run a program, audit what it called, and return its exit status, or that of the report if it is 0.

    Args:
        program: runs it and returns its exit status.
        watch: records its calls.
        steps: number of backward passes after which to audit, instead of at its end.
        reports: how to show the report.

    Raises:
        TargetError: if there is no such program.
        RunnerError: if this process cannot be forked when it has ended.
    """
    audited: list[int] = []

    def audit() -> None:
        watch.stop()
        with reports.progress() as on_progress:
            report = watch.audit(on_progress)
        if report.subjects:
            audited.append(reports.end(report))
            return
        seen = "none of the custom functions that were called can be audited"
        unseen = "no custom function was called (calls inside torch.compile are not seen)"
        sys.stderr.write(f"pullback: {seen if watch.has_calls else unseen}\n")
        audited.append(_NOTHING_AUDITED)

    def audit_early() -> None:
        try:
            audit()
        except PullbackError as error:  # the program goes on
            sys.stderr.write(f"pullback: {error}\n")

    restore = _after_backward_passes(steps, audit_early) if steps else None
    watch.start()
    try:
        status = program()
    finally:
        watch.stop()
        if restore:
            restore()
    if not audited:
        sys.stdout.flush()
        audit()
    return status or audited[0]


def _after_backward_passes(steps: int, do: Callable[[], None]) -> Callable[[], None]:
    """Call `do` once, at the end of a backward pass; return a function that cancels that."""
    import torch

    plain, left = torch.autograd.backward, steps

    def backward(*args: object, **kwargs: object) -> None:
        nonlocal left
        plain(*args, **kwargs)  # type: ignore[arg-type]
        left -= 1
        if left == 0:
            do()

    def restore() -> None:
        if torch.autograd.backward is backward:
            torch.autograd.backward = plain

    torch.autograd.backward = backward
    return restore


def run_program(program: str, arguments: list[str], is_module: bool) -> int:
    """Run a script or a module as `__main__`, and return its exit status.

    `pullback run` must not change what the program does: an exception is printed as Python prints it. `sys.argv`,
    `sys.path[0]` and `sys.modules["__main__"]` are set for the program, and stay set, since its classes are looked up
    there.

    Args:
        program: path of the script, or name of the module.
        arguments: its command line.
        is_module: whether it is a module.

    Raises:
        TargetError: if there is no such program, or it is not Python.
    """
    code, main, first = _main_module(program) if is_module else _main_script(program)
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


def _main_script(path: str) -> tuple[CodeType, ModuleType, str]:
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        raise TargetError(f"{path}: {error.strerror}.") from None
    return _compiled(source, path), _new_main(path), str(Path(path).resolve().parent)


def _main_module(name: str) -> tuple[CodeType, ModuleType, str]:
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
    main = _new_main(spec.origin)
    main.__spec__, main.__package__ = spec, spec.parent
    return _compiled(Path(spec.origin).read_bytes(), spec.origin), main, str(Path.cwd())


def _compiled(source: bytes, path: str) -> CodeType:
    try:
        return compile(source, path, "exec")
    except (SyntaxError, ValueError) as error:
        raise TargetError(f"{path} is not valid Python: {error}.") from None


def _new_main(path: str) -> ModuleType:
    main = ModuleType("__main__")
    main.__file__ = path
    main.__dict__["__builtins__"] = __builtins__
    return main


def _status(code: Any) -> int:
    if code is None or isinstance(code, int):
        return code or 0
    sys.stderr.write(f"{code}\n")
    return 1

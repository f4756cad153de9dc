"""The door to the interpreter of Triton kernels: it is entered for code that uses Triton, where there is no GPU.

Whether code does is read from its source, and that of what it imports. For any other code neither Triton nor the
interpreter is imported.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from types import BuiltinMethodType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pullback.check.find.source import plain_function, read
from pullback.check.find.target import Target, locate, package_of
from pullback.errors import TargetError

if TYPE_CHECKING:
    from pullback.interpreter.worlds import Specialisation as Specialisation
    from pullback.interpreter.worlds import Way as Way
    from pullback.interpreter.worlds import World as World

_IMPORTS = re.compile(r"^\s*(?:from|import)\s[^#\n]*\btriton\b|\bimport_module\(\s*[\"']triton\b", re.MULTILINE)
"""Matches an import of Triton."""
_NO_KERNELS = sys.stdlib_module_names | {"torch", "numpy", "scipy", "pullback"}
"""Packages whose imports are not followed: PyTorch itself mentions Triton."""
WITHOUT_GPU = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
"""Variables of the environment of a process that is to see no GPU."""


def hides_gpus() -> bool:
    """Whether the environment hides all GPUs of this machine."""
    return any(os.environ.get(name) in ("", "-1") for name in WITHOUT_GPU)


def enter_for_target(target: Target) -> None:
    """Have the kernels of a target interpreted, which is not imported yet, if it uses Triton and there is no GPU."""
    if target_uses_triton(target):
        _enter()


def target_uses_triton(target: Target) -> bool:
    """Whether the source of a target uses Triton; nothing is imported."""
    file = target.path
    if file is None:
        spec = locate(target.module)
        file = Path(spec.origin) if spec is not None and spec.origin and spec.origin.endswith(".py") else None
    return file is not None and _file_uses_triton(file)


def enter_for_object(obj: Any) -> bool:
    """Have the kernels of a live object interpreted, on the same conditions; return whether they are."""
    if uses_triton(obj):
        _enter()
    return is_interpreted(obj)


def uses_triton(obj: Any) -> bool:
    """Whether the code of a live object uses Triton."""
    return any(_module_uses_triton(module) for module in _modules_of(obj))


def is_kernel(obj: Any) -> bool:
    """Whether an object is a kernel of Triton."""
    return any(cls.__name__ == "KernelInterface" for cls in type(obj).__mro__)  # of Triton, which may be absent


def ensure_no_kernel(obj: Any, name: str) -> None:
    """Ensure that an object is no kernel of Triton, which has no gradient.

    Raises:
        TargetError: if it is one.
    """
    if is_kernel(obj):
        raise TargetError(f"{name} is a Triton kernel: name the Function that launches it")


def is_interpreted(obj: Any) -> bool:
    """Whether the interpreter runs the kernels that an object launches."""
    if "pullback.interpreter" not in sys.modules:
        return False
    from pullback import interpreter

    return interpreter.is_entered() and any(interpreter.is_useful(module.__name__) for module in _modules_of(obj))


def hosting(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a callable that makes the call inside the interpreted world."""
    from pullback import interpreter

    hosted: Callable[..., Any] = interpreter.hosting(call)
    return hosted


def entering_lines(shown: torch.dtype | None = None) -> list[str]:
    """Lines of a reproduction that enter, to come before the code is imported.

    Args:
        shown: the dtype that host code sees for float64; by default the one that it sees in this process.
    """
    from pullback import interpreter

    shown = shown or interpreter.presented()
    also = [] if shown == torch.float32 else ["import torch", f"interpreter.present({shown})"]
    return [*interpreter.LINES, *also]


def present(dtype: torch.dtype) -> None:
    """Have interpreted host code see a dtype where tensors are float64; by default it is float32."""
    from pullback import interpreter

    interpreter.present(dtype)


@contextmanager
def recording(**settings: Any) -> Iterator[World]:
    """Record what the kernels of a block do in a new world, with these settings of it.

    Of compiled kernels, the world sets and records the configurations of autotuners alone.
    """
    from pullback import interpreter

    compiled = nullcontext() if interpreter.is_entered() else interpreter.picking()
    with compiled, interpreter.inside(interpreter.World(**settings)) as world:
        yield world


def refusal_of(specialisation: Specialisation) -> dict[str, Any] | None:
    """Return the fields of the compiler's refusal of a kernel, for types and constants of a launch; else `None`."""
    from pullback import interpreter

    found = interpreter.refusal(specialisation)
    return None if found is None else asdict(found)


def as_written(is_interpreted: bool) -> AbstractContextManager[object]:
    """Have the kernels of a block round as their types tell, if they are interpreted: else each float has 64 bits."""
    return recording(lifts=False) if is_interpreted else nullcontext()


def is_unwritten(t: Tensor) -> Tensor:
    """Return which elements of a tensor that interpreted code returns hold what nobody wrote."""
    from pullback.interpreter.worlds import POISON

    if t.dtype != torch.float64 or t.layout is not torch.strided:
        return torch.zeros(t.shape, dtype=torch.bool)
    return t.detach().contiguous().view(torch.int64) == int(POISON.view("int64"))


def is_possible() -> bool:
    """Whether kernels are to be interpreted here: Triton is installed, and there is no accelerator to run them."""
    from pullback import interpreter

    return interpreter.is_possible()


def _enter() -> None:
    from pullback import interpreter

    if is_possible():
        interpreter.enter()


def _file_uses_triton(file: Path) -> bool:
    """Whether a file uses Triton; of a package, any of its files."""
    if file.name == "__init__.py" and any(_mentions_triton(inner) for inner in file.parent.rglob("*.py")):
        return True
    return _uses_triton(file, set())


def _uses_triton(file: Path, seen: set[Path]) -> bool:
    """Whether a file uses Triton, itself or by its imports.

    Imports are followed within its package, or its folder, and one step beyond: into a library of kernels.
    """
    seen.add(file)
    if _mentions_triton(file):
        return True
    for imported, is_near in _imported_files(file):
        if imported not in seen and (_uses_triton(imported, seen) if is_near else _holds_triton(imported)):
            return True
    return False


def _holds_triton(file: Path) -> bool:
    """Whether a module of a library uses Triton; of a package, a file in its folder."""
    around = file.parent.glob("*.py") if file.name == "__init__.py" else [file]
    return any(map(_mentions_triton, around))


def _mentions_triton(file: Path) -> bool:
    try:
        return _IMPORTS.search(read(file)) is not None
    except TargetError:
        return False


def _imported_files(file: Path) -> Iterator[tuple[Path, bool]]:
    """Yield the file of each module that a file imports, and whether it is of the same package or folder."""
    folder, name = package_of(file)
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    top = folder / name.partition(".")[0] if package else folder
    for module in dict.fromkeys(_imported_names(file, package)):
        if module.partition(".")[0] in _NO_KERNELS:
            continue
        near = _found_below(folder, module)
        if near is not None:
            yield near, near.is_relative_to(top)
        elif (spec := locate(module)) is not None and spec.origin is not None and spec.origin.endswith(".py"):
            yield Path(spec.origin), False


def _found_below(folder: Path, module: str) -> Path | None:
    path = folder.joinpath(*module.split("."))
    candidates = (path / "__init__.py", path.with_suffix(".py"))
    return next((candidate for candidate in candidates if candidate.exists()), None)


def _imported_names(file: Path, package: str) -> Iterator[str]:
    """Yield the names of the modules that a file imports, relative ones resolved; some are names in a module."""
    try:
        nodes = list(ast.walk(ast.parse(read(file))))
    except (TargetError, SyntaxError, ValueError):  # the import of the file reports it
        return
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            around = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*around, *([node.module] if node.module else [])])
            if base:
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")


def _modules_of(obj: Any) -> list[ModuleType]:
    """Return the modules in which an object and what it names are defined."""
    function = None if isinstance(obj, type) else plain_function(obj)
    owner = getattr(function or obj, "__module__", None) or type(obj).__module__
    names = {owner: None, type(obj).__module__: None}
    if isinstance(function, FunctionType):
        named = (function.__globals__.get(name) for name in function.__code__.co_names)
        names |= dict.fromkeys(filter(None, map(_home_of, named)))
    known = (sys.modules.get(name) for name in names if isinstance(name, str) and not _is_left_out(name))
    return [module for module in known if module is not None]


def _module_uses_triton(module: ModuleType) -> bool:
    """Whether an imported module uses Triton, or one of those that its names come from."""
    homes = dict.fromkeys(filter(None, map(_home_of, list(vars(module).values()))))
    if any(name.partition(".")[0] == "triton" for name in homes):  # in a notebook, too
        return True
    others = (sys.modules.get(name) for name in homes if not _is_left_out(name))
    files = (getattr(one, "__file__", None) for one in (module, *others))
    return any(map(_mentions_triton, {Path(file) for file in files if file and file.endswith(".py")}))


def _home_of(value: Any) -> str | None:
    """Return the name of the module that a value is, or that defines it or its class."""
    kind = type(value)  # a proxy may raise when it is asked for its class
    if issubclass(kind, ModuleType):
        return str(value.__name__)
    if issubclass(kind, BuiltinMethodType) and isinstance(value.__self__, type):  # Function.apply
        value = value.__self__
    home = getattr(
        value if issubclass(kind, FunctionType) or issubclass(type(value), type) else kind, "__module__", None
    )
    return home if isinstance(home, str) else None


def _is_left_out(name: str) -> bool:
    return name.partition(".")[0] in _NO_KERNELS - {"__main__"}

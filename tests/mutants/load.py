"""Builds the modules of bases and mutants from their source text."""

import importlib.util
import itertools
import sys
from pathlib import Path
from types import ModuleType

from torch.autograd import Function

from .model import Mutant

BASES = Path(__file__).parent / "bases"
_serial = itertools.count()


def base_names() -> list[str]:
    """The names of the bases, in alphabetical order."""
    return sorted(path.stem for path in BASES.glob("[!_]*.py"))


def source(mutant: Mutant) -> str:
    """The base's source with the mutant's patches."""
    text = (BASES / f"{mutant.base}.py").read_text(encoding="utf-8")
    for old, new in ((mutant.old, mutant.new), *mutant.also):
        count = text.count(old)
        assert count == 1, f"{mutant.id}: {old!r} occurs {count} times in {mutant.base}.py"
        text = text.replace(old, new)
    return text


def build(mutant: Mutant, directory: Path) -> ModuleType:
    """Write the patched source into `directory` and import it, so that `inspect.getsource` finds it."""
    path = Path(directory) / f"{mutant.slug}.py"
    path.write_text(source(mutant), encoding="utf-8")
    return _import(path)


def load_base(name: str) -> ModuleType:
    """A fresh import of a base."""
    return _import(BASES / f"{name}.py")


def function_of(module: ModuleType) -> type[Function]:
    """The one Function that a module defines, besides private ones that it calls."""
    found = [
        value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Function) and value.__module__ == module.__name__
        if not name.startswith("_")
    ]
    assert len(found) == 1, f"{module.__name__} defines {len(found)} Functions"
    return found[0]


def _import(path: Path) -> ModuleType:
    """Import a file under a name of its own, so that no two builds share state."""
    name = f"pullback_mutant_{path.stem}_{next(_serial)}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module

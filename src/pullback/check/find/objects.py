"""Live objects that can be audited: their kind, location and source, and how a reproduction refers to each."""

from __future__ import annotations

import ast
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, cast

import torch

from pullback import _torch
from pullback.check.find.kernels import ensure_no_kernel, is_kernel
from pullback.check.find.modules import Home, home_of_module
from pullback.check.find.source import FunctionSource, own_functions, plain_function, source_of
from pullback.check.find.syntax import positional_parameters
from pullback.check.subject import Kind, is_carried
from pullback.errors import TargetError
from pullback.report.model import Location

Function = type[torch.autograd.Function]


@dataclass(frozen=True, slots=True)
class Discovered:
    """One function to audit, before it has a name that is unique among all.

    Attributes:
        target, kind, location, source, load, why_unaudited: as in `Subject`.
        name: its short name.
        module: its module.
        qualname: its qualified name there.
        bound: whether that module has a name for it.
        hidden: whether it exists for others to derive from, or for export, and is not called itself.
    """

    target: Any
    kind: Kind
    name: str
    module: str
    qualname: str
    location: Location
    source: FunctionSource | None = None
    load: str = ""
    why_unaudited: str = ""
    bound: bool = True
    hidden: bool = False

    @property
    def definition(self) -> tuple[str, int]:
        """The file and line that define it; the same for each class that one factory makes."""
        if self.source is None:
            return f"{self.module}:{self.qualname}", 0
        return os.path.realpath(self.source.file), self.source.line


def is_function(obj: Any) -> bool:
    """Whether `obj` is a class derived from `torch.autograd.Function`."""
    return isinstance(obj, type) and issubclass(obj, torch.autograd.Function)


def answers(value: Any) -> bool:
    """Whether an object says of which class it is: a proxy without its session may raise anything."""
    try:
        return isinstance(value.__class__, type)
    except Exception:
        return False


def applied_class(obj: Any) -> Function | None:
    """Return `Op` if `obj` is `Op.apply`."""
    is_apply = answers(obj) and inspect.isroutine(obj) and obj.__name__ == "apply"
    owner = getattr(obj, "__self__", None) if is_apply else None
    return cast(Function, owner) if is_function(owner) else None


def live_functions() -> list[Function]:
    """Return every class derived from `torch.autograd.Function` that is still there, oldest first.

    Left out are those that a `pullback.AutogradFunction` is carried out by: it is audited itself.
    """
    found: dict[Function, None] = {}
    pending: list[Function] = [torch.autograd.Function]
    for cls in pending:
        found[cls] = None
        pending += [sub for sub in cls.__subclasses__() if sub not in found and sub not in pending]
    return [cls for cls in found if cls is not torch.autograd.Function and not hasattr(cls, "_is_pullback_part")]


def has_forward(cls: Function) -> bool:
    """Whether a Function has a forward, itself or by inheritance."""
    return _torch.defines_method(cls, "forward")


def has_derivative(cls: Function) -> bool:
    """Whether a Function has a backward or a jvp, itself or by inheritance."""
    return any(_torch.defines_method(cls, name) for name in ("backward", "vjp", "jvp"))


def find_given(obj: Any) -> Discovered:
    """Describe a live object that was passed to the library.

    Raises:
        TargetError: it cannot be audited.
    """
    return describe(obj, _home_of(obj), "the target")


def describe(obj: Any, home: Home, what: str) -> Discovered:
    """Describe an object of a module: a Function class or its `apply`, an op, or another callable.

    Raises:
        TargetError: if it is none of these; the message calls it `what`.
    """
    ensure_no_kernel(obj, what)
    if (carried := _carried(obj)) is not None:
        return find_carried(carried, home)
    cls = obj if is_function(obj) else applied_class(obj)
    if cls is not None:
        if not has_forward(cls):
            raise TargetError(f"{cls.__name__} has no forward: there is nothing to audit")
        return find_function(cls, home)
    if _torch.is_custom_op(obj):
        return find_op(obj, home)
    if isinstance(obj, type):
        raise TargetError(_to_construct(obj))
    if not callable(obj):
        raise TargetError(
            f"{what} is of type {type(obj).__name__}: give an autograd.Function class, a torch.library op or a callable"
        )
    return _find_op_overload(obj, home) if _torch.is_dispatched_op(obj) else find_callable(obj, home)


def public_callables(module: ModuleType, functions: bool = False) -> list[str]:
    """Return the names of callables that a module defines, without kernels; of its classes the Functions, or none."""
    return [
        name
        for name, value in vars(module).items()
        if callable(value)
        and answers(value)
        and not is_kernel(value)
        and (not isinstance(value, type) or (functions and (is_function(value) or is_carried(value))))
        and not name.startswith("_")
        and getattr(value, "__module__", None) == module.__name__
    ]


def find_function(cls: Function, home: Home) -> Discovered:
    """Describe a live Function class of a module; one without a derivative cannot be audited."""
    source = source_of(cls)
    expression = _reach_apply(cls, home.module)
    name = cls.__name__
    if "<locals>" in cls.__qualname__ and expression is not None:
        name = expression.removesuffix(".apply")
    location = location_of(cls, source, home)
    audited = has_derivative(cls)
    return Discovered(
        target=cls if audited else None,
        kind="function",
        name=name,
        module=home.name,
        qualname=cls.__qualname__,
        location=location,
        source=source,
        load=home.load(expression, f"{cls.__name__}.apply", location),
        why_unaudited="" if audited else "it has a forward but no backward, vjp or jvp: is one misspelt?",
        bound=expression is not None,
        hidden=_is_hidden(cls),
    )


def find_op(op: Any, home: Home) -> Discovered:
    """Describe a `torch.library` custom op of a module."""
    name = _torch.op_name(op)
    source = source_of(op)
    bound = reach(op, _torch.custom_op_function(op).__name__, home.module)
    location = location_of(op, source, home)
    return Discovered(
        target=op,
        kind="op",
        name=name,
        module=home.name,
        qualname=name,
        location=location,
        source=source,
        load=home.load(bound, f"torch.ops.{name.replace('::', '.')}", location),
    )


def find_callable(obj: Any, home: Home) -> Discovered:
    """Describe a callable of a module: an op of `pullback.function`, or a callable that the user named."""
    source = source_of(obj)
    inner = obj.func if isinstance(obj, functools.partial) else obj
    qualname = getattr(inner, "__qualname__", None) or type(inner).__qualname__
    expression = reach(obj, qualname, home.module)
    name = expression or qualname.rpartition("<locals>.")[2]
    location = location_of(obj, source, home)
    return Discovered(
        target=obj,
        kind="callable",
        name=name,
        module=home.name,
        qualname=qualname,
        location=location,
        source=source,
        load=home.load(expression, name, location),
        bound=expression is not None,
    )


def find_carried(cls: type, home: Home) -> Discovered:
    """Describe a class derived from `pullback.AutogradFunction`."""
    source = source_of(cls)
    expression = reach(cls, cls.__qualname__, home.module)
    location = location_of(cls, source, home)
    return Discovered(
        target=attribute(cls, "_carried"),
        kind="callable",
        name=cls.__name__,
        module=home.name,
        qualname=cls.__qualname__,
        location=location,
        source=source,
        load=home.load(expression and f"{expression}.apply", f"{cls.__name__}.apply", location),
        bound=expression is not None,
    )


def _find_op_overload(op: Any, home: Home) -> Discovered:
    name = _torch.op_name(op)
    packet = name.partition(".")[0]
    defined = next((known for known in _torch.custom_ops() if _torch.op_name(known) == packet), None)
    if defined is not None:
        home = _home_of(defined)
    source = None if defined is None else source_of(defined)
    return Discovered(
        target=op,
        kind="op",
        name=name,
        module=home.name,
        qualname=name,
        location=location_of(defined, source, home),
        source=source,
        load=_load_op(name, home, defined),
    )


def _load_op(name: str, home: Home, defined: Any) -> str:
    """Return the lines for `torch.ops.ns.name`, after the import of its definition."""
    importable = defined is not None and home.module is not None and home.name != "__main__"
    define = f"import {home.name}\n" if importable else ""
    return f"import torch\n{define}fn = torch.ops.{name.replace('::', '.')}"


def location_of(obj: Any, source: FunctionSource | None, home: Home) -> Location:
    """Return where an object is defined: the line of its `class` or `def`, below any decorators."""
    if source is not None:
        return home.location(source.file, source.node.lineno)
    functions: Iterable[FunctionType | None] = own_functions(obj) if isinstance(obj, type) else [plain_function(obj)]
    for function in functions:
        if function is not None:
            return home.location(function.__code__.co_filename, function.__code__.co_firstlineno)
    return Location(home.shown) if isinstance(obj, type) else Location()


def reach(obj: Any, qualname: str, module: ModuleType | None) -> str | None:
    """Return the expression that gives an object from the names of a module, if there is one."""
    if module is None:
        return None
    if attribute(module, qualname) is obj:
        return qualname
    return _name_of(module, lambda value: value is obj)


def attribute(obj: Any, path: str) -> Any:
    """Return the object at a dotted path from an object; `None` if there is none, or a lookup raises."""
    for part in path.split("."):
        try:
            obj = getattr(obj, part, None)
        except Exception:
            return None
    return obj


def _reach_apply(cls: Function, module: ModuleType | None) -> str | None:
    """Return the expression for `cls.apply` in names of a module: "Op.apply", "Outer.Op.apply" or an alias."""
    if (expression := reach(cls, cls.__qualname__, module)) is not None:
        return f"{expression}.apply"
    return _name_of(module, lambda value: applied_class(value) is cls)


def _name_of(module: ModuleType | None, matches: Callable[[Any], bool]) -> str | None:
    names = {} if module is None else dict(vars(module))
    return next((name for name, value in names.items() if name.isidentifier() and matches(value)), None)


def _carried(obj: Any) -> type | None:
    """Return `Op` if `obj` is a class `Op` derived from `pullback.AutogradFunction`, or its `apply`."""
    applied = inspect.ismethod(obj) and obj.__name__ == "apply"
    cls = obj.__self__ if applied else obj
    return cls if is_carried(cls) else None


def _home_of(obj: Any) -> Home:
    owner = applied_class(obj) or _carried(obj) or obj
    if _torch.is_custom_op(owner):
        owner = _torch.custom_op_function(owner)
    elif not isinstance(owner, type):
        owner = plain_function(owner) if isinstance(owner, functools.partial) else owner
    name = getattr(owner, "__module__", None) or "torch"  # its builtins have none
    module = sys.modules.get(name)
    return Home(name, None, name) if module is None else home_of_module(module)


def _to_construct(cls: type) -> str:
    kind = "an nn.Module" if issubclass(cls, torch.nn.Module) else "a class"
    return (
        f"{cls.__name__} is {kind} to be constructed first: audit an instance, "
        f"as in `layer = {cls.__name__}(…)` and then pullback.check(layer) or FILE:layer"
    )


def _is_hidden(cls: Function) -> bool:
    """Whether a Function is not to be called itself.

    It has no forward; or others derive from it and a method that it needs is missing or a stub; or it has no
    derivative but a `symbolic`, which is how a node is put into an ONNX graph.
    """
    if not has_forward(cls):
        return True
    if not has_derivative(cls):
        return bool(cls.__subclasses__()) or hasattr(cls, "symbolic")
    if not cls.__subclasses__():
        return False
    source = source_of(cls)
    methods = [] if source is None else source.methods.values()
    return any(_is_stub_to_fill(cls, method) or _uses_missing(cls, method) for method in methods)


def _is_stub_to_fill(cls: Function, method: ast.FunctionDef) -> bool:
    """Whether a method only raises NotImplementedError, and a derived class overrides it."""
    body = [node for node in method.body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))]
    if len(body) != 1 or not isinstance(body[0], ast.Raise) or "NotImplementedError" not in ast.unparse(body[0]):
        return False
    return any(method.name in vars(derived) for derived in cls.__subclasses__())


def _uses_missing(cls: Function, method: ast.FunctionDef) -> bool:
    """Whether a class method reads an attribute of the class that the class does not have."""
    if not any(isinstance(node, ast.Name) and node.id == "classmethod" for node in method.decorator_list):
        return False
    first = positional_parameters(method)[:1]
    return any(
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and [node.value.id] == first
        and not hasattr(cls, node.attr)
        for node in ast.walk(method)
    )

"""Weights: tensors that a subject reaches without being given them, by its closure, its globals or a module.

They are inputs all the same: an audit that differentiates the arguments alone calls a module right whose weights get
a wrong gradient. A subject that gets them as arguments (`with_weights`) is audited for them.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from pullback import _torch
from pullback.check.case import Captured, Case, is_differentiable, make_case
from pullback.check.cases import layouts
from pullback.check.cases.repro import identifier
from pullback.check.cases.signature import positional_names
from pullback.check.derivative.agreement import gradients
from pullback.check.find.objects import answers
from pullback.check.subject import Subject
from pullback.check.trial import Raised, forward

_DIRECT, _OTHER = 64, 8
"""Maximum number of differentiated weights: of those passed directly to a custom Function, and of others."""
_LONGEST = 1 << 18
"""Largest number of elements of a differentiated weight."""
_GOLDEN, _SPREAD = 0.6180339887498949, 0.25
"""Increment of the sequence k φ mod 1 that separates equal elements, and their largest distance."""
_DEPTH, _WIDTH = 4, 256
"""Depth of the search for captured tensors, and the number of objects examined at each level."""
_LIBRARIES = sys.stdlib_module_names | {"torch", "numpy"}
_PLAIN = int | float | complex | str | bytes | None
_OF_MODULES = {"_parameters", "_buffers", "_modules"}
_LARGEST = 1 << 20
"""Number of captured elements beyond which tensors without a gradient keep their dtype."""


def reached(subject: Subject, case: Case) -> dict[str, Any]:
    """Tensors and modules that a subject is, receives, or uses in its code, by their Python source.

    Closures, globals, defaults, attributes and containers are followed for `_DEPTH` steps.
    """
    is_function = subject.kind == "function"
    roots = {"fn.__self__.forward": subject.target.forward} if is_function else {"fn": subject.target}
    roots |= {case.names[p]: value for p, value in enumerate(case.values) if not isinstance(value, Tensor)}
    found: dict[str, Any] = {}
    seen: set[int] = set()
    layer = roots
    for _ in range(_DEPTH):
        new = {text: v for text, v in layer.items() if id(v) not in seen and answers(v) and not isinstance(v, _PLAIN)}
        seen.update(map(id, new.values()))
        found |= {text: value for text, value in new.items() if isinstance(value, Tensor | Module)}
        layer = {t: v for text, value in [*new.items()][:_WIDTH] for t, v in _parts(value, text).items()}
    return found


def _parts(value: Any, text: str) -> dict[str, Any]:
    """Return the elements and attributes of an object, or the variables that a function's code names, by source."""
    if isinstance(value, functools.partial):
        return {f"{text}.func": value.func, f"{text}.args": value.args, f"{text}.keywords": value.keywords}
    if isinstance(value, list | tuple):
        return {f"{text}[{k}]": part for k, part in enumerate(value)}
    if isinstance(value, dict):
        return {f"{text}[{key!r}]": part for key, part in value.items() if isinstance(key, str | int)}
    if inspect.ismethod(value):
        return {f"{text}.__self__": value.__self__, f"{text}.__func__": value.__func__}
    plain = inspect.unwrap(value) if inspect.isfunction(value) else value
    if isinstance(value, Tensor | type) or _is_library(plain):
        return {}
    if inspect.isfunction(plain):
        return _of_function(plain, text if plain is value else f"inspect.unwrap({text})")
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    captured = {name: getattr(value, name) for name in slots if hasattr(value, name)} | getattr(value, "__dict__", {})
    return {f"{text}.{name}": part for name, part in captured.items() if name not in _OF_MODULES}


def _of_function(function: Any, text: str) -> dict[str, Any]:
    """Return the variables and the defaults of a function; of the functions among its globals, those of its package."""
    names = inspect.getclosurevars(function)
    package = _package(function)
    answering = {n: v for n, v in names.globals.items() if answers(v)}
    near = {n: v for n, v in answering.items() if not inspect.isfunction(v) or _package(v) == package}
    found = {f"inspect.getclosurevars({text}).globals[{name!r}]": part for name, part in near.items()}
    found |= {f"inspect.getclosurevars({text}).nonlocals[{name!r}]": part for name, part in names.nonlocals.items()}
    return found | {f"{text}.__defaults__": function.__defaults__, f"{text}.__kwdefaults__": function.__kwdefaults__}


def _package(value: Any) -> str:
    return str(getattr(value, "__module__", None) or "").partition(".")[0]


def _is_library(value: Any) -> bool:
    """Whether a function, or the class of an object, is of Python, NumPy or PyTorch."""
    package = _package(value if inspect.isfunction(value) else type(value))
    return not isinstance(value, Module) and package in _LIBRARIES


def captured_tensors(subject: Subject, case: Case) -> dict[str, Captured]:
    """Return the floating and complex leaves that a subject reaches, by the names that its author gives them."""
    found: dict[str, Captured] = {}
    for text, value in reached(subject, case).items():
        name = _short(text)
        name = f"self.{name}" if name in case.names else name
        if isinstance(value, Tensor):
            found[name] = Captured(value, text, value.requires_grad)
            continue
        prefix = "" if name == "fn" else f"{name}."
        for kind, tensors in (("parameter", value.named_parameters()), ("buffer", value.named_buffers())):
            found.update({prefix + n: Captured(t, f'{text}.get_{kind}("{n}")', t.requires_grad) for n, t in tensors})
    return {
        name: captured
        for name, captured in _without_duplicates(found).items()
        if captured.tensor.is_leaf and is_differentiable(captured.tensor) and _is_ordinary(captured.tensor)
    }


def given_call(subject: Subject, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Case:
    """Return the case of a call that is given.

    An argument that the subject or another argument holds too (a module is often passed with its parameters) stays that
    very tensor: a copy would have no part in the forward. It is differentiated as a weight, if any other argument is.
    """
    names, nested = positional_names(subject), subject.kind != "function"
    case = make_case(args, kwargs, names, "given", nested)
    captured = {id(h.tensor) for h in captured_tensors(subject, case).values() if h.asks}
    others = make_case(args, kwargs, names, "given", nested, captured)
    found = others if others.wrt else case
    return replace(found, fixed=frozenset(_sizes_held(subject, found)))


def _sizes_held(subject: Subject, case: Case) -> set[int]:
    """Return the sizes of the tensors that a subject holds, and the numbers that a module in it keeps."""
    if subject.kind == "function":
        return set()
    captured = reached(subject, case).values()
    parts = [part for value in captured if isinstance(value, Module) for part in value.modules()]
    own = [t for part in parts for t in (*part.parameters(False), *part.buffers(False))]
    tensors = [*own, *(value for value in captured if isinstance(value, Tensor))]
    numbers = {number for part in parts for number in vars(part).values() if type(number) is int}
    return {size for t in tensors for size in t.shape} | numbers


def _is_ordinary(t: Tensor) -> bool:
    return t.layout is torch.strided and t.device.type == "cpu" and not t.is_inference()


def _short(text: str) -> str:
    """Return the name of a variable or an attribute at the end of its source."""
    text = re.sub(r"^.*\.(?:globals|nonlocals|keywords)\['(\w+)'\]", r"\1", text)
    return text.removesuffix(".__self__").removeprefix("fn.")


def _without_duplicates(found: Mapping[str, Captured]) -> dict[str, Captured]:
    first: dict[int, str] = {}
    return {name: captured for name, captured in found.items() if first.setdefault(id(captured.tensor), name) == name}


def modules_of(subject: Subject, case: Case) -> dict[str, Module]:
    """Return the modules that a subject is, holds or is given, by Python source."""
    return {text: value for text, value in reached(subject, case).items() if isinstance(value, Module)}


def with_weights(subject: Subject, case: Case) -> tuple[Subject, Case] | None:
    """Return a subject with its weights as further arguments, and its call; `None` if it has none.

    Of many weights, those passed unchanged to a custom Function are differentiated, and a few others; weights without a
    gradient are left out, since another rule reports these.
    """
    if subject.device is not None:
        return _with_moved_weights(subject, case)
    captured = captured_tensors(subject, case)
    asking = [name for name, h in captured.items() if h.tensor.requires_grad]
    chosen = _chosen(subject, case, [name for name in asking if captured[name].tensor.numel() <= _LONGEST], captured)
    if subject.is_made or not chosen:
        return None
    if sum(h.tensor.numel() for h in captured.values()) > _LARGEST:
        captured = {name: captured[name] for name in chosen}
    keys = {identifier(name, position): name for position, name in enumerate(captured)}
    values = {key: _varied(captured[name].tensor.detach()) for key, name in keys.items()}
    call, positions = _extended(subject, case, keys, values, chosen)
    call = replace(
        call,
        non_leaf=case.non_leaf,
        captured={p: captured[name] for p, name in positions.items()},
        left_out=tuple(name for name in asking if name not in chosen),
        is_varied=any(not torch.equal(values[key], captured[name].tensor) for key, name in keys.items()),
    )
    weighted = replace(
        subject, kind="callable", target=_Weighted(subject, {k: captured[n].tensor for k, n in keys.items()})
    )
    with kept(call):
        for case in (layouts.widened(call), call):
            try:
                found = dict(zip(case.wrt, gradients(weighted, case), strict=True))
            except Raised:
                continue
            dense = {p for p, gradient in found.items() if gradient is not None and gradient.layout is torch.strided}
            return weighted, replace(case, wrt=tuple(p for p in case.wrt if p not in positions or p in dense))
    return None


def _with_moved_weights(subject: Subject, case: Case) -> tuple[Subject, Case] | None:
    """Return a module on an accelerator as a function of its weights, of which the call has copies on the CPU."""
    module = subject.target
    if not isinstance(module, Module):
        return None
    owned = {n: t for n, t in (*module.named_parameters(), *module.named_buffers()) if is_differentiable(t)}
    captured = {name: Captured(t, "", t.requires_grad) for name, t in owned.items() if t.numel() <= _LONGEST}
    asking = [name for name, h in captured.items() if h.asks]
    chosen = _chosen(subject, case, asking, captured)
    if not chosen:
        return None
    keys = {identifier(name, position): name for position, name in enumerate(captured)}
    values = {key: _varied(captured[name].tensor.detach().cpu()) for key, name in keys.items()}
    call, _ = _extended(subject, case, keys, values, chosen)
    call = replace(call, left_out=tuple(name for name in asking if name not in chosen), is_varied=True)
    weighted = replace(subject, kind="callable", target=_Functional(module, keys), load=_functional(subject, keys))
    for of_weights in (layouts.widened(call), call):
        with suppress(Raised):
            gradients(weighted, of_weights)
            return weighted, of_weights
    return None


def _extended(
    subject: Subject, case: Case, keys: Mapping[str, str], values: Mapping[str, Tensor], chosen: Collection[str]
) -> tuple[Case, dict[int, str]]:
    """Return a call with weights as keyword arguments, and the names of these by their positions in it.

    Args:
        subject: the function.
        case: its call without the weights.
        keys: the name of each weight by the keyword that passes it.
        values: the values of the weights, by keyword.
        chosen: the weights that are differentiated, besides the arguments that are so in `case`.
    """
    args, kwargs, _ = case.arguments()
    names, nested = positional_names(subject), subject.kind != "function"
    call = make_case(args, {**kwargs, **values}, names, case.label, nested, case.shared_ids)
    positions = {p: keys[str(path[1])] for p, path in enumerate(call.paths) if path[0] == 1 and path[1] in keys}
    asked = [case.paths[p] for p in case.wrt]
    of_arguments = [p for p, path in enumerate(call.paths) if p not in positions and path in asked]
    wrt = (*of_arguments, *(p for p, name in positions.items() if name in chosen))
    return replace(call, wrt=wrt, names=tuple(positions.get(p, n) for p, n in enumerate(call.names))), positions


class _Functional:
    """Calls a module with its weights as keyword arguments."""

    def __init__(self, module: Module, names: Mapping[str, str]) -> None:
        self._module = module
        self._names = names
        self.__module__ = type(module).__module__
        self.__name__ = type(module).__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        weights = {name: kwargs.pop(key) for key, name in self._names.items()}
        return torch.func.functional_call(self._module, weights, args, kwargs)


def _functional(subject: Subject, names: Mapping[str, str]) -> str:
    """Return lines that make of a module the function that `_Functional` is."""
    return "\n".join(
        [
            subject.load or f"# fn = {subject.name}",
            "module = fn",
            "def fn(*args, **kwargs):",
            f"    weights = {{name: kwargs.pop(key) for key, name in {dict(names)!r}.items()}}",
            "    return torch.func.functional_call(module, weights, args, kwargs)",
        ]
    )


def _chosen(subject: Subject, case: Case, names: list[str], captured: Mapping[str, Captured]) -> list[str]:
    if len(names) <= _OTHER:
        return names
    given: set[int] = set()
    end = _torch.observe_functions(lambda _, args: given.update(map(id, _torch.tree_leaves(args)[0])))
    try:
        forward(subject, case)
    except Raised:
        return []
    finally:
        end()
    ordered = sorted(names, key=lambda name: id(captured[name].tensor) not in given)
    direct = sum(id(captured[name].tensor) in given for name in names)
    rest = ordered[direct:]
    return ordered[:direct][:_DIRECT] + rest[:: max(1, -(-len(rest) // _OTHER))]


def _varied(t: Tensor) -> Tensor:
    """Return a copy of a tensor; with elements about its value if that is one, as of a new scale or bias.

    At ones a scale changes nothing, and at zeros much else has no gradient.
    """
    if not t.numel() or not bool((t == t.flatten()[0]).all()):
        return t.clone()
    steps = torch.arange(1, t.numel() + 1, dtype=torch.float64) * _GOLDEN % 1 - 0.5
    return t + (_SPREAD * steps).reshape(t.shape).to(t.dtype)


class _Weighted:
    """Calls a subject with its weights as keyword arguments: themselves, or tensors that lend them their data."""

    def __init__(self, subject: Subject, weights: Mapping[str, Tensor]) -> None:
        self._call = subject.call
        self._weights = weights
        self.__module__ = getattr(subject.target, "__module__", "")
        self.__name__ = subject.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = {name: kwargs.pop(name) for name in self._weights}
        before = {name: weight.data for name, weight in self._weights.items()}
        moved = [name for name, weight in self._weights.items() if given[name] is not weight]
        for name in moved:
            self._weights[name].data = given[name].detach()
        try:
            return self._call(*args, **kwargs)
        finally:
            for name in moved:
                self._weights[name].data = before[name]


@contextmanager
def kept(case: Case) -> Iterator[None]:
    """Restore at the end of a block all tensors that a subject holds."""
    before = [(h.tensor, h.tensor.data, h.tensor.grad, h.tensor.requires_grad) for h in case.captured.values()]
    try:
        yield
    finally:
        for tensor, data, grad, asks in before:
            tensor.grad = None  # of another dtype
            tensor.data = data
            tensor.grad = grad
            tensor.requires_grad_(asks)


@contextmanager
def in_other_mode(modules: Mapping[str, Module]) -> Iterator[None]:
    """Switch modules between training and evaluation for a block, and restore their buffers."""
    parts = [part for module in modules.values() for part in module.modules()]
    modes = [(part, part.training) for part in parts]
    buffers = [(b, b.detach().clone()) for module in modules.values() for b in module.buffers()]
    for part, training in modes:
        part.training = not training
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
        for buffer, value in buffers:
            buffer.data.copy_(value)

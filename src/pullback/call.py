"""One call of an op: its flattened arguments, its cache key, and how to call the op again with other tensors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback import _torch
from pullback.dtypes import has_derivative
from pullback.errors import FormulaError
from pullback.graph.captures import overrides_attribute
from pullback.graph.identity import ATOMS, identity, leaves_and_structure


def key_of(leaves: Sequence[Any], grad: bool) -> Hashable | None:
    """Return the cache key of a graph of a call; `None` if the call cannot be keyed.

    `leaves` are the flattened arguments; `grad` says whether grad mode is on.
    """
    key: list[Any] = []
    if len(leaves) > 1 and len(set(map(id, leaves))) < len(leaves) and _repeats(leaves):
        return None  # a formula may ask whether two arguments are one
    for leaf in leaves:
        kind = type(leaf)
        if kind is Tensor or kind is torch.nn.Parameter:
            if leaf.layout is not torch.strided or leaf.is_neg() or (leaf.is_complex() and leaf.is_conj()):
                return None
            if _torch.is_zero_tensor(leaf):  # it has no memory
                return None
            if leaf.__dict__ and overrides_attribute(leaf):
                return None
            if grad and leaf.is_inference():  # it cannot be saved
                return None
            try:
                key += (leaf.shape, leaf.stride(), leaf.dtype, leaf.device, grad and leaf.requires_grad)
            except RuntimeError:  # a nested tensor has none
                return None
        else:
            known = identity(leaf) if kind in ATOMS else None
            if known is None:
                return None
            key += known
    return tuple(key)


def _require_same(given: tuple[list[Any], Any], now: tuple[list[Any], Any], function: Callable[..., Any]) -> None:
    """Refuse a function that has changed a container among its arguments; each is given as leaves and structure."""
    if given[1] != now[1] or any(a is not b for a, b in zip(given[0], now[0], strict=True)):
        name = getattr(function, "__name__", "the formula")
        raise FormulaError(
            f"{name} changes a list or dict that it was given, which its graph would not do. Return what it computes, "
            "and work on a copy: `xs = [*xs, x]`, `d = {**d, 'k': x}`."
        )


def _repeats(leaves: Sequence[Any]) -> bool:
    tensors = [id(leaf) for leaf in leaves if isinstance(leaf, Tensor)]
    return len(set(tensors)) < len(tensors)


_UNKNOWN = object()


class Call:
    """The arguments of one call.

    Args:
        args, kwargs: arguments of the op.
        grad: whether grad mode is on.
        key: `key_of` the arguments, if it is known and they hold no containers.

    Attributes:
        leaves: arguments, with containers flattened.
        tensors: those that are tensors.
        key: see `key_of`; with the structure of the containers.
        structure: the identity of that; empty where there are none, `None` where it has none (`graph.identity`).
    """

    __slots__ = ("_positions", "_spec", "key", "leaves", "structure", "tensors")

    def __init__(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], grad: bool, key: Hashable | None = _UNKNOWN
    ) -> None:
        self._spec: Any = None
        self.leaves: Sequence[Any] = args
        self.structure: Hashable | None = ()
        if kwargs or any(isinstance(a, list | tuple | dict) for a in args):
            self.leaves, self._spec, self.structure = leaves_and_structure((args, dict(kwargs)))
        self._positions = [i for i, leaf in enumerate(self.leaves) if isinstance(leaf, Tensor)]
        self.tensors: list[Tensor] = [self.leaves[i] for i in self._positions]
        if key is _UNKNOWN or self._spec is not None:
            key = None if self.structure is None else key_of(self.leaves, grad)
        self.key = (self.structure, key) if key is not None and self.structure else key

    @property
    def obstacle(self) -> str:
        """Why there is no key, in words; empty where there is one."""
        if self.key is not None:
            return ""
        known = (Tensor, torch.nn.Parameter, *ATOMS)
        strange = [type(leaf).__name__ for leaf in self.leaves if type(leaf) not in known]
        if strange:
            return f"an argument is an object of type {strange[0]}"
        if self.structure is None:
            return "an argument is in a container of the user's own class, or under a key that is not a plain value"
        if self.repeats:
            return "two arguments are the same tensor"
        if any(t.is_nested for t in self.tensors):
            return "an argument is a nested tensor"
        if any(overrides_attribute(t) for t in self.tensors):
            return "an argument has a method of its own in place of PyTorch's"
        if any(t.is_inference() for t in self.tensors):
            return "an argument was made in inference mode, and cannot be saved"
        return "an argument is a tensor that is not strided, has no memory, or waits to be conjugated or negated"

    @property
    def repeats(self) -> bool:
        """Whether two arguments are one tensor."""
        return _repeats(self.leaves)

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the op."""
        return self._filler()(self.tensors)

    def requiring_grad(self) -> Call:
        """Return the same call on tensors that require grad, where they can."""
        live = [x.detach().requires_grad_() if has_derivative(x) else x for x in self.tensors]
        args, kwargs = self._filler()(live)
        return Call(args, kwargs, grad=True)

    def example(self) -> Callable[[], tuple[tuple[Any, ...], dict[str, Any]]] | None:
        """Return a factory of arguments for calls like this one, with ones in every tensor; `None` if one is nested."""
        if any(t.is_nested for t in self.tensors):
            return None
        kinds = [(x.shape, x.dtype, x.device) for x in self.tensors]
        filled = self._filler()
        return lambda: filled([torch.ones(shape, dtype=dtype, device=device) for shape, dtype, device in kinds])

    def flat(self, function: Callable[..., Any], structure: list[Any] | None = None) -> Callable[..., list[Any]]:
        """Return `function` as a function of the tensors alone, which returns leaves.

        `structure`, where given, receives the pytree spec of the result. The returned function raises FormulaError if
        `function` mutates a container among its arguments; it gets fresh containers, not those of the call.
        """
        filled, spec = self._filler(), self._spec

        def flat(*tensors: Tensor) -> list[Any]:
            args, kwargs = filled(tensors)
            given = None if spec is None else _torch.tree_leaves((args, kwargs))
            results, result_spec = _torch.tree_leaves(function(*args, **kwargs))
            if given is not None:
                _require_same(given, _torch.tree_leaves((args, kwargs)), function)
            if structure is not None:
                structure[:] = [result_spec]
            return results

        return flat

    def _filler(self) -> Callable[[Sequence[Tensor]], tuple[tuple[Any, ...], dict[str, Any]]]:
        """Return a function from other tensors to the arguments; it keeps no tensor of this call alive."""
        template = [None if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        positions, spec = self._positions, self._spec

        def filled(tensors: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            leaves = list(template)
            for position, tensor in zip(positions, tensors, strict=True):
                leaves[position] = tensor
            if spec is None:
                return tuple(leaves), {}
            args, kwargs = _torch.tree_unflatten(leaves, spec)
            return tuple(args), kwargs

        return filled


TENSOR = object()
"""Placeholder for a tensor in a template."""


_ATOMS = frozenset({int, float, bool, str, type(None)})


@dataclass(slots=True)
class Tree:
    """A structure with its tensors taken out; `flat` where it is a tuple of leaves."""

    template: list[Any]
    spec: Any
    flat: bool = False

    @classmethod
    def of(cls, value: Any) -> tuple[Tree, list[Tensor]]:
        """Take the tensors out of `value`. A lone tensor and a tuple of leaves, the usual cases, go the short way."""
        if isinstance(value, Tensor):
            return _LONE, [value]
        flat = type(value) is tuple and len(value) < len(_FLAT)
        leaves, spec = (value, _FLAT[len(value)]) if flat else _torch.tree_leaves(value)
        template: list[Any] = []
        tensors: list[Tensor] = []
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                tensors.append(leaf)
                template.append(TENSOR)
            elif flat and type(leaf) not in _ATOMS:
                return cls._nested(value)
            else:
                template.append(leaf)
        return cls(template, spec, flat), tensors

    @property
    def is_lone(self) -> bool:
        """Whether it is a tensor, and no structure at all."""
        return self is _LONE

    @classmethod
    def _nested(cls, value: Any) -> tuple[Tree, list[Tensor]]:
        leaves, spec = _torch.tree_leaves(value)
        return cls.of_leaves(leaves, spec), [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    @classmethod
    def of_leaves(cls, leaves: Sequence[Any], spec: Any) -> Tree:
        """Take the tensors out of a structure that is flat already."""
        if spec == _LONE.spec:
            return _LONE
        flat = len(leaves) < len(_FLAT) and spec == _FLAT[len(leaves)]
        return cls([TENSOR if isinstance(x, Tensor) else x for x in leaves], spec, flat)

    def filled(self, tensors: Sequence[Any]) -> Any:
        """Return the structure filled with tensors or placeholders."""
        if self is _LONE:
            return tensors[0]
        waiting = iter(tensors)
        leaves = [next(waiting) if leaf is TENSOR else leaf for leaf in self.template]
        return tuple(leaves) if self.flat else _torch.tree_unflatten(leaves, self.spec)

    def of_tensors(self, derivatives: Sequence[Any]) -> Any:
        """Return the structure filled with the tensors' derivatives, and `None` elsewhere: numbers have none."""
        if self is _LONE:
            return derivatives[0]
        waiting = iter(derivatives)
        leaves = [next(waiting) if leaf is TENSOR else None for leaf in self.template]
        return tuple(leaves) if self.flat else _torch.tree_unflatten(leaves, self.spec)

    def identity(self) -> Hashable | None:
        """Return a key shared by trees that differ in tensors alone; `None` if other values in them may change."""
        leaves, _, structure = leaves_and_structure(self.filled([TENSOR] * self.template.count(TENSOR)))
        known = tuple([() if leaf is TENSOR else identity(leaf) for leaf in leaves])
        return None if structure is None or None in known else (structure, known)

    def owners(self) -> list[int]:
        """Return, for each tensor, which item of the structure it is in."""
        if self.flat:
            return [i for i, leaf in enumerate(self.template) if leaf is TENSOR]
        marks = self.filled([TENSOR] * self.template.count(TENSOR))
        return [i for i, mark in enumerate(marks) for leaf in _torch.tree_leaves(mark)[0] if leaf is TENSOR]


_LONE = Tree([TENSOR], _torch.tree_leaves(None)[1])
"""A tensor that stands alone."""

_FLAT = [_torch.tree_leaves((None,) * n)[1] for n in range(17)]
"""The structure of a tuple of n leaves."""


def unaliased(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return outputs with separate memory, copied where they share it.

    A write to one must not reach a tensor that has another derivative.
    """
    made: list[Tensor] = []
    for out in outputs:
        for t in (*inputs, *made):
            if _torch.share_storage(out, t):
                out = out.clone()
                break
        made.append(out)
    return made


class _Word(str):
    """A string whose repr is its content."""

    __slots__ = ()
    __repr__ = str.__str__


def described(value: Any) -> str:
    """Return a structure in words: `(tensor, {'a': tensor})`."""
    leaves, spec = _torch.tree_leaves(value)
    words = ["tensor" if leaf is TENSOR or isinstance(leaf, Tensor) else type(leaf).__name__ for leaf in leaves]
    return repr(_torch.tree_unflatten([_Word("None" if w == "NoneType" else w) for w in words], spec))


def parameters_of(formula: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a formula; none where they are not known, as of a built-in function."""
    try:
        return list(inspect.signature(formula).parameters.values())
    except ValueError:
        return []

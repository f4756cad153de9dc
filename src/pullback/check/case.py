"""One example of a call: its arguments, which of them are differentiated, and fresh copies of both."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from pullback._torch import tree_flatten, tree_unflatten
from pullback.dtypes import has_reals

IF_IT_FITS = ", if that fits"
"""Suffix of the label of a case that may be an invalid input."""
_LAYOUTS = {
    "sliced with a step": "inputs sliced with a step",
    "non-zero storage offset": "inputs at an offset in their storage",
    "part of wider tensors": "inputs that are part of wider tensors",
}
"""Phrases for inputs of other strides."""


def in_layout(label: str) -> str:
    """Return the words for inputs of a layout: "transposed inputs", "inputs sliced with a step"."""
    return _LAYOUTS.get(label, f"{label} inputs")


@dataclass(frozen=True)
class Captured:
    """A tensor that a subject uses without receiving it as an argument, such as a weight of a module.

    Attributes:
        tensor: it is given other data to have another value, and is itself the leaf of the graph.
        text: Python source of it, in terms of `fn`.
        asks: whether it requires grad by default.
    """

    tensor: Tensor
    text: str
    asks: bool

    def filled(self, value: Tensor) -> Tensor:
        """Return the tensor, holding a copy of a value, without a gradient."""
        self.tensor.grad = None  # it may be of another dtype
        self.tensor.data = copy_tensor(value)
        return self.tensor.requires_grad_(self.asks)


@dataclass(frozen=True)
class Case:
    """One example of a call.

    Attributes:
        values: every leaf of `(args, kwargs)`, tensors detached.
        spec: the pytree spec of `values`.
        wrt: positions in `values` of the tensors that are differentiated.
        names: name of each leaf of `values`, for messages.
        paths: path of each leaf in `(args, kwargs)`.
        label: its special property, e.g. "float64, (3, 5), transposed".
        layout_only: differs from an ordinary case only in strides, so that its contiguous copy is a reference.
        doubtful: the forward may accept it by accident: one input has a smaller shape that broadcasts, or
            a size changed while a whole-number argument or an object that may depend on it did not.
        extreme: holds values far outside the ordinary range.
        non_leaf: each differentiated input is a copy of a leaf (an in-place function refuses leaves).
        required_property: property of a guessed example without which the gradient is wrong for every guess.
        captured: leaves that the subject captures, such as its weights, by position.
        shared: positions of tensors that another argument or the subject holds too, as a module that is passed with
            its parameters: such a tensor is passed itself, and differentiated as a weight.
        left_out: names of other differentiable tensors that it holds.
        is_varied: some of the captured tensors have new values.
        is_asked: the example says which of its inputs require a gradient.
        fixed: sizes that the subject holds, in tensors, modules and numbers: another one would not fit them.

    Two positions with the same tensor object are one input passed twice.
    """

    values: tuple[Any, ...]
    spec: Any
    wrt: tuple[int, ...]
    names: tuple[str, ...]
    paths: tuple[tuple[Any, ...], ...] = ()
    label: str = ""
    layout_only: bool = False
    extreme: bool = False
    doubtful: bool = False
    non_leaf: bool = False
    required_property: str = ""
    captured: Mapping[int, Captured] = field(default_factory=dict)
    shared: frozenset[int] = frozenset()
    left_out: tuple[str, ...] = ()
    is_varied: bool = False
    is_asked: bool = False
    fixed: frozenset[int] = frozenset()

    @property
    def is_variant(self) -> bool:
        """Whether it was derived from the example."""
        return self.label not in ("", "example", "given")

    @property
    def shared_ids(self) -> set[int]:
        """The ids of the shared tensors, for `make_case`."""
        return {id(self.values[position]) for position in self.shared}

    @property
    def tensors(self) -> list[Tensor]:
        """The differentiated tensors, detached."""
        return [self.values[position] for position in self.wrt]

    @property
    def all_tensors(self) -> dict[int, Tensor]:
        """All tensors by their positions, masks and indices included."""
        return {p: value for p, value in enumerate(self.values) if isinstance(value, Tensor)}

    @property
    def strided(self) -> dict[int, Tensor]:
        """The dense ones of all tensors, by their positions."""
        return {p: t for p, t in self.all_tensors.items() if t.layout is torch.strided}

    @property
    def sizes(self) -> set[int]:
        """The sizes of the dimensions of all tensors, without 0."""
        return {size for t in self.all_tensors.values() for size in t.shape if size}

    @property
    def phrase(self) -> str:
        """The special property as words after "with": "size 3 -> 4", "transposed inputs"."""
        if not self.layout_only or "inputs" in self.label or self.label.endswith("expanded"):
            return self.label
        return in_layout(self.label)

    def describe(self) -> str:
        """Return the shapes and dtypes of the tensors and the label, in one short line."""
        shapes = ", ".join(
            f"{self.names[p]}: {str(t.dtype).removeprefix('torch.')}{tuple(t.shape)}"
            for p, t in self.all_tensors.items()
        )
        return f"{shapes} [{self.label}{IF_IT_FITS * self.doubtful}]" if self.label else shapes

    def with_values(self, values: Mapping[int, Any], label: str | None = None, **changes: Any) -> Case:
        """Return a case in which the leaves at the given positions are replaced, but for those that are shared."""
        new = tuple(v if p in self.shared else values.get(p, v) for p, v in enumerate(self.values))
        return replace(self, values=new, label=self.label if label is None else label, **changes)

    def map_tensors(self, change: Callable[[Tensor], Tensor], label: str, **changes: Any) -> Case:
        """Return a case in which every tensor, integer and mask tensors too, is replaced."""
        return self.with_values({p: change(t) for p, t in self.all_tensors.items()}, label, **changes)

    def map_inputs(self, change: Callable[[Tensor], Tensor], label: str, **changes: Any) -> Case:
        """Return a case in which every differentiated tensor is replaced."""
        return self.with_values({p: change(self.values[p]) for p in self.wrt}, label, **changes)

    def map_distinct(
        self, positions: Iterable[int], change: Callable[[Tensor], Tensor], label: str | None = None, **changes: Any
    ) -> Case:
        """Return a case with changed tensors at some positions; a tensor at two of them remains one tensor."""
        new: dict[int, Tensor] = {}
        for p in positions:
            twin = next((q for q in new if self.values[q] is self.values[p]), None)
            new[p] = change(self.values[p]) if twin is None else new[twin]
        return self.with_values(new, label, **changes)

    def unshared(self) -> Case:
        """Return the case with a separate tensor for each differentiated input, where one was passed twice."""
        repeated = {p for k, p in enumerate(self.wrt) if any(self.values[p] is self.values[q] for q in self.wrt[:k])}
        return self.with_values({p: copy_tensor(self.values[p]) for p in repeated}) if repeated else self

    def top_level(self, count: int) -> list[int | None]:
        """Return, for each of the `count` positional arguments, its position in `values` if it is one leaf."""
        found: list[int | None] = [None] * count
        for position, path in enumerate(self.paths):
            if len(path) == 2 and path[0] == 0:
                found[path[1]] = position
        return found

    def arguments(
        self, mask: Sequence[bool] | None = None, moved: Sequence[Tensor] | None = None
    ) -> tuple[tuple[Any, ...], dict[str, Any], list[Tensor]]:
        """Return fresh `(args, kwargs, inputs)`.

        Args:
            mask: which of the differentiated inputs require grad; all by default.
            moved: tensors to use in place of the differentiated inputs; they do not require grad then.
        """
        given = {} if moved is None else {p: self._unshared(p, t) for p, t in zip(self.wrt, moved, strict=True)}
        leaves = [given[p] if p in given else self._fresh(p) for p in range(len(self.values))]
        if moved is not None:
            return *self._tree(leaves), list(moved)
        inputs: list[Tensor] = []
        for input_index, position in enumerate(self.wrt):
            twin = next(p for p in self.wrt if self.values[p] is self.values[position])
            if twin != position:
                leaves[position] = leaves[twin]
                inputs.append(inputs[self.wrt.index(twin)])
            else:
                leaf = leaves[position].requires_grad_(mask is None or mask[input_index])
                leaves[position] = pass_through(leaf) if self.non_leaf and position not in self.captured else leaf
                inputs.append(leaf)
        return *self._tree(leaves), inputs

    def _tree(self, leaves: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return `(args, kwargs)` with the given leaves: at once, where no argument is a container."""
        if self._flat is None:
            args, kwargs = tree_unflatten(leaves, self.spec)
            return args, kwargs
        count, keys = self._flat
        return tuple(leaves[:count]), dict(zip(keys, leaves[count:], strict=True))

    @functools.cached_property
    def _flat(self) -> tuple[int, tuple[str, ...]] | None:
        """The number of positional arguments and the names of the others, if each of all is one leaf."""
        positions = list(range(len(self.values)))
        args, kwargs = tree_unflatten(positions, self.spec)
        return (len(args), tuple(kwargs)) if [*args, *kwargs.values()] == positions else None

    def _unshared(self, position: int, moved: Tensor) -> Tensor:
        """A moved value; a copy if it is the tensor of the case itself, which the call may change or free."""
        return copy_tensor(moved) if moved is self.values[position] else moved

    def _fresh(self, position: int) -> Any:
        """Return the leaf at a position for one call: a copy, or the tensor itself that the subject holds."""
        value = self.values[position]
        if position in self.shared:
            return value
        if position in self.captured:
            return self.captured[position].filled(value)
        return copy_tensor(value) if isinstance(value, Tensor) else value


def make_case(
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    names: Sequence[str],
    label: str = "",
    nested: bool = True,
    held: Collection[int] = (),
) -> Case:
    """Build a case from a call.

    The differentiated tensors are the floating and complex ones that require grad, or all of them if none
    does; without `nested`, only those that are arguments themselves, as for an `autograd.Function`, which does
    not look into lists and tuples. `names` are those of the positional parameters, `held` the ids of the tensors that
    the subject or another argument holds.
    """
    leaves, spec, paths = tree_flatten((tuple(args), dict(kwargs)))
    named = tuple(_leaf_name(path, names) for path in paths)
    shared = frozenset(p for p, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and id(leaf) in held)
    own = [p for p, leaf in enumerate(leaves) if is_differentiable(leaf) and p not in shared]
    differentiable = [p for p in own if nested or len(paths[p]) == 2]
    asked = [p for p in differentiable if leaves[p].requires_grad]
    copied = [leaf for p, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and p not in shared]
    copies = {id(leaf): copy_tensor(leaf) for leaf in copied}
    values = tuple(copies.get(id(leaf), leaf) for leaf in leaves)
    wrt = tuple(asked or differentiable)
    return Case(values, spec, wrt, named, tuple(paths), label, is_asked=bool(asked), shared=shared)


def is_differentiable(value: object) -> bool:
    """True for a floating or complex tensor."""
    return isinstance(value, Tensor) and has_reals(value)


def copy_tensor(t: Tensor) -> Tensor:
    """Return a detached copy with the same sizes, strides, storage offset and conjugation, on separate storage."""
    t = t.detach()
    if t.is_conj():
        return copy_tensor(t.conj()).conj()
    wraps = type(t).__torch_dispatch__ is not Tensor.__torch_dispatch__  # its own storage is empty
    if wraps or t.layout != torch.strided or t.is_neg() or t.is_quantized:
        return t.clone()
    if type(t) is Tensor and t.is_contiguous() and t.untyped_storage().nbytes() == t.nbytes:
        return t.clone()  # the same, in one operation; of a subclass it would keep the class without its attributes
    storage = t.untyped_storage().clone()
    return torch.empty(0, dtype=t.dtype, device=t.device).set_(storage, t.storage_offset(), t.size(), t.stride())


def pass_through(leaf: Tensor) -> Tensor:
    """Return a differentiable copy of `leaf` with the same layout, which an in-place function may change."""
    return leaf.clone(memory_format=torch.preserve_format)


def _leaf_name(path: tuple[Any, ...], names: Sequence[str]) -> str:
    """Name a leaf of `(args, kwargs)` as the user would: `x`, `weights[1]`, `options['eps']`."""
    root, first, *rest = path
    base = str(first) if root == 1 or first >= len(names) else names[first]
    if root == 0 and first >= len(names):
        base = f"args[{first}]"
    return base + "".join(f"[{key!r}]" for key in rest)

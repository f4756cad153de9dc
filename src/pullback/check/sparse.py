"""Functions of sparse tensors, as functions of their values: rules compare, vary and print dense tensors.

The places of a sparse tensor are constants of the function then, and a gradient is compared at these places alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pullback._torch import tree_leaves, tree_unflatten
from pullback.check.case import Case
from pullback.check.cases.repro import literal
from pullback.check.subject import Subject

_BY_ROW = (torch.sparse_csr, torch.sparse_bsr)


@dataclass(frozen=True)
class Pattern:
    """The sparsity pattern of a tensor: the indices of its values.

    Attributes:
        layout: layout of the tensor.
        indices: of a COO tensor one, of a compressed one those along the compressed dimension and along the other.
        size: size of the tensor.
    """

    layout: torch.layout
    indices: tuple[Tensor, ...]
    size: tuple[int, ...]

    def filled(self, values: Tensor) -> Tensor:
        """Return the sparse tensor that has these values, differentiable with respect to them."""
        if self.layout is torch.sparse_coo:
            return torch.sparse_coo_tensor(self.indices[0], values, self.size, is_coalesced=True)
        along, other = self.indices
        return torch.sparse_compressed_tensor(along, other, values, self.size, layout=self.layout)

    def text(self, values: str) -> str:
        """Return `filled` as source, in terms of PyTorch alone."""
        given = ", ".join((*map(literal, self.indices), values, repr(self.size)))
        if self.layout is torch.sparse_coo:
            return f"torch.sparse_coo_tensor({given}, is_coalesced=True)"
        return f"torch.sparse_compressed_tensor({given}, layout={self.layout})"


class OnValues:
    """A call that takes the values of its sparse tensors and returns dense results, recorded by autograd."""

    def __init__(self, call: Callable[..., Any], patterns: Mapping[int, Pattern]) -> None:
        """Wrap a call.

        Args:
            call: takes sparse tensors.
            patterns: their patterns, by position among the leaves of `(args, kwargs)`.
        """
        self._call = call
        self._patterns = patterns

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Make the call."""
        leaves, spec = tree_leaves((args, kwargs))
        args, kwargs = tree_unflatten(
            [self._patterns[p].filled(leaf) if p in self._patterns else leaf for p, leaf in enumerate(leaves)], spec
        )
        leaves, spec = tree_leaves(self._call(*args, **kwargs))
        return tree_unflatten([leaf.to_dense() if _is_sparse(leaf) else leaf for leaf in leaves], spec)


def on_values(subject: Subject, case: Case) -> tuple[Subject, Case]:
    """Return a function of the values of the differentiated sparse tensors of a call, and its call.

    Both are as they were where there is none.
    """
    parts = {p: _parts(case.values[p]) for p in case.wrt if _is_sparse(case.values[p])}
    if not parts:
        return subject, case
    patterns = {p: pattern for p, (pattern, _) in parts.items()}
    load = "\n".join([subject.load or f"# fn = {subject.name}", *_lines(patterns)])
    names = tuple(f"{name}.values()" if p in parts else name for p, name in enumerate(case.names))
    target = OnValues(subject.called, patterns)
    changed = replace(case.with_values({p: values for p, (_, values) in parts.items()}), names=names)
    return replace(subject, kind="callable", target=target, load=load, device=None), changed


def _is_sparse(value: object) -> bool:
    return isinstance(value, Tensor) and value.layout is not torch.strided


def _parts(t: Tensor) -> tuple[Pattern, Tensor]:
    if t.layout is torch.sparse_coo:
        t = t.detach().coalesce()
        return Pattern(t.layout, (t.indices(),), tuple(t.shape)), t.values().clone()
    t = t.detach()
    by_row = t.layout in _BY_ROW
    indices = (t.crow_indices(), t.col_indices()) if by_row else (t.ccol_indices(), t.row_indices())
    return Pattern(t.layout, indices, tuple(t.shape)), t.values().clone()


def _lines(patterns: Mapping[int, Pattern]) -> list[str]:
    """Return the lines of a reproduction after which `fn` takes values of sparse tensors and returns dense ones."""
    made = [f"    leaves[{p}] = {pattern.text(f'leaves[{p}]')}" for p, pattern in patterns.items()]
    return [
        "of_sparse, trees = fn, torch.utils._pytree",
        "def fn(*args, **kwargs):",
        "    leaves, spec = trees.tree_flatten((args, kwargs))",
        *made,
        "    args, kwargs = trees.tree_unflatten(leaves, spec)",
        "    out = of_sparse(*args, **kwargs)",
        "    return trees.tree_map(lambda t: t.to_dense() if isinstance(t, torch.Tensor) else t, out)",
    ]

"""Meaning of a formula: one term that is equal to it for every call, so that forms of the term may replace it.

Such a formula returns one tensor like its inputs, depends on no property of them but the dtype, and has the derivatives
of its term: it contains nothing that stops or replaces a gradient (`detach`, `no_grad`, a Function, a hook).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pullback import _torch
from pullback.errors import FormulaError, PullbackError, report_internal_error
from pullback.ops.constants import VALUES
from pullback.stable.derivative import derivative
from pullback.stable.formula import Formula, Quantity, as_written
from pullback.stable.term import CONST, Term, length_of, topological

_SHAPES = ((3,), (2, 5), ())
"""Shapes that a formula might treat differently without a query: flattening a vector returns it unchanged."""
_MOST = 300
"""Most operations of a term as `show` writes it: shared subterms are repeated, so a loop may double it each time."""
_ALLOWED_QUERIES = frozenset({"is_floating_point", "is_complex", "_set_grad_enabled"})
"""Functions that give no tensor, and the same for all tensors that forms are used for."""
# Not in the registry: these are functions of `torch` and methods of tensors, before they are ops of ATen.
_FACTORIES = frozenset({"zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"})
"""Functions of a tensor whose results do not depend on its values: that these have no derivative stops none."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """The term of a formula, and its variables in order."""

    name: str
    term: Term
    variables: tuple[str, ...]


def meaning_of(function: Callable[..., Any], dtype: torch.dtype) -> Meaning:
    """Meaning of a formula of tensors of a dtype.

    Raises:
        FormulaError: if no single term is equal to it.
        DerivativeError: if an op on the way has no derivative in the table.
        OptionError: if it cannot be called with tensors alone.
    """
    formula = Formula(function)
    taken = [name for name in formula.variables if name in VALUES]
    if taken:
        raise FormulaError(f"{formula.name} has a parameter {taken[0]}, the name of a constant: rename it.")
    vector, matrix, _ = (
        _checked_trace(
            formula, [torch.ones(shape, dtype=dtype, device="cpu").requires_grad_() for _ in formula.variables]
        )
        for shape in _SHAPES
    )
    if vector != matrix:
        raise FormulaError(
            f"{formula.name} depends on the shape of its inputs: forms are for what computes elementwise."
        )
    if len(vector) > _MOST:
        raise FormulaError(f"{formula.name} has {len(vector)} operations; forms are for up to {_MOST}.")
    term = formula.terms(dtype, 1, _SHAPES[:1], derivative)[Quantity(0, ())]
    if (length := length_of(term)) > _MOST:
        raise FormulaError(f"{formula.name} has {length} operations, written out; forms are for up to {_MOST}.")
    if any(t.op == "mul" and any(a.op == CONST and a.value == 0 for a in t.args) for t in topological([term])):
        raise FormulaError(f"{formula.name} multiplies by 0: its derivative would be 0 where PyTorch has 0 · ∞ or NaN.")
    return Meaning(formula.name, term, formula.variables)


def _checked_trace(formula: Formula, tensors: Sequence[Tensor]) -> list[Any]:
    """Run a formula, refuse it if no term expresses it, and return its trace."""
    like = tensors[0]
    try:
        with torch.enable_grad(), as_written(), _CallRecorder() as running, _NonPointwiseGuard(formula.name):
            out = formula.result(tensors)
    except PullbackError:
        raise
    except Exception as error:  # any error of a user's function
        report_internal_error(error, formula.name)
        raise FormulaError(f"{formula.name} cannot be called with tensors of shape {tuple(like.shape)}.") from error
    if not isinstance(out, Tensor) or (out.shape, out.dtype) != (like.shape, like.dtype):
        raise FormulaError(f"{formula.name} does not return one tensor of the shape and dtype of its inputs.")
    for node in _nodes(out):
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            raise FormulaError(f"{formula.name} calls a Function ({type(node).__name__}), whose derivative is its own.")
    calls: list[Any] = running.calls
    return calls


class _CallRecorder(_torch.DispatchMode):
    """Records the ATen ops that run and their arguments, tensors by the order in which they appear.

    To compare these takes a tenth of the time of a second trace.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Any] = []
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        leaves, spec = _torch.tree_leaves((args, kwargs, out))
        self._kept += leaves  # so that no other tensor gets the number of one
        self.calls.append((func, spec, [self._number(x) if isinstance(x, Tensor) else repr(x) for x in leaves]))
        return out

    def _number(self, x: Tensor) -> int:
        return self._seen.setdefault(id(x), len(self._seen))


class _NonPointwiseGuard(TorchFunctionMode):
    """Mode that refuses ops which no term expresses."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [leaf for leaf in _torch.tree_leaves((args, kwargs))[0] if isinstance(leaf, Tensor)]
        live = any(t.requires_grad for t in given)  # asked before: `detach_` changes it
        out = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        of = getattr(func.__self__, "__name__", "") if name == "__get__" else ""
        results = [leaf for leaf in _torch.tree_leaves(out)[0] if isinstance(leaf, Tensor)]
        asks = of or (not results and name not in _ALLOWED_QUERIES)
        if asks and not isinstance(out, torch.dtype | torch.device | torch.layout):
            raise FormulaError(
                f"{self._name} uses `{of or name}` of a tensor: forms are for what computes elementwise."
            )
        if live and name not in _FACTORIES:
            for result in results:
                if result.is_floating_point() and not result.requires_grad:
                    raise FormulaError(f"{self._name} stops the gradient, in `{name}`: forms are for whole formulas.")
        return out


def _nodes(out: Tensor) -> Iterator[Any]:
    waiting: list[Any] = [out.grad_fn]
    seen = set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            waiting += [ahead for ahead, _ in node.next_functions]

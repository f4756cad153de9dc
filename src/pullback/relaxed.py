"""The native form of a relaxed op: the value of one formula, every derivative of another.

With `s = soft(x)` and `cut` a copy whose gradient is stopped, `hard - where(isnan(d), 0, d)` for
`d = cut(s) - s` has the value of `hard`, since `d` is +0 (or NaN where `s` is not finite), and the derivative of
`s`. It consists of native ops only, so every transform supports it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from pullback import _torch
from pullback.bind.draws import refusal, with_one_draw
from pullback.bind.tree import described
from pullback.dtypes import has_derivative
from pullback.errors import DerivativeError, FormulaError
from pullback.signature import renamed

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_library = torch.library.Library("pullback", "FRAGMENT")
_library.define("cut(Tensor x) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))


def relaxed(hard: Callable[..., Any], soft: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return the function with the value of `hard` and every derivative of `soft`.

    Where the value of `soft` is not finite, its derivative is taken as 0. Integer and bool outputs of `hard`
    have no derivative.

    If both draw random numbers, `soft` gets the draws of `hard`. The generators end in the state after `hard`, as in a
    call without a gradient; one that `hard` does not use, in the state after `soft`.

    Raises:
        DerivativeError: when called, if both draw and the call is traced: a graph cannot replay a generator.
        FormulaError: when called, if the two return different structures, shapes or dtypes.
    """

    return _combined(hard, soft, name, _with_derivative_of)


def differentiated(hard: Callable[..., Any], soft: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a shorter function with the derivatives of `relaxed`, where the value is computed apart."""
    return _combined(hard, soft, name, lambda h, s: s.masked_fill(torch.isnan(s - s), 0.0))


def _combined(
    hard: Callable[..., Any], soft: Callable[..., Any], name: str, combine: Callable[[Tensor, Tensor], Tensor]
) -> Callable[..., Any]:
    refuse_two_draws = refusal(soft, hard, name)
    names = renamed(hard, soft)

    @wraps(hard)
    def native(*args: Any, **kwargs: Any) -> Any:
        by_name = {names.get(key, key): value for key, value in kwargs.items()}
        if _torch.is_jit_tracing():
            raise DerivativeError(
                f"the derivative given for {name} would be lost: torch.jit's passes drop it. To keep it, use "
                "torch.export."
            )
        if torch.compiler.is_dynamo_compiling():
            refuse_two_draws()
            relaxation, value = soft(*args, **by_name), _without_grad(hard, args, kwargs)
        else:
            relaxation, value = with_one_draw(
                lambda: soft(*args, **by_name), lambda: _without_grad(hard, args, kwargs), name
            )
        values, spec = _torch.tree_leaves(value)
        relaxations, soft_spec = _torch.tree_leaves(relaxation)
        if spec != soft_spec:
            raise FormulaError(
                f"{name} returns {described(value)} and its relaxation {described(relaxation)}: they must be alike."
            )
        pairs = zip(values, relaxations, strict=True)
        return _torch.tree_unflatten([_value_of(h, s, i, name, combine) for i, (h, s) in enumerate(pairs)], spec)

    return native


def _without_grad(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with torch.no_grad():
        return function(*args, **kwargs)


def _value_of(hard: Any, soft: Any, i: int, name: str, combine: Callable[[Tensor, Tensor], Tensor]) -> Any:
    if not isinstance(hard, Tensor):
        return hard
    if hard.is_nested and hard.layout is torch.strided:  # it has no shape to compare
        raise FormulaError(f"{name} was given a nested tensor of strided layout: make it with layout=torch.jagged.")
    if not isinstance(soft, Tensor) or hard.shape != soft.shape or hard.dtype != soft.dtype:
        raise FormulaError(
            f"output {i} of {name} is {_shown(hard)}, that of its relaxation {_shown(soft)}: a relaxation returns what "
            "the function returns, with other derivatives."
        )
    if not has_derivative(hard):
        return hard
    if hard.is_nested:
        return _torch.on_values(combine, hard, soft)
    if hard.is_complex():
        parts = (torch.view_as_real(t.resolve_conj()) for t in (hard, soft))
        return torch.view_as_complex(combine(*parts))
    return combine(hard, soft)


def _with_derivative_of(hard: Tensor, soft: Tensor) -> Tensor:
    d = cut(soft) - soft
    return cut(hard) - torch.where(torch.isnan(d), 0.0, d)


def cut(t: Tensor) -> Tensor:
    """Return the same values without their gradient.

    A round trip through integers: three of PyTorch's passes drop `detach`, none drops this. Where PyTorch cannot batch
    the round trip (2.11), a custom op replaces it under transforms: all passes keep it.
    """
    if not _torch.BITS_ARE_BATCHED and _is_transformed():
        copy: Tensor = torch.ops.pullback.cut.default(t)
        return copy
    if not torch.compiler.is_dynamo_compiling() and t.is_neg():  # Dynamo cannot ask, and has no such tensors
        t = t.resolve_neg()
    return t.view(_BITS[t.dtype.itemsize]).view(t.dtype)


@_torch.constant_while_compiling
def _is_transformed() -> bool:
    """Run while Dynamo traces."""
    return _torch.in_functorch()


def _cut_below_autograd(x: Tensor) -> Tensor:
    with _torch.below_autograd():
        copy: Tensor = torch.ops.pullback.cut.default(x)
        return copy


def _cut_batched(info: Any, in_dims: Any, x: Tensor) -> tuple[Tensor, int | None]:
    return torch.ops.pullback.cut.default(x), in_dims[0]


_library.impl("cut", lambda x: x.clone(), "CompositeExplicitAutograd")
_library.impl("cut", _cut_below_autograd, "Autograd")
torch.library.register_fake("pullback::cut", torch.empty_like, lib=_library)
torch.library.register_vmap(
    "pullback::cut", lambda info, in_dims, x: (torch.ops.pullback.cut.default(x), in_dims[0]), lib=_library
)


def _shown(value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"a {str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"

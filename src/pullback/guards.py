"""A guard for derivatives that only a Function can give: a transform that bypasses the Function meets an error.

Some of PyTorch's transforms trace through the forward of a Function and differentiate the trace. The output of every
such forward passes through an op here whose own derivative is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from pullback import _torch
from pullback.dtypes import has_derivative
from pullback.errors import DerivativeError

_library = torch.library.Library("pullback", "DEF")
_library.define("tripwire(Tensor x, Tensor[] sources, str name) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
_library.define("first_order(Tensor(a) x, str name) -> Tensor(a)", tags=(torch.Tag.pt2_compliant_tag,))


def tripwire(x: Tensor, sources: Sequence[Any], name: str) -> Tensor:
    """Return a copy of `x` that cannot be differentiated except by the rule of the op `name`.

    `sources` are the arguments of the op. They matter if the op computes outside of PyTorch, or detaches: its result
    then does not require grad, and would pass for a constant.
    """
    tensors = [s for s in sources if isinstance(s, Tensor)]
    copy: Tensor = torch.ops.pullback.tripwire.default(x, tensors, name)
    return copy


def guarded(x: Tensor, sources: Sequence[Any], name: str) -> Tensor:
    """Return `x`, behind the tripwire if a transform or tracer may see the ops that run.

    Otherwise the tripwire would only do harm: a DTensor has no sharding rule for it.
    """
    if not has_derivative(x):
        return x
    if torch.compiler.is_dynamo_compiling() or _torch.may_be_traced():
        return tripwire(x, sources, name)
    return x


def guarded_in_graphs(result: Any, sources: Sequence[Any], name: str) -> Any:
    """Return the result of a Function that Dynamo traces, guarded where its rule would be lost.

    An exported graph keeps the forward of a Function but not its backward, and runs it in no-grad mode, so a tripwire
    within the forward has no effect: this one follows the forward. Any other graph records the backward in no-grad
    mode. If PyTorch runs it unmodified (`backend="eager"`), a second derivative would take the first for a constant;
    AOTAutograd raises its own error.
    """

    def one(t: Any) -> Any:
        if not has_derivative(t):
            return t
        return tripwire(t, sources, name) if exporting else torch.ops.pullback.first_order.default(t, name)

    exporting = _is_exporting()
    return tuple([one(t) for t in result]) if isinstance(result, tuple) else one(result)


@_torch.constant_while_compiling
def _is_exporting() -> bool:
    """Run while Dynamo traces; PyTorch 2.11 returns True itself, for every kind of trace."""
    return torch.compiler.is_exporting()


def refuse_transforms(name: str) -> None:
    """Refuse a rule under a `torch.func` transform that Dynamo or an export records; call this while they record.

    They run the forward of a Function there once for all levels, in no-grad mode: the level that called it has the
    rule, and outer levels take the result for a constant. No tripwire within the forward sees that. Batching (`vmap`)
    is refused by the tripwire itself, except in an export without Dynamo, which does not reach it.

    Raises:
        DerivativeError: if such a transform is running.
    """
    if _differentiated_by_transforms() or (not torch.compiler.is_dynamo_compiling() and _torch.in_functorch()):
        raise DerivativeError(
            f"the derivative given for {name} would be lost: torch.compile and torch.export record no rule under a "
            "torch.func transform. To keep it, transform in eager mode, or call torch.autograd.grad in place of the "
            "transform."
        )


@_torch.constant_while_compiling
def _differentiated_by_transforms() -> bool:
    return _torch.differentiations() > 0


def _copy(x: Tensor, sources: list[Tensor], name: str) -> Tensor:
    return x.clone()


def _differentiated(t: Tensor) -> bool:
    if _torch.in_dual_level() and forward_ad.unpack_dual(t).tangent is not None:
        return True
    return torch.is_grad_enabled() and t.requires_grad


def _refuse_to_differentiate(x: Tensor, sources: list[Tensor], name: str) -> Tensor:
    if any(map(_differentiated, (x, *sources))):
        raise DerivativeError(
            f"the derivative given for {name} would be lost: what is compiled, exported or traced here records the "
            "op's forward, and differentiates that. To keep it, run this part in eager mode, or take the gradient "
            "inside of what is traced, by torch.autograd.grad; or give the op its derivative by a formula "
            "(`derivative_of=`), which compiling and exporting keep. For inference alone, call what was "
            "exported under torch.no_grad()."
        )
    with _torch.below_autograd():
        return tripwire(x, sources, name)


def _first_order(x: Tensor, name: str) -> Tensor:
    """Return a view of `x` whose gradient may not be recorded: it is all that a graph knows of a rule."""

    def refuse_to_record(g: Tensor) -> None:
        if torch.is_grad_enabled():
            raise DerivativeError(
                f"the derivative given for {name} would be lost: what torch.compile makes of a rule cannot be "
                "differentiated again. To keep it, call the op in eager mode where its gradient is differentiated."
            )

    view = x.view_as(x)
    if torch.is_grad_enabled() and view.requires_grad:
        view.register_hook(refuse_to_record)
    return view


def _batched(info: Any, in_dims: Any, x: Tensor, sources: list[Tensor], name: str) -> tuple[Tensor, int | None]:
    return tripwire(x, sources, name), in_dims[0]


_library.impl("first_order", _first_order, "CompositeImplicitAutograd")
_library.impl("tripwire", _copy, "CompositeExplicitAutograd")
_library.impl("tripwire", _refuse_to_differentiate, "Autograd")
torch.library.register_fake("pullback::tripwire", lambda x, sources, name: torch.empty_like(x), lib=_library)
torch.library.register_vmap("pullback::tripwire", _batched, lib=_library)

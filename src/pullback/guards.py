"""Guards of a derivative that PyTorch could lose without a word: whatever bypasses it meets an error.

- `tripwire`: some transforms trace through the forward of a Function and differentiate the trace. The output of every
  such forward passes through an op of this library whose own derivative is an error.
- `guard_double_backward`: differentiating a rule that calls NumPy or a foreign kernel raises, where autograd would take
  its result for a constant.
- `stop_gradient`: a `detach` that no pass of PyTorch drops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from pullback import _torch, dispatch
from pullback.dtypes import has_derivative
from pullback.errors import DerivativeError
from pullback.modes import EscapeMode

_library = torch.library.Library("pullback", "DEF")
_library.define("tripwire(Tensor x, Tensor[] sources, str name) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
_library.define("first_order(Tensor(a) x, str name) -> Tensor(a)", tags=(torch.Tag.pt2_compliant_tag,))
_library.define("cut(Tensor x) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))


def tripwire(x: Tensor, sources: Sequence[Any], name: str) -> Tensor:
    """Return a copy of `x` that cannot be differentiated except by the rule of the op `name`.

    `sources` are the arguments of the op. They matter if the op computes outside of PyTorch, or detaches: its result
    then does not require grad, and would pass for a constant.
    """
    tensors = [s for s in sources if isinstance(s, Tensor)]
    copy: Tensor = torch.ops.pullback.tripwire.default(x, tensors, name)
    return copy


def guard(x: Tensor, sources: Sequence[Any], name: str) -> Tensor:
    """Return `x`, behind the tripwire if a transform or tracer may see the ops that run.

    Otherwise the tripwire would only do harm: a DTensor has no sharding rule for it.
    """
    if not has_derivative(x):
        return x
    if dispatch.in_dynamo() or _torch.may_be_traced():
        return tripwire(x, sources, name)
    return x


def guard_in_graph(result: Any, sources: Sequence[Any], name: str) -> Any:
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


@_torch.assume_constant_result
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
    if _differentiated_by_transforms() or (not dispatch.in_dynamo() and _torch.in_functorch()):
        raise DerivativeError(
            f"the derivative given for {name} would be lost: torch.compile and torch.export record no rule under a "
            "torch.func transform. To keep it, transform in eager mode, or call torch.autograd.grad in place of the "
            "transform."
        )


@_torch.assume_constant_result
def _differentiated_by_transforms() -> bool:
    return _torch.differentiation_depth() > 0


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

    # The engine runs a backward, hooks included, in grad mode only under create_graph.
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


_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def stop_gradient(t: Tensor) -> Tensor:
    """Return the same values without their gradient, as `detach` does.

    The values make a round trip through integers: three of PyTorch's passes drop `detach`, none drops this. Where
    PyTorch cannot batch the round trip (2.11), a custom op replaces it under transforms: all passes keep it.
    """
    if not _torch.VMAP_HAS_VIEW_DTYPE and _is_transformed():
        copy: Tensor = torch.ops.pullback.cut.default(t)
        return copy
    # Integers have no derivative, so none passes the first bitcast. A lazily negated tensor holds the bits of −t.
    if not dispatch.in_dynamo() and t.is_neg():  # Dynamo has no such tensors
        t = t.resolve_neg()
    return t.view(_BITS[t.dtype.itemsize]).view(t.dtype)


@_torch.assume_constant_result
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


FOREIGN = "it computes outside of PyTorch (NumPy, a kernel)"
RESIDUAL = "it reads a residual that was detached, or was computed under `no_grad` or outside of PyTorch"
INTERMEDIATE = "it reads a tensor that the forward computed and saved"
DETACHED = "it is marked `once_differentiable`, or computes under `no_grad` or of what it detaches"
"""Why autograd does not see how the result of a rule depends on its inputs."""
_ONCE_DIFFERENTIABLE = "torch::autograd::Error"
"""The node that `once_differentiable` leaves: it is skipped where it stands on no way to the inputs."""


def guard_double_backward(
    name: str,
    pull: Callable[[Sequence[Tensor | None]], list[Tensor | None]],
    cotangents: Sequence[Tensor | None],
    inputs: Sequence[Tensor],
    reason: str = "",
) -> list[Tensor | None]:
    """Call a rule in a backward that is itself being recorded, and guard results that it computes outside of PyTorch.

    A rule is linear in the cotangent, so its result depends on it. Cotangents without `requires_grad` get it here: a
    result that still lacks it was computed out of autograd's sight. So was every value after a call of `numpy()` and
    the like, and every result if `reason` gives a cause, such as a computed tensor that the forward saved. Autograd
    does not know how such a result depends on the inputs, so differentiating it raises an error instead of returning
    zero.
    """
    if any(g is not None and _torch.is_batched_cotangent(g) for g in cotangents):
        return _refuse_batched(name, pull, cotangents, reason)
    # b(x, g) = J(x)ᵀ g has the derivatives J(x)ᵀ by g and ∂(Jᵀ g)/∂x by x. Autograd has either only if it followed
    # every op from g on: for it, a result without `grad_fn` is a constant, whose derivative is 0. `_FirstOrderOnly`
    # takes all inputs that require grad beside the result. So whoever differentiates the result, by whichever of them,
    # meets its backward, which raises.
    live = [g.clone().requires_grad_() if g is not None and _can_require_grad(g) else g for g in cotangents]
    gradients, causes = _pull_with_causes(pull, live, reason)
    sources = [x for x in (*inputs, *(g for g in live if g is not None)) if x.requires_grad]
    given = {id(g): cotangent for g, cotangent in zip(live, cotangents, strict=True)}
    return [
        _first_order_only(name, why, g, sources) if g is not None and why else given.get(id(g), g)
        for g, why in zip(gradients, causes, strict=True)
    ]


def _refuse_batched(
    name: str,
    pull: Callable[[Sequence[Tensor | None]], list[Tensor | None]],
    cotangents: Sequence[Tensor | None],
    reason: str,
) -> list[Tensor | None]:
    """Refuse at once where `is_grads_batched` conceals whether a result requires grad; one more call reveals it."""
    probes = [None if g is None else torch.zeros(g.shape, dtype=g.dtype, device=g.device) for g in cotangents]
    live = [g.requires_grad_() if g is not None and _can_require_grad(g) else g for g in probes]
    if why := next(filter(None, _pull_with_causes(pull, live, reason)[1]), ""):
        raise DerivativeError(_message(name, why))
    return pull(cotangents)


def _pull_with_causes(
    pull: Callable[[Sequence[Tensor | None]], list[Tensor | None]], live: Sequence[Tensor | None], reason: str
) -> tuple[list[Tensor | None], list[str]]:
    """Return the gradients, and why autograd has lost track of each; empty where it has not, as of a cotangent."""
    with EscapeMode() as mode:
        gradients = pull(live)
    given = {id(g) for g in live}
    every = FOREIGN if mode.escaped else reason
    return gradients, [
        "" if g is None or id(g) in given else every or (DETACHED if _is_detached(g) else "") for g in gradients
    ]


def _is_detached(g: Tensor) -> bool:
    """Whether autograd has lost track of a result, or `once_differentiable` marks it so."""
    return g.grad_fn is None or g.grad_fn.name() == _ONCE_DIFFERENTIABLE


def _first_order_only(name: str, why: str, g: Tensor, sources: Sequence[Tensor]) -> Tensor:
    guarded: Tensor = _FirstOrderOnly.apply(name, why, g, *sources)  # type: ignore[no-untyped-call]
    return guarded


def _can_require_grad(g: Tensor) -> bool:
    return not g.requires_grad and has_derivative(g)


def guard_foreign_results(
    name: str, compute: Callable[[], list[Tensor | None]], inputs: Sequence[Tensor | None], reason: str = ""
) -> list[Tensor | None]:
    """Return the results of a rule, with a derivative that is an error if values left PyTorch on the way, or before."""
    with EscapeMode() as mode:
        results = compute()
    why = FOREIGN if mode.escaped else reason
    return with_unknown_derivative(name, results, inputs, why) if why else results


def with_unknown_derivative(
    name: str, results: Sequence[Tensor | None], inputs: Sequence[Tensor | None], why: str
) -> list[Any]:
    """Return tensors as functions of the inputs whose derivative is unknown, which they are to a derivative.

    Autograd does not see how they depend on the inputs if the forward of a Function computed them, or a residual of
    them. Without this they would pass for constants.
    """
    sources = [x for x in inputs if x is not None and has_derivative(x)]
    return [
        _UnknownDerivative.apply(name, why, t, *sources) if t is not None and has_derivative(t) else t  # type: ignore[no-untyped-call]
        for t in results
    ]


class _UnknownDerivative(torch.autograd.Function):
    """The identity on the first tensor; its derivative is an error, in every mode and under every transform."""

    generate_vmap_rule = True

    @staticmethod
    def forward(name: str, why: str, t: Tensor, *sources: Tensor) -> Tensor:
        return t.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.name, ctx.why = inputs[:2]

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        raise DerivativeError(_message(ctx.name, ctx.why))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise DerivativeError(_message(ctx.name, ctx.why))


class _FirstOrderOnly(torch.autograd.Function):
    """The identity on the first argument; its derivative is an error."""

    @staticmethod
    def forward(ctx: Any, name: str, why: str, g: Tensor, *sources: Tensor) -> Tensor:
        ctx.name, ctx.why = name, why
        return g.clone()

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        raise DerivativeError(_message(ctx.name, ctx.why))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise DerivativeError(_message(ctx.name, ctx.why))


def _message(name: str, why: str) -> str:
    return (
        f"the derivative of {name} has no derivative itself: {why}. Write it in torch ops on the inputs and outputs, "
        "or as another `pullback.function` with a rule of its own."
    )

"""Second derivatives of rules that leave PyTorch: an error, in every way of asking for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback import _torch
from pullback.bind.watch import Leaving
from pullback.dtypes import has_derivative
from pullback.errors import DerivativeError

OUTSIDE = "it computes outside of PyTorch (NumPy, a kernel)"
RESIDUAL = "it reads a residual that was detached, or was computed under `no_grad` or outside of PyTorch"
INTERMEDIATE = "it reads a tensor that the forward computed and saved"
UNSEEN = "it is marked `once_differentiable`, or computes under `no_grad` or of what it detaches"
"""Why autograd does not see how the result of a rule depends on its inputs."""
_ONCE_DIFFERENTIABLE = "torch::autograd::Error"
"""The node that `once_differentiable` leaves: it is skipped where it stands on no way to the inputs."""


def guarded_against_twice(
    name: str,
    pull: Callable[[Sequence[Tensor | None]], list[Tensor | None]],
    cotangents: Sequence[Tensor | None],
    inputs: Sequence[Tensor],
    hides: str = "",
) -> list[Tensor | None]:
    """Call a rule in a backward that is itself being recorded, and guard results that it computes outside of PyTorch.

    A rule is linear in the cotangent, so its result depends on it. Cotangents without `requires_grad` get it here: a
    result that still lacks it was computed out of autograd's sight. So was every value after a call of `numpy()` and
    the like, and every result if `hides` gives a reason, such as a computed tensor that the forward saved. Autograd
    does not know how such a result depends on the inputs, so differentiating it raises an error instead of returning
    zero.
    """
    if any(g is not None and _torch.is_grads_batch(g) for g in cotangents):
        return _batched(name, pull, cotangents, hides)
    live = [g.clone().requires_grad_() if g is not None and _can_require_grad(g) else g for g in cotangents]
    gradients, causes = _pulled(pull, live, hides)
    sources = [x for x in (*inputs, *(g for g in live if g is not None)) if x.requires_grad]
    given = {id(g): cotangent for g, cotangent in zip(live, cotangents, strict=True)}
    return [
        _once(name, why, g, sources) if g is not None and why else given.get(id(g), g)
        for g, why in zip(gradients, causes, strict=True)
    ]


def _batched(
    name: str,
    pull: Callable[[Sequence[Tensor | None]], list[Tensor | None]],
    cotangents: Sequence[Tensor | None],
    hides: str,
) -> list[Tensor | None]:
    """Refuse at once where `is_grads_batched` conceals whether a result requires grad; one more call reveals it."""
    probes = [None if g is None else torch.zeros(g.shape, dtype=g.dtype, device=g.device) for g in cotangents]
    live = [g.requires_grad_() if g is not None and _can_require_grad(g) else g for g in probes]
    if why := next(filter(None, _pulled(pull, live, hides)[1]), ""):
        raise DerivativeError(_message(name, why))
    return pull(cotangents)


def _pulled(
    pull: Callable[[Sequence[Tensor | None]], list[Tensor | None]], live: Sequence[Tensor | None], hides: str
) -> tuple[list[Tensor | None], list[str]]:
    """Return the gradients, and why autograd has lost track of each; empty where it has not, as of a cotangent."""
    with Leaving() as watch:
        gradients = pull(live)
    given = {id(g) for g in live}
    every = OUTSIDE if watch.left else hides
    return gradients, [
        "" if g is None or id(g) in given else every or (UNSEEN if _unseen(g) else "") for g in gradients
    ]


def _unseen(g: Tensor) -> bool:
    """Whether autograd has lost track of a result, or `once_differentiable` marks it so."""
    return g.grad_fn is None or g.grad_fn.name() == _ONCE_DIFFERENTIABLE


def _once(name: str, why: str, g: Tensor, sources: Sequence[Tensor]) -> Tensor:
    guarded: Tensor = _Once.apply(name, why, g, *sources)  # type: ignore[no-untyped-call]
    return guarded


def _can_require_grad(g: Tensor) -> bool:
    return not g.requires_grad and has_derivative(g)


def hidden_if_it_leaves(
    name: str, compute: Callable[[], list[Tensor | None]], inputs: Sequence[Tensor | None], hides: str = ""
) -> list[Tensor | None]:
    """Return the results of a rule, with a derivative that is an error if values left PyTorch on the way, or before."""
    with Leaving() as watch:
        results = compute()
    why = OUTSIDE if watch.left else hides
    return hidden(name, results, inputs, why) if why else results


def hidden(name: str, results: Sequence[Tensor | None], inputs: Sequence[Tensor | None], why: str) -> list[Any]:
    """Return tensors as functions of the inputs whose derivative is unknown, which they are to a derivative.

    Autograd does not see how they depend on the inputs if the forward of a Function computed them, or a residual of
    them. Without this they would pass for constants.
    """
    sources = [x for x in inputs if x is not None and has_derivative(x)]
    return [
        _Hidden.apply(name, why, t, *sources) if t is not None and has_derivative(t) else t  # type: ignore[no-untyped-call]
        for t in results
    ]


class _Hidden(torch.autograd.Function):
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


class _Once(torch.autograd.Function):
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

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

_ONCE_DIFFERENTIABLE = "torch::autograd::Error"
"""The node that `once_differentiable` leaves: it is skipped where it stands on no way to the inputs."""


def guarded_against_twice(
    name: str,
    pull: Callable[[Sequence[Tensor | None]], list[Tensor | None]],
    cotangents: Sequence[Tensor | None],
    inputs: Sequence[Tensor],
    hides: bool = False,
) -> list[Tensor | None]:
    """Call a rule in a backward that is itself being recorded, and guard what it computes outside of PyTorch.

    A rule is linear in the cotangent, so its result depends on it. Cotangents that do not require grad are made
    to: a result that then does not has been computed where autograd does not see it, as has whatever follows a
    call of `numpy()` and its like, and everything where the forward kept a tensor that it computed (`hides`):
    autograd does not know that it depends on the inputs. Differentiating such a result is an error, not zero.
    """
    if any(g is not None and _torch.is_grads_batch(g) for g in cotangents):
        return _batched(name, pull, cotangents, hides)
    live = [g.clone().requires_grad_() if g is not None and _can_require_grad(g) else g for g in cotangents]
    gradients, opaque = _pulled(pull, live, hides)
    sources = [x for x in (*inputs, *(g for g in live if g is not None)) if x.requires_grad]
    given = {id(g): cotangent for g, cotangent in zip(live, cotangents, strict=True)}
    return [
        _once(name, g, sources) if g is not None and is_opaque else given.get(id(g), g)
        for g, is_opaque in zip(gradients, opaque, strict=True)
    ]


def _batched(
    name: str,
    pull: Callable[[Sequence[Tensor | None]], list[Tensor | None]],
    cotangents: Sequence[Tensor | None],
    hides: bool,
) -> list[Tensor | None]:
    """Refuse at once where `is_grads_batched` hides whether a result requires grad: one more call shows it."""
    probes = [None if g is None else torch.zeros(g.shape, dtype=g.dtype, device=g.device) for g in cotangents]
    live = [g.requires_grad_() if g is not None and _can_require_grad(g) else g for g in probes]
    if any(_pulled(pull, live, hides)[1]):
        raise DerivativeError(_message(name))
    return pull(cotangents)


def _pulled(
    pull: Callable[[Sequence[Tensor | None]], list[Tensor | None]], live: Sequence[Tensor | None], hides: bool
) -> tuple[list[Tensor | None], list[bool]]:
    """Return the gradients, and which of them autograd has lost track of: none that is a cotangent itself."""
    with Leaving() as watch:
        gradients = pull(live)
    given = {id(g) for g in live}
    return gradients, [g is not None and id(g) not in given and (watch.left or hides or _unseen(g)) for g in gradients]


def _unseen(g: Tensor) -> bool:
    """Whether autograd has lost track, or `once_differentiable` says that it has."""
    return g.grad_fn is None or g.grad_fn.name() == _ONCE_DIFFERENTIABLE


def _once(name: str, g: Tensor, sources: Sequence[Tensor]) -> Tensor:
    guarded: Tensor = _Once.apply(name, g, *sources)  # type: ignore[no-untyped-call]
    return guarded


def _can_require_grad(g: Tensor) -> bool:
    return not g.requires_grad and has_derivative(g)


def hidden_if_it_leaves(
    name: str, compute: Callable[[], list[Tensor | None]], inputs: Sequence[Tensor | None], hides: bool = False
) -> list[Tensor | None]:
    """Return the results of a rule, with a derivative that is an error if values left PyTorch on the way, or before."""
    with Leaving() as watch:
        results = compute()
    return hidden(name, results, inputs) if watch.left or hides else results


def hidden(name: str, results: Sequence[Tensor | None], inputs: Sequence[Tensor | None]) -> list[Any]:
    """Return tensors as what they are to a derivative: functions of the inputs whose derivative is not known.

    Where the forward of a Function computed them, or a residual of them, autograd does not see it. They would pass
    for constants.
    """
    sources = [x for x in inputs if x is not None and has_derivative(x)]
    return [
        _Hidden.apply(name, t, *sources) if t is not None and has_derivative(t) else t  # type: ignore[no-untyped-call]
        for t in results
    ]


class _Hidden(torch.autograd.Function):
    """The identity on the first tensor; its derivative is an error, in every mode and under every transform."""

    generate_vmap_rule = True

    @staticmethod
    def forward(name: str, t: Tensor, *sources: Tensor) -> Tensor:
        return t.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.name = inputs[0]

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        raise DerivativeError(_message(ctx.name))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise DerivativeError(_message(ctx.name))


class _Once(torch.autograd.Function):
    """The identity on the first argument; its derivative is an error."""

    @staticmethod
    def forward(ctx: Any, name: str, g: Tensor, *sources: Tensor) -> Tensor:
        ctx.name = name
        return g.clone()

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        raise DerivativeError(_message(ctx.name))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise DerivativeError(_message(ctx.name))


def _message(name: str) -> str:
    return (
        f"the derivative of {name} has no derivative itself: it computes outside of PyTorch (NumPy, a kernel), or from "
        "a tensor that the forward computed and saved, or is marked `once_differentiable`. Write it in torch ops on "
        "the inputs and outputs, without the mark, or as another `pullback.function` with a rule of its own."
    )

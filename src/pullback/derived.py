"""Ops whose derivative is that of their formula: kernels in plain eager mode, PyTorch's ops anywhere else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback import _torch, dispatch, kernel_function
from pullback.call import Call, key_of
from pullback.dispatch import World
from pullback.nesting import replacing
from pullback.plan import Functions, InlinePlan, KernelPlan, Save
from pullback.plans import Plans
from pullback.settings import Backend
from pullback.stable.lookup import StableForms


class Derived:
    """The calls of an op that is its formula.

    Args:
        name: name of the op.
        formula: the formula, in torch ops.
        stable: whether stable forms may replace it.
        backend: backend of its kernels; `None` for the one set for all ops.
        chunk: rows per chunk of a loss (`pullback.function`).
        save: which residuals its plans keep (`pullback.function`).
        sources: the user's functions, whose captures the plans guard; the formula, if none is given.

    Attributes:
        name, formula: as given.
        plans: plans of its calls.
        stable: its stable forms; `None` if it is to be as written.
    """

    def __init__(
        self,
        name: str,
        formula: Callable[..., Any],
        stable: bool,
        backend: Backend | None,
        chunk: int | str | None = None,
        save: Save | None = None,
        sources: tuple[Callable[..., Any], ...] = (),
    ) -> None:
        self.name, self.formula = name, formula
        self.stable = StableForms(formula) if stable else None
        self.plans = Plans(name, self.functions, sources or (formula,), backend, chunk=chunk)
        self.save = save

    @property
    def table(self) -> Any:
        """The calls that run in C++; `None` as long as there is no such table."""
        return self.plans.table

    def eager(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call by its plan."""
        grad = torch.is_grad_enabled()
        key = None if kwargs else key_of(args, grad)
        plan = self.plans.known(key)
        if plan is not None:
            tensors = args if plan.n_inputs == len(args) else _tensors(args)
        else:
            call = Call(args, kwargs, grad) if kwargs else Call(args, kwargs, grad, key)
            plan, tensors = self.plans.of(call, grad), call.tensors
        if isinstance(plan, KernelPlan):
            return kernel_function.run(plan, tensors)
        if not isinstance(plan, InlinePlan):
            return self.owned(plan.run(tensors), args, kwargs)
        if grad and _requires_grad(_torch.tree_leaves((args, kwargs))[0] if kwargs else args):
            return self.transformable(args, kwargs)
        return self.owned(self.value(args, kwargs), args, kwargs)

    subclassed = eager
    """A plan of a call on subclasses is inline."""

    def transformable(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute in the ops of the formula or of its stable forms, which every transform differentiates."""
        # torch.jit's passes drop ops that the forms need
        forms = None if self.stable is None or dispatch.world() is World.SCRIPT else self.stable.composite(args, kwargs)
        with replacing():
            return self.formula(*args, **kwargs) if forms is None else forms(*args)

    def compiled(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute the same where Dynamo traces it."""
        forms = None if self.stable is None else self.stable.compiled(args, kwargs)
        if forms is None:
            with replacing():
                return self.formula(*args, **kwargs)
        self.formula(*args)  # for Dynamo's guards on captures; the result is dropped
        return forms(*args)

    def recorded(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute the formula on proxies."""
        return self.formula(*args, **kwargs)

    def value(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute the formula where nothing is differentiated."""
        forms = None if self.stable is None else self.stable.forms(args, kwargs)
        return self.formula(*args, **kwargs) if forms is None else forms.value(*args)

    def owned(self, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return a value that is not differentiated, as the op returns it: a formula may return views of its inputs."""
        return value

    def functions(self, call: Call) -> Functions:
        """Return the functions that a plan of a call is made of."""
        forms = None if self.stable is None else self.stable.forms(*call.arguments())
        if forms is not None:
            return Functions(forms.value, forms.first, forms.recorded, gradients=forms.gradients, save=self.save)
        exact = self.stable is None
        return Functions(self.formula, self.formula, self.formula, (exact, exact), save=self.save)


def _requires_grad(leaves: Sequence[Any]) -> bool:
    """Whether a tensor among some arguments requires grad; containers may hold one."""
    return any(a.requires_grad if isinstance(a, Tensor) else isinstance(a, list | tuple | dict) for a in leaves)


def _tensors(args: Sequence[Any]) -> Sequence[Tensor]:
    return [a for a in args if isinstance(a, Tensor)]

"""Controls: custom functions that are right, which an auditor must not accuse.

Each is a native operation wrapped in a `torch.autograd.Function`, as published packages write them: in the
old style (`forward(ctx, ...)`) and in the new (`setup_context`), over the shapes, dtypes and kinds of
argument that real code has. A finding of severity `error` on a control is a false accusation.

Right means more than a right first derivative. Every control here

* saves inputs and outputs only (or what has no derivative: integers, masks, random draws) and writes its
  backward in differentiable operations, so that second derivatives are right too;
* reads `ctx.saved_tensors` once at most, keeps no tensor on `ctx`, never writes into the cotangent and never
  relies on its strides, so that checkpointing, hooks, shared and expanded cotangents do no harm;
* returns one value for each argument of its forward, in that argument's shape and dtype;
* adds up the gradients of what is broadcast or indexed twice.

Controls with `exact=False` have a backward that is not the derivative, and say so in their docstring:
straight-through estimators, surrogates of a step, modifiers of the gradient. They are right as well: they do
what they declare.
"""

from . import (
    activations,
    arguments,
    attention,
    broadcasting,
    complex_valued,
    convolutions,
    elementwise,
    indexing,
    inplace,
    kinks,
    layout,
    linalg,
    linear,
    losses,
    modifiers,
    normalisation,
    outputs,
    precision,
    reductions,
    solvers,
    spectral,
    stochastic,
    straight_through,
    surrogates,
    transforms,
)
from ._control import Control

FAMILIES = (
    elementwise,
    activations,
    kinks,
    broadcasting,
    linear,
    attention,
    convolutions,
    reductions,
    indexing,
    outputs,
    inplace,
    arguments,
    normalisation,
    losses,
    complex_valued,
    spectral,
    precision,
    linalg,
    solvers,
    layout,
    stochastic,
    straight_through,
    surrogates,
    modifiers,
    transforms,
)

CONTROLS: list[Control] = [control for family in FAMILIES for control in family.CONTROLS]

__all__ = ["CONTROLS", "FAMILIES", "Control"]

"""All mutants, by family."""

from ..model import Mutant
from . import (
    context,
    cost,
    cotangents,
    derivatives,
    forward_mode,
    hidden_inputs,
    kept,
    layouts,
    nesting,
    numerics,
    purity,
    second_order,
    slots,
    source,
    transforms,
)

FAMILIES: dict[str, tuple[Mutant, ...]] = {
    "derivatives": derivatives.MUTANTS,
    "hidden inputs": hidden_inputs.MUTANTS,
    "cotangents": cotangents.MUTANTS,
    "slots": slots.MUTANTS,
    "second order": second_order.MUTANTS,
    "forward mode": forward_mode.MUTANTS,
    "nesting": nesting.MUTANTS,
    "transforms": transforms.MUTANTS,
    "numerics": numerics.MUTANTS,
    "context": context.MUTANTS,
    "kept": kept.MUTANTS,
    "layouts": layouts.MUTANTS,
    "purity": purity.MUTANTS,
    "cost": cost.MUTANTS,
    "source": source.MUTANTS,
}
MUTANTS: tuple[Mutant, ...] = tuple(mutant for family in FAMILIES.values() for mutant in family)

"""Right for the shapes and strides that a test has; not for others."""

from ..model import Mutant

MUTANTS: tuple[Mutant, ...] = ()

"""On which variants of the working example the contract is tried, in which order."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from pullback.check.case import Case
from pullback.check.cases import dtypes, layouts, sizes, values
from pullback.check.cases.signature import parameters
from pullback.check.facts import Facts


def variants_of(audit: Facts) -> Iterator[tuple[Case, Case | None]]:
    """Yield every variant of the working example, with the case that its numeric derivative is taken on.

    That is `None` where the derivative is to be taken on the variant itself.
    """
    base = audit.base
    for given in audit.given:
        yield given, None
    for case in without_optional(audit):
        yield case, None
    for make in (values.other_values, values.shared, sizes.other_sizes):
        for case in make(base):
            yield case, None
    for case in () if audit.draws else layouts.other_layouts(base):
        yield case, layouts.contiguous(case)
    for case in dtypes.other_dtypes(base):
        yield case, None
    for case in values.extremes(base):
        yield case, None


def without_optional(audit: Facts) -> Iterator[Case]:
    """Yield the example with None for each tensor argument that may be None, by default or by the source."""
    source = audit.subject.source
    text = ast.unparse(source.node) if source else ""
    positions = audit.base.top_level(len(audit.base.arguments()[0]))
    for position, parameter in zip(positions, parameters(audit.subject), strict=False):
        optional = parameter.default is None or re.search(rf"\b{parameter.name} is (not )?None\b", text)
        if optional and position in audit.base.wrt:
            wrt = tuple(p for p in audit.base.wrt if p != position)
            yield audit.base.with_values({position: None}, f"{parameter.name}=None", wrt=wrt)

"""A file with some of its classes in the new style; everything else stays byte for byte."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping

import libcst as cst
from libcst import matchers as m

from pullback.check.find.calls import instantiations
from pullback.fix.classes import parsed, with_classes
from pullback.fix.model import Restyle
from pullback.fix.restyle_class import restyled_class


def restyled(source: bytes, changes: Mapping[str, Restyle]) -> bytes:
    """Return the source of a file with classes in the new style, and `apply` in place of calls of their instances.

    Args:
        source: of the file, in the encoding that it declares.
        changes: of the classes, by qualified name.

    Raises:
        CannotFixError: if the way a class is written does not allow it.
    """
    if not changes:
        return source
    module = with_classes(parsed(source), changes, restyled_class)
    return module.visit(_Applied(instantiations(ast.parse(source), changes))).bytes


class _Applied(cst.CSTTransformer):
    """Turns `Name()(x)` into `Name.apply(x)`."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__()
        self._names = names

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:  # noqa: N802 - libcst's name
        """Call `apply` in place of an instance made without arguments and called without keywords."""
        positional = m.ZeroOrMore(m.Arg(keyword=None))
        if not m.matches(updated_node, m.Call(m.Call(m.Name(), args=[]), args=[positional])):
            return updated_node
        made = cst.ensure_type(cst.ensure_type(updated_node.func, cst.Call).func, cst.Name)
        if made.value not in self._names:
            return updated_node
        return updated_node.with_changes(func=cst.Attribute(made, cst.Name("apply")))

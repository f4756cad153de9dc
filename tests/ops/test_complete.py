"""Every op has every column, or says why not; and no other table of the library lists ops that a record is for."""

import pytest
import torch

from pullback.ops.record import COLUMNS, TermOp
from pullback.ops.registry import ALL, BY_ATEN, FAMILIES, OPS
from pullback.stable.term import parse, topological, var

aten = torch.ops.aten


@pytest.mark.parametrize("name", ALL)
def test_every_empty_column_has_a_reason(name):
    op = ALL[name]
    unexplained = [column for column in COLUMNS if not op.has(column) and not op.why_empty(column)]
    assert not unexplained
    assert all(column in COLUMNS and not op.has(column) for column in op.empty), "a reason for what is not empty"


def test_names_are_unique():
    every = [op for family in FAMILIES for op in family.OPS]
    assert len(every) == len(ALL)
    assert sum(len(op.aten) for op in every) == len(BY_ATEN)


def test_names_of_aten_are_aten_s():
    unknown = {name for name in BY_ATEN if not hasattr(aten, name)}
    assert not unknown
    lowered = {(n, o) for op in ALL.values() if op.lowering for n in op.aten for o in op.lowering.overloads}
    assert all(
        any((n, o) in lowered for o in op.lowering.overloads) for op in ALL.values() if op.lowering for n in op.aten
    )


@pytest.mark.parametrize("name", OPS)
def test_partials_are_terms_of_the_registry(name):
    op = OPS[name]
    assert len(op.partials) in (0, op.arity)
    operands = {var(letter) for letter in "abc"[: op.arity]}
    for text in (*op.partials, *op.singular):
        for term in topological([parse(text)]):
            assert term in operands or term.op in ("const", "named") or len(term.args) == OPS[term.op].arity


def test_a_term_op_is_one_kind_of_record():
    assert {name for name, op in ALL.items() if isinstance(op, TermOp)} == set(OPS)

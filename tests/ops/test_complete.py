"""Completeness of the registry: each record fills every column or gives a reason, and columns are consistent."""

import pytest
import torch

from pullback.graph import kinks
from pullback.ops.record import COLUMNS, Continuity, Rounding, TermOp
from pullback.ops.registry import ALL, BY_ATEN, FAMILIES, OPS
from pullback.stable.evaluate import evaluate
from pullback.stable.term import parse, topological, var

aten = torch.ops.aten


@pytest.mark.parametrize("name", ALL)
def test_every_empty_column_has_a_reason(name):
    op = ALL[name]
    unexplained = [column for column in COLUMNS if not op.has(column) and not op.why_empty(column)]
    assert not unexplained
    assert all(column in COLUMNS and not op.has(column) for column in op.empty), "a reason for what is not empty"


def test_op_of_the_registry_is_not_among_the_others():
    others = {*kinks._OTHERS.split(), *kinks._OTHER_KINKS, *kinks._OTHER_DOMAINS}
    known = {name for name, op in BY_ATEN.items() if op.is_readable}
    twice = sorted(others & known)
    assert not twice, f"their records say it: remove {', '.join(twice)} from src/pullback/graph/kinks.py"


def test_names_are_unique():
    every = [op for family in FAMILIES for op in family.OPS]
    assert len(every) == len(ALL)
    assert sum(len(op.aten) for op in every) == len(BY_ATEN)


def test_aten_names_and_lowered_overloads_exist():
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


_SMOOTH_FOR_A_CONDITION = {"where", "masked_fill"}
_HIGHER = {"i1e"}
"""Ops with a discontinuous second derivative."""


def test_non_smooth_ops_have_kinks():
    readable = {name for name, op in ALL.items() if op.is_readable}
    kinks = {name for name in readable if ALL[name].kink}
    not_smooth = {name for name in readable if ALL[name].continuity is not Continuity.SMOOTH}
    assert kinks - not_smooth == _SMOOTH_FOR_A_CONDITION | _HIGHER
    assert not_smooth - kinks == {"nan_to_num"}  # discontinuous only at NaN


@pytest.mark.parametrize("name", [n for n, op in ALL.items() if op.aten and op.continuity is Continuity.STEPS])
def test_steps_are_constant_between_jumps(name):
    x = torch.linspace(-4, 4, 29, dtype=torch.float64)
    other = [torch.full_like(x, 0.7)] if len(getattr(aten, name).default._schema.arguments) > 1 else []
    run = getattr(aten, name)
    assert torch.equal(run(x + 1e-9, *other), run(x + 2e-9, *other))
    assert len(run(x, *other).unique()) > 1


@pytest.mark.parametrize("name", [n for n, op in OPS.items() if op.rounding is not Rounding.FREE and op.partials])
def test_reproducible_ops_round_to_nearest(name):
    points = torch.rand(OPS[name].arity, 500, generator=torch.Generator().manual_seed(0)) * 8 - 4
    exact = OPS[name].value(*points.double())  # float64 holds a product of float32 exactly, and a sum nearly so
    assert torch.equal(OPS[name].value(*points), exact.float())


@pytest.mark.parametrize("name", [n for n, op in OPS.items() if op.pieces])
def test_pieces_are_those_of_the_op(name):
    op = OPS[name]
    points = torch.randint(-2, 3, (op.arity, 50), generator=torch.Generator().manual_seed(0)).double()
    decider, positive, negative = (evaluate(parse(text), dict(zip("ab", points, strict=False))) for text in op.pieces)
    tie = (decider == 0) & (op.continuity is not Continuity.STEPS)
    right = op.value(*points)
    assert torch.equal(torch.where((decider > 0) | tie, positive, right), right)
    assert torch.equal(torch.where((decider < 0) | tie, negative, right), right)


def test_term_ops_are_the_records_in_ops():
    assert {name for name, op in ALL.items() if isinstance(op, TermOp)} == set(OPS)

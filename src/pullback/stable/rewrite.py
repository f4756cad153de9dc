"""Equations between terms, and terms rewritten with them from left to right: no search, each place once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from pullback.ops.registry import OPS
from pullback.stable.term import CONST, LEAVES, NAMED, VAR, Term, parse, substitute, topological, var

COMMUTATIVE = frozenset(name for name, op in OPS.items() if op.is_commutative)


@dataclass(frozen=True, slots=True)
class Rule:
    """An equation used from left to right; variables match anything."""

    text: str
    left: Term
    right: Term


def read(table: str) -> Iterator[Rule]:
    """Yield the rules of a table, one on each line, both directions of those that have two."""
    for line in filter(None, map(str.strip, table.splitlines())):
        both = "<=>" in line
        left, right = (parse(side.strip()) for side in line.split("<=>" if both else "=>"))
        yield Rule(line, left, right)
        if both:
            yield Rule(f"{line} (reversed)", right, left)


def rewritten(root: Term, rules: tuple[Rule, ...], used: dict[str, None], again: bool) -> Term:
    """Return a term with its subterms rewritten, operands first, by the most specific rule that fits.

    Args:
        root: the term.
        rules: if they are applied again, their left sides must be larger than their results.
        used: collects the texts of the applied rules.
        again: whether the result of a rule is rewritten too.
    """
    by_op = _by_op(rules)
    made: dict[Term, Term] = {}
    waiting = [root]
    while waiting:
        term = waiting[-1]
        if term in made:
            waiting.pop()
        elif ahead := [a for a in term.args if a not in made]:
            waiting += ahead
        else:
            whole = Term(term.op, tuple(made[a] for a in term.args), term.value) if term.args else term
            better = _once(whole, by_op.get(whole.op, ()), used)
            if better is None or not again:
                made[term] = whole if better is None else better
            elif better in made:
                made[term] = made[better]
            else:
                waiting.append(better)
                # it is visited first; the rule then rewrites this term to the same result again
    return made[root]


@cache
def _by_op(rules: tuple[Rule, ...]) -> dict[str, list[Rule]]:
    """Return rules by the op at the root of their left sides, the most specific ones first."""
    found: dict[str, list[Rule]] = {}
    for rule in sorted(rules, key=_generality):
        found.setdefault(rule.left.op, []).append(rule)
    return found


def _generality(rule: Rule) -> tuple[int, int]:
    free = sum(term.op == VAR for term in topological([rule.left]))
    return free - len(topological([rule.left])), free


def _once(term: Term, rules: Sequence[Rule], used: dict[str, None]) -> Term | None:
    for rule in rules:
        for bound in _matches(rule.left, term, {}):
            used[rule.text] = None
            return substitute(rule.right, {var(name): part for name, part in bound.items()})
    return None


def _matches(pattern: Term, term: Term, bound: Mapping[str, Term]) -> Iterator[Mapping[str, Term]]:
    if pattern.op == VAR:
        known = bound.get(pattern.value)
        if known is None:
            yield {**bound, pattern.value: term}
        elif known is term:
            yield bound
    elif pattern.op in (CONST, NAMED):
        if pattern is term:
            yield bound
    elif pattern.op == term.op and pattern.op not in LEAVES and pattern.value == term.value:
        yield from _all(pattern.args, term.args, bound)
        if pattern.op in COMMUTATIVE and term.args[0] is not term.args[1]:
            yield from _all(pattern.args, term.args[::-1], bound)


def _all(patterns: Sequence[Term], terms: Sequence[Term], bound: Mapping[str, Term]) -> Iterator[Mapping[str, Term]]:
    if not patterns:
        yield bound
        return
    for one in _matches(patterns[0], terms[0], bound):
        yield from _all(patterns[1:], terms[1:], one)

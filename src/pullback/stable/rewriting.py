"""Rewriting of terms by equations, from left to right, without a search.

`rewrite` applies the most specific rule at each subterm, operands first. `tidy` shortens a term without changing a bit
of its result. `without_cancellation` replaces differences that no precision resolves: 1 − sigmoid(x) is e⁻ˣ for large
x, so at x = 6000 a ball of 8192 bits contains 0, and its logarithm is unbounded. No precision proves that sin(πx) is 0
at an integer, or eˣ − e⁻⁴ at −4. These identities hold for all real numbers, so a term keeps its values and its holes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from pullback.ops.constants import EXPONENTIALS, LOGARITHMS, ROOTS
from pullback.ops.registry import OPS
from pullback.stable.term import CONST, LEAVES, NAMED, VAR, Term, const, parse, substitute, topological, var

COMMUTATIVE = frozenset(name for name, op in OPS.items() if op.is_commutative)


@dataclass(frozen=True, slots=True)
class RewriteRule:
    """An equation used from left to right; variables match anything."""

    text: str
    left: Term
    right: Term


def parse_rules(table: str) -> Iterator[RewriteRule]:
    """Yield the rules of a table, one on each line, both directions of those that have two."""
    for line in filter(None, map(str.strip, table.splitlines())):
        both = "<=>" in line
        left, right = (parse(side.strip()) for side in line.split("<=>" if both else "=>"))
        yield RewriteRule(line, left, right)
        if both:
            yield RewriteRule(f"{line} (reversed)", right, left)


def rewrite(root: Term, rules: tuple[RewriteRule, ...], used: dict[str, None], to_fixpoint: bool) -> Term:
    """Term with its subterms rewritten, operands first, by the most specific rule that fits.

    Args:
        root: the term.
        rules: if they are applied again, their left sides must be larger than their results.
        used: collects the texts of the applied rules.
        to_fixpoint: whether the result of a rule is rewritten too.
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
            better = _apply_first(whole, by_op.get(whole.op, ()), used)
            if better is None or not to_fixpoint:
                made[term] = whole if better is None else better
            elif better in made:
                made[term] = made[better]
            else:
                waiting.append(better)
                # it is visited first; the rule then rewrites this term to the same result again
    return made[root]


@cache
def _by_op(rules: tuple[RewriteRule, ...]) -> dict[str, list[RewriteRule]]:
    """Rules by the op at the root of their left sides, the most specific ones first."""
    found: dict[str, list[RewriteRule]] = {}
    for rule in sorted(rules, key=_generality):
        found.setdefault(rule.left.op, []).append(rule)
    return found


def _generality(rule: RewriteRule) -> tuple[int, int]:
    free = sum(term.op == VAR for term in topological([rule.left]))
    return free - len(topological([rule.left])), free


def _apply_first(term: Term, rules: Sequence[RewriteRule], used: dict[str, None]) -> Term | None:
    for rule in rules:
        for bound in _match(rule.left, term, {}):
            used[rule.text] = None
            return substitute(rule.right, {var(name): part for name, part in bound.items()})
    return None


def _match(pattern: Term, term: Term, bound: Mapping[str, Term]) -> Iterator[Mapping[str, Term]]:
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
        yield from _match_operands(pattern.args, term.args, bound)
        if pattern.op in COMMUTATIVE and term.args[0] is not term.args[1]:
            yield from _match_operands(pattern.args, term.args[::-1], bound)


def _match_operands(
    patterns: Sequence[Term], terms: Sequence[Term], bound: Mapping[str, Term]
) -> Iterator[Mapping[str, Term]]:
    if not patterns:
        yield bound
        return
    for one in _match(patterns[0], terms[0], bound):
        yield from _match_operands(patterns[1:], terms[1:], one)


_ONE = const(1)


def tidy(root: Term) -> Term:
    """Bit-identical term without 1 · a, a − (−1), a + (−b) and the like.

    IEEE 754 defines a − b as a + (−b), and sums are commutative to the bit; a · 1, a / 1 and −(−a) are exact.
    """
    made: dict[Term, Term] = {}
    for term in topological([root]):
        made[term] = _tidy_node(term.op, tuple(made[a] for a in term.args), term)
    return made[root]


def _tidy_node(op: str, args: tuple[Term, ...], original: Term) -> Term:
    match op, args:
        case "mul", (a, b) if _ONE in (a, b):
            return b if a is _ONE else a
        case "div", (a, b) if b is _ONE:
            return a
        case "neg", (a,) if a.op == "neg":
            return a.args[0]
        case "neg", (a,) if a.op == CONST:
            return const(-a.value)
        case "sub", (a, b) if b.op == CONST and b.value < 0:
            return Term("add", (a, const(-b.value)))
        case "sub", (a, b) if b.op == "neg":
            return _tidy_node("add", (a, b.args[0]), original)
        case "add", (a, b) if b.op == "neg":
            return Term("sub", (a, b.args[0]))
        case "add", (a, b) if a.op == "neg":
            return Term("sub", (b, a.args[0]))
    return Term(op, args, original.value) if args else original


# 1 ± tanh a = 2 / (1 + e^(∓2a)) = 2σ(±2a), and 1 − tanh² a is the product of the two. eᵃ − eⁿ = eⁿ (e^(a − n) − 1), log
# a − log n = log(1 + (a − n)/n), √a − √n = (a − n)/(√a + √n): the difference a − n is taken first, of exact numbers, so
# at a = n the right sides are 0 in balls of any precision.
EXACT_IDENTITIES = {
    parse(difference): parse(instead)
    for difference, instead in {
        "1/(1 + exp(a))": "sigmoid(-a)",
        "1/(exp(a) + 1)": "sigmoid(-a)",
        "exp(a)/(1 + exp(a))": "sigmoid(a)",
        "exp(a)/(exp(a) + 1)": "sigmoid(a)",
        "1 - sigmoid(a)": "sigmoid(-a)",
        "sigmoid(a) - 1": "-sigmoid(-a)",
        "log1p(-sigmoid(a))": "-softplus(a)",
        "1 - tanh(a)": "2*sigmoid(-2*a)",
        "1 + tanh(a)": "2*sigmoid(2*a)",
        "tanh(a) + 1": "2*sigmoid(2*a)",
        "1 - tanh(a)*tanh(a)": "4*(sigmoid(2*a)*sigmoid(-2*a))",
        "1 - erf(a)": "erfc(a)",
        "1 + erf(a)": "erfc(-a)",
        "erf(a) + 1": "erfc(-a)",
        "sin(PI*a)": "sinpi(a)",
        "sin(a*PI)": "sinpi(a)",
        "cos(PI*a)": "cospi(a)",
        "cos(a*PI)": "cospi(a)",
        **{f"exp(a) - {name}": f"{name}*expm1(a - ({n}))" for name, n in EXPONENTIALS.items()},
        **{f"log(a) - {name}": f"log1p((a - {n})/{n})" for name, n in LOGARITHMS.items()},
        **{f"sqrt(a) - {name}": f"(a - {n})/(sqrt(a) + {name})" for name, n in ROOTS.items()},
    }.items()
}
"""Of terms in a, the same function without cancellation."""


def without_cancellation(roots: Iterable[Term]) -> list[Term]:
    """Terms of the same values, with the left sides of `EXACT_IDENTITIES` replaced."""
    roots = list(roots)
    made: dict[Term, Term] = {}
    for term in topological(roots):
        made[term] = _apply_identity(Term(term.op, tuple(made[a] for a in term.args), term.value))
    return [made[root] for root in roots]


def _apply_identity(term: Term) -> Term:
    for difference, instead in EXACT_IDENTITIES.items():
        if difference.op == term.op:
            bound: dict[Term, Term] = {}
            if _match_exactly(difference, term, bound):
                return substitute(instead, bound)
    return term


def _match_exactly(pattern: Term, term: Term, bound: dict[Term, Term]) -> bool:
    if pattern.op == VAR:
        return bound.setdefault(pattern, term) is term
    return pattern is term or (
        pattern.op == term.op
        and len(pattern.args) == len(term.args) > 0
        and all(_match_exactly(p, t, bound) for p, t in zip(pattern.args, term.args, strict=True))
    )

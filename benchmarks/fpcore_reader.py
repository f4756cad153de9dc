"""Reader of FPCore files (https://fpbench.org): cores of one variable as terms, with the bounds of their precondition.

Decimals are exact rationals, as in the standard, and constants such as PI are exact. `UnreadableError` refuses what has
no term: loops, tensors, cores that call cores, most of C's remainders and roundings.
"""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import inf
from pathlib import Path

import numpy as np

from pullback.stable.oracle.values import exact
from pullback.stable.term import Term, const, named, parse, power, substitute, topological, var, variables

TOKEN = re.compile(r';[^\n]*|"(?:\\.|[^"])*"|[()\[\]]|[^\s()\[\];"]+')
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?|[+-]?\d+/\d+", re.IGNORECASE)

NAMES = {
    **{n: n for n in ("add", "sub", "mul", "div", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt")},
    **{n: n for n in ("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh")},
    **{n: n for n in ("atanh", "erf", "erfc", "lgamma", "floor", "ceil", "hypot")},
    "fabs": "abs",
    "fmax": "maximum",
    "fmin": "minimum",
    "not": "logical_not",
}
FOLDED = {"+": "add", "*": "mul", "and": "logical_and", "or": "logical_or"}
COMPARED = {"<": "lt", ">": "gt", "<=": "le", ">=": "ge", "==": "eq", "!=": "ne"}
WRITTEN = {
    "fma": parse("a * b + c"),
    "fdim": parse("where(a > b, a - b, 0)"),
    "copysign": parse("where(b >= 0, abs(a), -abs(a))"),
    "cbrt": parse("sgn(a) * pow(abs(a), 1/3)"),
    "trunc": parse("where(a >= 0, floor(a), ceil(a))"),
}
CONSTANTS = {
    **{n: named(n) for n in ("E", "LN2", "LN10", "PI", "SQRT2", "SQRT1_2")},
    "LOG2E": parse("1 / LN2"),
    "LOG10E": parse("1 / LN10"),
    "PI_2": parse("PI / 2"),
    "PI_4": parse("PI / 4"),
    "M_1_PI": parse("1 / PI"),
    "M_2_PI": parse("2 / PI"),
    "M_2_SQRTPI": named("TWO_OVER_SQRTPI"),
}
MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "=="}


class UnreadableError(Exception):
    """A core that cannot be read as a term of one variable."""


@dataclass(frozen=True)
class Core:
    """A formula of one variable, called x."""

    name: str
    file: str
    formula: Term
    domain: tuple[float, float]


def cores(folders: list[Path]) -> tuple[list[Core], dict[str, int]]:
    """Return the distinct cores of one variable in some folders, and the reasons for leaving out others."""
    found: dict[tuple, Core] = {}
    left_out: dict[str, int] = {}
    taken: set[str] = set()
    for file in sorted({f for folder in folders for f in folder.rglob("*.fpcore")}):
        for number, expression in enumerate(expressions(file.read_text()), 1):
            try:
                core = read(expression, f"{file.stem} {number}", f"{file.parent.name}/{file.stem}")
            except (UnreadableError, RecursionError, KeyError, ValueError) as error:
                left_out[str(error)] = left_out.get(str(error), 0) + 1
                continue
            if (core.formula, core.domain) in found:
                left_out["a duplicate"] = left_out.get("a duplicate", 0) + 1
                continue
            name = core.name if core.name not in taken else f"{core.name} ({core.file})"
            taken.add(name)
            found[core.formula, core.domain] = Core(name, core.file, core.formula, core.domain)
    return list(found.values()), left_out


def expressions(text: str) -> Iterator[list]:
    """Yield the S-expressions of a text as lists of lists and strings."""
    open_lists: list[list] = [[]]
    for token in TOKEN.findall(text):
        if token in ("(", "["):
            open_lists.append([])
        elif token in (")", "]"):
            done = open_lists.pop()
            open_lists[-1].append(done)
        elif not token.startswith(";"):
            open_lists[-1].append(token)
    yield from (e for e in open_lists[0] if isinstance(e, list))


def read(core: list, fallback: str, file: str) -> Core:
    """Read one core."""
    if core[0] != "FPCore":
        raise UnreadableError("no FPCore")
    rest = core[1:] if isinstance(core[1], list) else core[2:]
    arguments, rest = rest[0], rest[1:]
    if len(arguments) != 1:
        raise UnreadableError("not of one variable")
    argument = arguments[0] if isinstance(arguments[0], str) else arguments[0][-1]
    if not isinstance(argument, str):
        raise UnreadableError("a tensor")
    properties = {}
    while len(rest) > 1:
        properties[rest[0]], rest = rest[1], rest[2:]
    scope = {argument: var("x")}
    formula = term(rest[0], scope)
    if variables(formula) != ["x"]:
        raise UnreadableError("without a variable")
    if formula is var("x"):
        raise UnreadableError("the variable itself")
    domain = interval(properties.get(":pre", []), argument)
    return Core(properties.get(":name", f'"{fallback}"').strip('"'), file, formula, domain)


def term(expression: list | str, scope: dict[str, Term]) -> Term:
    """Convert an expression to a term."""
    if isinstance(expression, str):
        return _atom(expression, scope)
    head, *operands = expression
    if not isinstance(head, str):
        raise UnreadableError("an expression without an operator")
    if head in ("let", "let*"):
        inner = dict(scope)
        for name, value in operands[0]:
            inner[name] = term(value, inner if head == "let*" else scope)
        return term(operands[1], inner)
    if head in ("!", "cast"):
        return term(operands[-1], scope)
    args = [term(o, scope) for o in operands]
    if head == "if":
        return Term("where", tuple(args))
    if head == "-":
        return _minus(*args)
    if head == "/":
        return _quotient(*args)
    if head == "pow":
        return power(*args)
    if head in FOLDED:
        return _folded(FOLDED[head], args)
    if head in COMPARED:
        pairs = [Term(COMPARED[head], (a, b)) for a, b in itertools.pairwise(args)]
        return _folded("logical_and", pairs)
    if head in WRITTEN:
        return substitute(WRITTEN[head], dict(zip(map(var, "abc"), args, strict=False)))
    if head in NAMES:
        return Term(NAMES[head], tuple(args))
    raise UnreadableError(f"the operator {head}")


def _atom(text: str, scope: dict[str, Term]) -> Term:
    if text in scope:
        return scope[text]
    if NUMBER.fullmatch(text):
        return const(Fraction(text))
    if text.lower().startswith(("0x", "-0x", "+0x")):
        return const(Fraction(float.fromhex(text)))
    if text in CONSTANTS:
        return CONSTANTS[text]
    raise UnreadableError(f"the constant {text}")


def _minus(a: Term, b: Term | None = None) -> Term:
    if b is None:
        return const(-a.value) if a.op == "const" else Term("neg", (a,))
    return Term("sub", (a, b))


def _quotient(a: Term, b: Term | None = None) -> Term:
    a, b = (const(1), a) if b is None else (a, b)
    if a.op == b.op == "const" and b.value:
        return const(a.value / b.value)
    return Term("div", (a, b))


def _folded(op: str, args: list[Term]) -> Term:
    total = args[0]
    for more in args[1:]:
        total = Term(op, (total, more))
    return total


def interval(condition: list | str, name: str) -> tuple[float, float]:
    """Return the float32 bounds of a precondition; the whole line if it has another form."""
    low, high = -inf, inf
    for op, left, right in _comparisons(condition):
        if right == name or right == ["fabs", name]:
            op, left, right = MIRRORED[op], right, left
        bound = _number(right)
        if bound is None or left not in (name, ["fabs", name]):
            continue
        if op in ("<", "<=", "=="):
            high = min(high, _inwards(bound, -inf, op == "<"))
            if left != name:
                low = max(low, -high)
        if op in (">", ">=", "==") and left == name:
            low = max(low, _inwards(bound, inf, op == ">"))
    return (low, high) if low < high else (-inf, inf)


def _comparisons(condition: list | str) -> Iterator[tuple[str, list | str, list | str]]:
    if not isinstance(condition, list) or not condition:
        return
    head, *operands = condition
    if head == "and":
        for operand in operands:
            yield from _comparisons(operand)
    elif head in MIRRORED:
        for left, right in itertools.pairwise(operands):
            yield head, left, right


def _number(expression: list | str) -> float | None:
    try:
        value = term(expression, {})
    except UnreadableError:
        return None
    if any(t.op == "var" for t in topological([value])):
        return None
    found = float(exact([value], {"x": np.zeros(1)})[0].high[0])
    return found if np.isfinite(found) else None


def _inwards(bound: float, towards: float, strict: bool) -> float:
    """Return the float32 nearest to a bound, within it."""
    with np.errstate(over="ignore"):
        rounded = np.float32(bound)
    if not np.isfinite(rounded):
        return float(-towards) if np.sign(rounded) == -np.sign(towards) else inf * float(np.sign(rounded))
    beyond = rounded < bound if towards > 0 else rounded > bound
    if beyond or (strict and float(rounded) == bound):
        rounded = np.nextafter(rounded, np.float32(towards))
    return float(rounded)

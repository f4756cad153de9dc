"""Functions whose gradient is intentionally not a derivative, and how to recognise them.

Straight-through estimators, surrogates and gradient modifiers are correct code whose backward disagrees with the
forward's derivative. Four signs are accepted, in words and in structure; each is precise enough that a mistake in a
smooth function does not pass for intent.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.check.case import Case
from pullback.check.derivative.compare_input import Comparison
from pullback.check.derivative.first_order import FirstOrder
from pullback.check.find.source import FunctionSource
from pullback.check.subject import Subject
from pullback.check.trial import ForwardRun, Raised, as_real, forward, is_freed
from pullback.report.model import Severity

_SPLIT_NAME = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_")


def texts(subject: Subject) -> Iterator[str]:
    """Yield name, docstring, comments, and the docstrings of callers."""
    yield words_of_name(subject)
    yield docstring(subject)
    if subject.source is not None:
        yield remarks(subject.source)
    for _, text in callers(subject.source):
        yield text


def words_of_name(subject: Subject) -> str:
    """Return the words in the name of a subject."""
    return words_of(subject.name)


def words_of(name: str) -> str:
    """Return the words in a name, "symmetric eig" for `linalg.SymmetricEig`."""
    return " ".join(_SPLIT_NAME.split(name.rsplit(".", 1)[-1])).lower()


def docstring(subject: Subject) -> str:
    """Return the docstring; empty if there is none."""
    text = (subject.source.docstring if subject.source else "") or getattr(subject.target, "__doc__", None)
    return text if isinstance(text, str) else ""


def callers(source: FunctionSource | None) -> Iterator[tuple[str, str]]:
    """Yield name and docstring of each function and class of the module that calls `apply`."""
    around = [node for site in source.call_sites for node in (*site.functions[:1], site.inside_class)] if source else []
    for node in around:
        if node is not None and node is not (source.node if source else None):
            yield node.name, ast.get_docstring(node) or ""


def remarks(source: FunctionSource) -> str:
    """Return the comments and the free-standing strings inside a class."""
    lines = linecache.getlines(source.file)[source.line - 1 : source.end_line]
    comments = [line.partition("#")[2] for line in lines if "#" in line]
    strings = [
        node.value.value
        for node in ast.walk(source.node)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    return "\n".join([*comments, *strings])


_CHANGES = r"(scal\w*|clip\w*|mult\w*|normali[sz]\w*|sign)"
_IN_NAME = re.compile(
    r"\b(ste|straight ?through|surrogate|approx\w*|revers\w* ?(grad\w*|layer)|grad\w* ?revers\w*|grl|"
    rf"(grad\w* ?{_CHANGES})|{_CHANGES} ?grad\w*)\b"
)
_EXPLICIT = re.compile(
    r"straight[- ]?through|\bSTE\b|surrogate|pseudo[- ]?(gradient|derivative)|(gradient|sign) estimator"
    r"|lineari[sz]e d\w+/d\w+|natural gradient|gradient (reversal|scaling|clipping|normali[sz]ation|modifi(er|cation))"
    r"|computes the gradient as\b|pathwise|guided[- ]?(backprop\w*|relu)|deconvnet"
    r"|tangent[- ]space|lie[- ](algebra|group)|riemannian|on the manifold|manifold gradient"
    r"|(gradients?|derivatives?|backward|cotangents?) (is|are|gets|get) set to|sets? the (gradients?|derivatives?) to"
    r"|null[- ]?space|only the (sub)?space|basis of|up to (a |the |their )?(sign|phase|rotation|permutation|basis)\b"
    r"|stochastic(ally)?[- ]round\w*|expected gradient|gradient of the (posterior|expectation|expected)"
    r"|(saved?|saves|stored?|stores|kept|keeps?|packed|compress\w*|quanti[sz]e[sd]?) (\w+ ){0,3}?(in|to|as|into) "
    r"(u?int8|int4|fp8|float8\w*|(one|two|four|eight|[1248])[- ]bits?)",
    re.IGNORECASE,
)
_OF_LIE = re.compile(r"(?<![^\W_])\w*lie(_?(tensor|group|algebra)s?)?(?![^\W_])", re.IGNORECASE)
"""Modules of Lie groups, whose gradients are taken in the tangent space."""
_RANDOM = re.compile(r"\bsampl(?:e[sd]?|ing)\b|stochastic|monte[- ]?carlo|unbiased|gumbel", re.IGNORECASE)
"""Words that excuse a function that draws random numbers: the gradient of an expectation has many unbiased estimators,
and the derivative of one draw is only one of them."""
_CHANGE = r"\b(?<!\bthe )(?<!\bits )(?<!\ba )(?:approximat\w*|revers\w*(?!-mode)|scale[sd]?|scaling|clip\w*)"
_GRADIENT = r"\b(?:gradients?|backward|derivatives?|cotangents?)\b"
_NEAR = r"[\s-]+(?:[\w']+[\s-]+){0,3}?"
_QUANTISES = re.compile(r"quant|lsq|binar|ternar|dorefa|spike|levels", re.IGNORECASE)
_IN_SENTENCE = re.compile(rf"{_CHANGE}{_NEAR}{_GRADIENT}|{_GRADIENT}{_NEAR}{_CHANGE}", re.IGNORECASE)
"""At most three words apart: "scaled dot-product attention with a custom backward" scales no gradient."""

_DENIED = re.compile(r"\b(no|not an?|not the|without|confused? with( the)?)\s$", re.IGNORECASE)
"""Negations of the words after them."""
_LITTLE = 0.25
"""Share of elements that may lie near a rounding boundary by chance, or have a small slope."""


@dataclass(frozen=True, slots=True)
class Intent:
    """Why a backward that differs from the derivative is considered intended.

    Attributes:
        sign: "declared", "worded", "identity", "flat", "rounded", "bound" or "cut". An intent that is only worded, in a
            name or a docstring, excuses nothing in a smooth function.
        reason: the reason in words, for the finding.
    """

    sign: str
    reason: str


def severity_of(intent: Intent) -> Severity:
    """Severity of an intended deviation: words may refer to something else, structure does not."""
    return "warning" if intent.sign in ("worded", "cut") else "info"


def declared(subject: Subject) -> Intent | None:
    """Return an intent that a declaration, the name or the docstring states."""
    if subject.is_made and subject.target.linear is False:
        return Intent("declared", "its rule is declared not to be linear in the cotangent")
    source: FunctionSource | None = subject.source
    if match := _IN_NAME.search(words_of_name(subject)):
        return Intent("worded", f"its name says {match.group(0)!r}")
    for sentence in re.split(r"(?<=[.!?])\s+|\n\s*\n", docstring(subject)):
        if match := _explicit(sentence) or _IN_SENTENCE.search(sentence):
            return Intent("worded", f"its docstring says {match.group(0)!r}")
    if match := _OF_LIE.search(str(getattr(subject.target, "__module__", ""))):
        return Intent("worded", f"its module is called {match.group(0)!r}")
    if source is not None and (match := _explicit(remarks(source))):
        return Intent("worded", f"a comment in it says {match.group(0)!r}")
    for caller, text in callers(source):
        if match := _IN_NAME.search(words_of(caller)):
            return Intent("worded", f"the name of {caller}, which calls it, says {match.group(0)!r}")
        if match := _explicit(text):
            return Intent("worded", f"the docstring of {caller}, which calls it, says {match.group(0)!r}")
    return None


_CUTS = re.compile(r"\bdetach(ed|es)?\b|\bstop[- ]?grad\w*|\bno[- ]grad\w*", re.IGNORECASE)


def of_option(subject: Subject, case: Case) -> Intent | None:
    """Return an intent that the documentation of a flag states, if a call sets it: it brings in a detached factor."""
    if subject.source is None:
        return None
    lines = f"{docstring(subject)}\n{remarks(subject.source)}".splitlines()
    for name in (name for name, value in zip(case.names, case.values, strict=True) if value is True):
        told = [line for line in lines if re.match(rf"\W*(param )?{re.escape(name)}\b", line)]
        if match := next(filter(None, map(_CUTS.search, told)), None):
            return Intent("worded", f"the documentation of {name} says {match.group(0)!r}")
    return None


def _explicit(text: str) -> re.Match[str] | None:
    """The first words that declare an intent and are not negated."""
    found = _EXPLICIT.finditer(text)
    return next((match for match in found if not _DENIED.search(text[: match.start()])), None)


def declared_random(subject: Subject) -> Intent | None:
    """Return an intent that name, docstrings or comments state for a function that draws random numbers."""
    for text in texts(subject):
        if match := _RANDOM.search(text):
            return Intent("worded", f"it draws random numbers, and says {match.group(0)!r}")
    return None


def identity(run: ForwardRun, given: Sequence[Tensor]) -> Intent | None:
    """Return an intent if every output is an input unchanged: then the backward exists to change gradients.

    It needs generic values: x * x is also "unchanged" at 1.

    Args:
        run: the forward.
        given: its differentiated inputs as they were before the call, which may have changed them in place.
    """
    roots = [out.detach() for out in run.roots]
    if roots and all(any(_unchanged(out, x) for x in given) for out in roots):
        return Intent("identity", "its forward returns an input unchanged")
    return None


def is_unchanged(run: ForwardRun, given: Sequence[Tensor]) -> bool:
    """Whether every output is one of some tensors, unchanged."""
    roots = [out.detach() for out in run.roots]
    return bool(roots) and all(any(_is_copy(out, x) for x in given) for out in roots)


def _unchanged(out: Tensor, x: Tensor) -> bool:
    return _is_copy(out, x) and not (x.numel() > 1 and bool((x == x.flatten()[0]).all()))


def _is_copy(out: Tensor, x: Tensor) -> bool:
    if is_freed(out) or is_freed(x):
        return False
    return out.shape == x.shape and out.dtype == x.dtype and torch.equal(out, x)


def flat(result: FirstOrder, name: str) -> Intent | None:
    """Return an intent if the forward is flat almost everywhere in an input whose gradient is not zero.

    It excuses the whole function if every disagreeing input is flat, or if the name says that it quantises: then the
    gradient of a scale is an estimate too, and so is that of a largest element, which determines the scale. Otherwise a
    mistake in another input would go unnoticed.
    """
    estimated = [c for c in result.wrong if flat_in(c)]
    if _QUANTISES.search(name):
        estimated += [c for c in result.wrong if c.still > (1 - _LITTLE) * c.failing]
    elif len(estimated) < len(result.wrong):
        return None
    return FLAT if estimated else None


FLAT = Intent("flat", "its forward is flat almost everywhere and its backward is not")
ROUNDED = Intent("rounded", "its forward moves in steps as small as those of half precision, in which it may compute")
"""The deviation is not known to be intended, but there is no derivative to compare with either."""


def rounds_inside(subject: Subject, case: Case) -> bool:
    """Whether a forward that looks flat moves in steps of the size of half-precision rounding.

    Relative changes of 2**-14 are lost in float16 and bfloat16, and those of 2**-5 are not; `round` and `sign` lose
    both. A function whose name says that it quantises does so on purpose, however finely.
    """
    if _QUANTISES.search(subject.name):
        return False
    # Neighbours in float16 are 2⁻¹¹ to 2⁻¹⁰ apart, relative to their size, and those in bfloat16 2⁻⁸ to 2⁻⁷. So of
    # outputs proportional to their inputs, a change by 2⁻¹⁴ moves at most 1 in 8 across a rounding boundary, and 2⁻⁵
    # moves all.
    try:
        here, near, far = (_outputs(subject, case, factor) for factor in (1.0, 1 + 2.0**-14, 1 + 2.0**-5))
    except Raised:
        return False
    moves = [float((there != here).double().mean()) for there in (near, far) if there.shape == here.shape]
    return len(moves) == 2 and moves[0] < _LITTLE and moves[1] > 1 - _LITTLE


def staircase_inputs(subject: Subject, case: Case) -> frozenset[int]:
    """Return the differentiated inputs that may change by 10⁻⁶ of themselves while hardly an output moves.

    Differences that reach over the steps of a quantiser tell neither that it is flat nor what its slope is.
    """
    try:
        here = _outputs(subject, case, 1.0)
        there = [_outputs(subject, case, 1 + 2.0**-20, {position}) for position in case.wrt]
    except Raised:
        return frozenset()
    if bool((here == here[:1]).all()):
        return frozenset()  # a constant
    still = [x.shape == here.shape and float((x != here).double().mean()) < _LITTLE for x in there]
    return frozenset(input_index for input_index, is_still in enumerate(still) if is_still)


def _outputs(subject: Subject, case: Case, factor: float, scaled: Collection[int] | None = None) -> Tensor:
    """Return the outputs, as one vector, for inputs that are multiplied by a factor, or for those at some positions."""
    moved = {p: case.values[p] * factor for p in (case.wrt if scaled is None else scaled)}
    run = forward(subject, case.with_values(moved))
    return torch.cat([as_real(out) for out in run.outputs])


def flat_in(comparison: Comparison) -> Intent | None:
    """Return an intent, for one input, if nothing that was compared of it moves the output."""
    return FLAT if comparison.flat and not comparison.moves else None


def bound(result: FirstOrder, name: str) -> Intent | None:
    """Return an intent if the backward differs only where a clamp or a bound saturates.

    That is: the forward returns its input, or one of at most two bounds, and every element of the gradient
    that disagrees belongs to an output at a bound. A function called ReLU promises ReLU's derivative.
    """
    if "relu" in name.lower() or len(result.run.outputs) != 1:
        return None
    out = result.run.outputs[0].detach()
    given = [c for c in result.wrong if result.gradients[c.input_index] is not None]
    others = [v for v in result.case.values if isinstance(v, Tensor)]
    for comparison in given:
        x = result.run.inputs[comparison.input_index].detach()
        if x.shape != out.shape or not comparison.flat or not _is_clamp(x, out, others):
            return None
    if not given:
        return None
    return Intent("bound", "its backward differs from the derivative only where the forward saturates")


def is_one_sided(result: FirstOrder) -> bool:
    """Whether a gradient passes at one of two bounds and is blocked at the other, as where half a mask is missing.

    True only for a backward that is linear in the cotangent: otherwise its sign may decide at each bound.
    """
    out = result.run.outputs[0].detach()
    for comparison in result.wrong:
        x, gradient = result.run.inputs[comparison.input_index].detach(), result.gradients[comparison.input_index]
        if gradient is None or x.shape != out.shape:
            continue
        held = out != x
        passes = [bool((gradient[held & (out == value)] != 0).any()) for value in out[held].unique()]
        if sorted(passes) == [False, True]:
            return True
    return False


def _is_clamp(x: Tensor, out: Tensor, others: Sequence[Tensor]) -> bool:
    """True if `out` is `x`, or where it differs from it, one of at most two bounds or another argument."""
    held = out != x
    if not bool(held.any()) or bool(held.all()):
        return False
    return out[held].unique().numel() <= 2 or any(_holds(out, other, held) for other in others)


def _holds(out: Tensor, bound: Tensor, held: Tensor) -> bool:
    try:
        return torch.equal(out[held], bound.expand_as(out)[held])
    except RuntimeError:
        return False

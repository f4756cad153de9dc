"""Decisions about findings: which call for a fix, whether the fix is unsafe, and whether it resolved them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from pullback.check.contexts.compare import SPLIT
from pullback.check.rules import all_rules, rule_named
from pullback.report.model import Finding


def _proves(finding: Finding) -> int:
    """Order of the derivative that the finding's rule compares with a numeric one; 0 for none."""
    rule = rule_named(finding.rule)
    return 0 if rule is None else rule.proves


def _rewrites(finding: Finding) -> str:
    """Part of the source that a fix of the finding rewrites, as in `Rule.fix`."""
    rule = rule_named(finding.rule)
    return "backward" if rule is None else rule.fix


def backward_rules(findings: Sequence[Finding], unsafe: bool) -> tuple[str, ...]:
    """Rules whose findings call for a new backward.

    Args:
        findings: findings of one function.
        unsafe: whether a backward that is not the derivative on purpose is replaced, too.
    """
    judged = [f for f in findings if _rewrites(f) != "calls"]
    found = [f for f in judged if f.severity == "error" or _of_backward(f) or (unsafe and f.verdict == "intended")]
    return tuple(sorted({f.rule for f in found}))


def style_rules(findings: Sequence[Finding]) -> tuple[str, ...]:
    """Rules whose findings call for the new style."""
    return tuple(sorted({f.rule for f in findings if _rewrites(f) != "backward" or f.hint == SPLIT}))


def resolved_rules(rules: Iterable[str], findings: Sequence[Finding]) -> tuple[str, ...]:
    """Those of the rules without any finding left, infos included."""
    return tuple(sorted(set(rules) - {f.rule for f in findings}))


def lacks_setup_context(findings: Sequence[Finding]) -> bool:
    """Whether a forward takes the context, according to PyTorch's refusal."""
    return any(f.hint == SPLIT for f in findings)


def _of_backward(finding: Finding) -> bool:
    """Whether a warning is about the backward."""
    rule = rule_named(finding.rule)
    if (
        finding.severity != "warning"
        or rule is None
        or finding.alias
        or finding.verdict not in ("wrong", "unstable", "unsupported")
    ):
        return False
    of_gradient = rule.is_of_range and "gradient" in finding.message
    return rule.blames == "backward" or of_gradient


def unsafe_before(findings: Sequence[Finding]) -> str:
    """Reason why a new backward may go against the author's intent; empty if nothing suggests so."""
    intended = next((f for f in findings if f.verdict == "intended"), None)
    if intended is not None:
        return f"{intended.rule}: {_clause(intended.message)}"
    doubt = next((f for f in findings if f.verdict == "inconclusive" and _proves(f) == 1), None)
    return f"the audit was inconclusive ({doubt.rule})" if doubt is not None else ""


def unsafe_after(findings: Sequence[Finding]) -> str:
    """Property of a new backward, of first or second order, that is not proven; empty if all is."""
    for f in findings:
        if f.verdict == "inconclusive" and _proves(f):
            return f"{f.rule} could not be decided for the new backward"
        if f.name == "not-run" and any(rule.id in f.message for rule in all_rules() if rule.proves):
            return "the budget was spent before the new backward was proven; raise --budget"
        if f.name == "unclear-double-backward-error":
            return "the new backward cannot be differentiated"
    return ""


def why_unaudited(findings: Sequence[Finding]) -> str:
    """Reason why a function was not audited; empty if it was."""
    return next((f.message for f in findings if f.name == "unaudited"), "")


def still_wrong(before: Sequence[Finding], after: Sequence[Finding]) -> str:
    """Reason why a new backward does not resolve the findings; empty if it does."""
    if why := why_unaudited(after):
        return f"the new source could not be audited: {_clause(why)}"
    error = next((f for f in after if f.severity == "error"), None)
    if error is not None:
        known = any((f.rule, f.severity) == (error.rule, "error") for f in before)
        kind = "still has" if known else "would have"
        return f"with a backward derived from its forward it {kind} {error.rule}: {_clause(error.message)}"
    if any(f.severity == "error" for f in before):
        return ""
    warned = {f.rule for f in before if _of_backward(f)}
    left = next((f for f in after if _of_backward(f) and f.rule in warned), None)
    return f"a backward derived from its forward has {left.rule} too: {_clause(left.message)}" if left else ""


def wrong_in_style(before: Sequence[Finding], after: Sequence[Finding], asked: Collection[str]) -> str:
    """Reason why a function should keep the old style; empty if it may get the new one.

    Args:
        before: its findings in the old style.
        after: its findings in the new style, by every rule.
        asked: ids of the rules behind `before`.
    """
    if why := why_unaudited(after):
        return f"in the new style it could not be audited: {_clause(why)}"
    known = {(f.rule, f.severity) for f in before}
    new = (f for f in after if f.severity == "error" or (f.severity == "warning" and f.rule in asked))
    worse = next((f for f in new if f.severity == "error" or (f.rule, f.severity) not in known), None)
    return f"in the new style it has {worse.rule}: {_clause(worse.message)}" if worse is not None else ""


def _clause(message: str) -> str:
    return " ".join(message.partition("\n")[0].split())

"""The catalogue: one file a rule, found by its name `pbNNN_name.py`; its docstring is its page."""

from __future__ import annotations

import functools
import importlib
import pkgutil

from pullback.check.rules._rule import Rule as Rule
from pullback.check.subject import Options
from pullback.check.trial import Incident
from pullback.report.model import Finding


@functools.cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule, by id."""
    names = [module.name for module in pkgutil.iter_modules(__path__) if module.name.startswith("pb")]
    rules = [importlib.import_module(f"{__name__}.{name}").RULE for name in sorted(names)]
    return tuple(sorted(rules, key=lambda rule: rule.id))


def rule_named(key: str) -> Rule | None:
    """The rule whose id (any case) or name is `key`, or whose static half had that id or name."""
    return next((rule for rule in all_rules() if rule.about.is_named(key)), None)


def rule_of(incident: Incident) -> Rule:
    """The rule that reports an incident."""
    return next(rule for rule in all_rules() if rule.incident == incident)


def selected(options: Options) -> list[Rule]:
    """The rules that `options` select, by id, the late ones last."""
    rules = sorted(all_rules(), key=lambda rule: (rule.late, rule.id))
    return [rule for rule in rules if _is_selected((rule.id,), options)]


def selected_static(options: Options, runs: bool) -> list[Rule]:
    """The rules whose static half `options` select, by the id of the rule or of the half.

    Args:
        options: options of the audit.
        runs: leave out the halves that stand in for a run.
    """
    return [
        rule
        for rule in selected(Options())
        if rule.static is not None
        and not (runs and rule.alias)
        and _is_selected((rule.id, *([rule.alias.id] if rule.alias else [])), options)
    ]


def _is_selected(ids: tuple[str, ...], options: Options) -> bool:
    asked = not options.select or any(id_.startswith(options.select) for id_ in ids)
    return asked and not any(id_.startswith(options.ignore or ("-",)) for id_ in ids)


def allow_keys(finding: Finding) -> tuple[str, ...]:
    """Ids and names by which an allow comment may silence a finding: of the rule, or the static half that found it."""
    rule = rule_named(finding.alias) if finding.alias else None
    half = () if rule is None or rule.alias is None else (rule.alias.id, rule.alias.name)
    return finding.rule, finding.name, *half

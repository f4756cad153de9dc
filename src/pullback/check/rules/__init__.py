"""The catalogue: one file a rule, found by its name `pbNNN_name.py`; its docstring is its page."""

from __future__ import annotations

import functools
import importlib
import pkgutil

from pullback.check.rules._rule import Rule as Rule
from pullback.check.subject import Options


@functools.cache
def all_rules() -> tuple[Rule, ...]:
    """Return every rule, by id."""
    names = [module.name for module in pkgutil.iter_modules(__path__) if module.name.startswith("pb")]
    rules = [importlib.import_module(f"{__name__}.{name}").RULE for name in sorted(names)]
    return tuple(sorted(rules, key=lambda rule: rule.id))


def rule_named(key: str) -> Rule | None:
    """Return the rule whose id (any case) or name is `key`."""
    return next((rule for rule in all_rules() if key.upper() == rule.id or key.lower() == rule.name), None)


def selected(options: Options) -> list[Rule]:
    """Return the rules that `options` ask for, by id, but those last that take long."""
    return [
        rule
        for rule in sorted(all_rules(), key=lambda rule: (rule.late, rule.id))
        if (not options.select or rule.id.startswith(options.select))
        and not rule.id.startswith(options.ignore or ("-",))
    ]

"""From targets to mended files: audit, derive, insert, audit again, write."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pullback.check.events import Progress
from pullback.check.find.target import parse_target
from pullback.check.rules import selected
from pullback.check.runner.importer import audit_targets
from pullback.check.runner.outcome import Outcome, report_of
from pullback.check.subject import Given, Options
from pullback.fix.choose import lacks_setup_context, old_style, reasons, unsafe_before, why_unaudited
from pullback.fix.diff import unified
from pullback.fix.files import SourceFile, is_installed
from pullback.fix.model import Candidate, CannotFixError, Key, Restyle, Told
from pullback.fix.prove import Proof
from pullback.fix.task import Found, find_all
from pullback.report.baseline import Key as KnownKey
from pullback.report.baseline import without
from pullback.report.model import Finding, Report, status_of


@dataclass(frozen=True, slots=True)
class How:
    """Options of a fix.

    Attributes:
        unsafe: also apply fixes that may change the intent.
        write: whether to write the files.
        known: the findings of a baseline, which are not mended.
    """

    unsafe: bool
    write: bool
    known: Counter[KnownKey]


@dataclass(frozen=True, slots=True)
class Mended:
    """Result for all targets.

    Attributes:
        report: on the resulting code.
        told: the result for each function with a finding, in the order of the report.
        diff: the changes made, or proposed.
    """

    report: Report
    told: tuple[Told, ...]
    diff: str


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Parts of a function to mend.

    Attributes:
        rules: ids of the findings that a new backward is to mend; empty if the old one stays.
        unsafe: why a new backward may change the intent.
        is_old: whether something of the old style was found.
        is_split: whether that is a forward that takes the context.
    """

    rules: tuple[str, ...]
    unsafe: str
    is_old: bool
    is_split: bool


def mend(
    targets: Sequence[str],
    options: Options,
    load: Callable[[], Given],
    how: How,
    on_progress: Progress | None = None,
) -> Mended:
    """Audit targets, and give functions with findings a backward derived from their forward, and the new style.

    Raises:
        PullbackError: as `audit_targets`.
    """
    unique = list(dict.fromkeys(targets))
    for target in unique:
        parse_target(target)  # report a typo in the last target before the first is audited
    mending = _Mending(options, load, how)
    for target in unique:
        mending.look(target, audit_targets([target], options, load, on_progress=on_progress))
    mending.change()
    order = {_key(outcome): i for i, outcome in enumerate(mending.outcomes)}
    told = tuple(sorted(mending.told, key=lambda one: order[one.key]))
    return Mended(report_of(mending.now()), told, "".join(mending.diffs))


class _Mending:
    """State of a fix over several targets.

    Attributes:
        outcomes: of the audit of the original code.
        told: results of functions.
        diffs: of files.
    """

    def __init__(self, options: Options, load: Callable[[], Given], how: How) -> None:
        self.outcomes: list[Outcome] = []
        self.told: list[Told] = []
        self.diffs: list[str] = []
        self._options, self._load, self._how = options, load, how
        self._candidates: dict[Path, dict[str, Candidate]] = defaultdict(dict)
        self._after: dict[Key, Outcome] = {}

    def look(self, target: str, outcomes: Sequence[Outcome]) -> None:
        """Take the audit of a target, and look for fixes of its functions."""
        self.outcomes += outcomes
        new = set(without(report_of(outcomes), self._how.known).findings)
        wanted: dict[Key, _Wanted] = {}
        for outcome in outcomes:
            findings = [f for f in outcome.findings if f in new]
            if (judged := self._judge(_key(outcome), findings)) is not None:
                wanted[_key(outcome)] = judged
        if not wanted:
            return
        installed = parse_target(target).path is None
        backward = [key for key, one in wanted.items() if one.rules]
        for key, found in find_all(target, list(wanted), backward, self._options, self._load).items():
            self._take(key, found, wanted[key], by_module=installed)

    def _judge(self, key: Key, findings: Sequence[Finding]) -> _Wanted | None:
        """Return the parts of a function to mend; `None` if it is left unchanged."""
        if why := why_unaudited(findings):
            self.told.append(Told(key, (), why))
            return None
        rules, unsafe = reasons(findings, self._how.unsafe), unsafe_before(findings)
        if rules and unsafe and not self._how.unsafe:
            self.told.append(Told(key, (), unsafe, needs_flag=True))
            return None
        named = self._options.select or ("-",)
        heard = [f for f in findings if f.severity != "info" or f.rule.startswith(named)]
        is_old = bool(old_style(heard))
        return _Wanted(rules, unsafe, is_old, lacks_setup_context(heard)) if rules or is_old else None

    def _take(self, key: Key, found: Found, wanted: _Wanted, by_module: bool) -> None:
        if found.why:
            self.told.append(Told(key, (), found.why))
            return
        path = Path(found.file)
        if by_module and is_installed(path):
            self.told.append(Told(key, (), f"it is installed, in {path}; to have that changed, name the file"))
            return
        only = found.derived.only if found.derived is not None else ""
        unsafe = wanted.unsafe if wanted.rules else ""
        unsafe = unsafe or (f"the new backward holds for {only} alone" if only else "")
        restyle = Restyle(found.plain, found.is_old and wanted.is_split) if wanted.is_old else None
        candidate = Candidate(key, found.qualname, found.derived, restyle, wanted.rules, unsafe)
        self._candidates[path].setdefault(found.qualname, candidate)

    def change(self) -> None:
        """Prove the changes, file by file, and write them if that is asked for."""
        for path, candidates in self._candidates.items():
            try:
                self._change(path, list(candidates.values()))
            except CannotFixError as error:
                self.told += [Told(one.key, (), str(error)) for one in candidates.values()]

    def _change(self, path: Path, candidates: Sequence[Candidate]) -> None:
        file = SourceFile(path)
        inside = [outcome for outcome in self.outcomes if _is_in(outcome, path)]
        before = {outcome.result.location.line or 0: outcome for outcome in inside}
        proof = Proof(file, before, self._options, self._load, self._how.unsafe)
        proof.run(candidates)
        if self._how.write and proof.content != file.content:
            file.write(proof.content)
            self._after |= {_key(before[line]): outcome for line, outcome in proof.after.items()}
        self.told += proof.told
        self.diffs.append(unified(inside[0].result.location.file or path.name, file.content, proof.content))

    def now(self) -> list[Outcome]:
        """Return the outcomes of the audit for the resulting code, by the selected rules."""
        asked = {rule.id for rule in selected(self._options)}
        return [self._now(outcome, asked) for outcome in self.outcomes]

    def _now(self, outcome: Outcome, asked: set[str]) -> Outcome:
        after = self._after.get(_key(outcome))
        if after is None:
            return outcome
        findings = tuple(f for f in after.findings if f.rule in asked)
        return replace(after, findings=findings, result=replace(after.result, status=status_of(findings)))


def _key(outcome: Outcome) -> Key:
    location = outcome.result.location
    return Key(outcome.result.name, location.file or "", location.line or 0)


def _is_in(outcome: Outcome, path: Path) -> bool:
    file = outcome.result.location.file
    return file is not None and Path(file).resolve() == path

"""From targets to files with new backwards: audit, derive, put in, audit again, write."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pullback.check.find.target import parse_target
from pullback.check.rules import selected
from pullback.check.runner.importer import audit_targets
from pullback.check.runner.outcome import Outcome, report_of
from pullback.check.subject import Given, Options
from pullback.fix.choose import reasons, unsafe_before, why_unaudited
from pullback.fix.diff import unified
from pullback.fix.files import SourceFile, is_installed
from pullback.fix.model import Candidate, CannotFixError, Key, Told
from pullback.fix.prove import Proof
from pullback.fix.task import Found, derive_all
from pullback.report.baseline import Key as KnownKey
from pullback.report.baseline import without
from pullback.report.model import Finding, Report, status_of


@dataclass(frozen=True, slots=True)
class How:
    """How to mend.

    Attributes:
        unsafe: also what may change what is meant.
        write: to the files; else nothing is written.
        known: what a baseline has, which is no reason to change anything.
    """

    unsafe: bool
    write: bool
    known: Counter[KnownKey]


@dataclass(frozen=True, slots=True)
class Mended:
    """What came of all targets.

    Attributes:
        report: on the code as it is now.
        told: what became of each function that something was found of, in the order of the report.
        diff: what changed, or would.
    """

    report: Report
    told: tuple[Told, ...]
    diff: str


def mend(
    targets: Sequence[str],
    options: Options,
    load: Callable[[], Given],
    how: How,
    on_progress: Callable[[int, int], None] | None = None,
) -> Mended:
    """Audit targets, and give what can be mended a backward that is derived from its forward.

    Raises:
        PullbackError: as `audit_targets`.
    """
    unique = list(dict.fromkeys(targets))
    for target in unique:
        parse_target(target)  # a slip in the last one is to be told before the first is audited
    mending = _Mending(options, load, how)
    for target in unique:
        mending.look(target, audit_targets([target], options, load, on_progress=on_progress))
    mending.change()
    order = {_key(outcome): i for i, outcome in enumerate(mending.outcomes)}
    told = tuple(sorted(mending.told, key=lambda one: order[one.key]))
    return Mended(report_of(mending.now()), told, "".join(mending.diffs))


class _Mending:
    """What is known so far.

    Attributes:
        outcomes: of the audit of what there was.
        told: what becomes of functions.
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
        """Take the audit of a target, and derive new backwards for what needs them."""
        self.outcomes += outcomes
        new = set(without(report_of(outcomes), self._how.known).findings)
        wanted: dict[Key, tuple[tuple[str, ...], str]] = {}
        for outcome in outcomes:
            findings = [f for f in outcome.findings if f in new]
            if (judged := self._judge(_key(outcome), findings)) is not None:
                wanted[_key(outcome)] = judged
        if not wanted:
            return
        installed = parse_target(target).path is None
        for key, found in derive_all(target, list(wanted), self._options, self._load).items():
            self._take(key, found, *wanted[key], by_module=installed)

    def _judge(self, key: Key, findings: Sequence[Finding]) -> tuple[tuple[str, ...], str] | None:
        """Return what is to be mended of a function and why that is unsafe; `None` if it is left alone."""
        if why := why_unaudited(findings):
            self.told.append(Told(key, (), why))
            return None
        rules, unsafe = reasons(findings, self._how.unsafe), unsafe_before(findings)
        if rules and unsafe and not self._how.unsafe:
            self.told.append(Told(key, (), unsafe, needs_flag=True))
            return None
        return (rules, unsafe) if rules else None

    def _take(self, key: Key, found: Found, rules: tuple[str, ...], unsafe: str, by_module: bool) -> None:
        if isinstance(found.derived, str):
            self.told.append(Told(key, (), found.derived))
            return
        path = Path(found.file)
        if by_module and is_installed(path):
            self.told.append(Told(key, (), f"it is installed, in {path}; to have that changed, name the file"))
            return
        unsafe = unsafe or (f"the new backward holds for {found.derived.only} alone" if found.derived.only else "")
        self._candidates[path].setdefault(found.qualname, Candidate(key, found.qualname, found.derived, rules, unsafe))

    def change(self) -> None:
        """Prove what was derived, file by file, and write it if that is asked for."""
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
        """Return what the audit says of the code as it is now, by the rules that were asked for."""
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

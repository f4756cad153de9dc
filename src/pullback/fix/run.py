"""From targets to fixed files: audit them, search for patches, prove them, write the files."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pullback.check.events import Progress
from pullback.check.find.target import parse_target
from pullback.check.rules import selected
from pullback.check.runner.outcome import Outcome, report_of
from pullback.check.runner.targets import audit_targets
from pullback.check.subject import Given, Options
from pullback.fix.choose import backward_rules, lacks_setup_context, style_rules, unsafe_before, why_unaudited
from pullback.fix.files import EditableFile, is_installed, unified_diff
from pullback.fix.patch import CannotFixError, FixResult, FunctionKey, NewStyle, Patch
from pullback.fix.prove import PatchProver
from pullback.fix.search import SearchResult, search
from pullback.report.baseline import Key, without
from pullback.report.model import Finding, status_of
from pullback.report.report import Report


@dataclass(frozen=True, slots=True)
class FixOptions:
    """Options of a fix.

    Attributes:
        unsafe: also apply fixes that may go against the author's intent.
        write: write the files.
        known: findings of a baseline, which are not fixed.
    """

    unsafe: bool
    write: bool
    known: Counter[Key]


@dataclass(frozen=True, slots=True)
class FixReport:
    """Result of a fix for all targets.

    Attributes:
        report: the audit's report on the resulting code.
        results: the result for each function with a finding, in the order of the report.
        diff: the changes made, or proposed.
    """

    report: Report
    results: tuple[FixResult, ...]
    diff: str


def fix_targets(
    targets: Sequence[str],
    options: Options,
    load: Callable[[], Given],
    how: FixOptions,
    on_progress: Progress | None = None,
) -> FixReport:
    """Audit targets, and give functions with findings a backward derived from their forward, and the new style.

    Raises:
        PullbackError: as `audit_targets`.
    """
    unique = list(dict.fromkeys(targets))
    for target in unique:
        parse_target(target)  # report a typo in the last target before the first is audited
    run = _FixRun(options, load, how)
    for target in unique:
        run.add_target(target, audit_targets([target], options, load, on_progress=on_progress))
    run.apply()
    order = {FunctionKey.of(outcome.result): i for i, outcome in enumerate(run.outcomes)}
    results = tuple(sorted(run.results, key=lambda one: order[one.key]))
    return FixReport(report_of(run.outcomes_after()), results, "".join(run.diffs))


def result_lines(results: Sequence[FixResult], written: bool) -> Iterator[str]:
    """Yield a line of text for each function with a finding, and one with the counts.

    Args:
        results: the results.
        written: whether files were written, or would be.
    """
    for one in results:
        where = f"{one.key.name} ({one.key.file}:{one.key.line})"
        if one.rules:
            unsafe = f"; unsafe: {one.note}" if one.note else ""
            style = f"; not in the new style: {one.style_note}" if one.style_note else ""
            yield f"{'fixed' if written else 'would fix'} {where}: {', '.join(one.rules)}{unsafe}{style}"
        else:
            flag = "needs --unsafe-fixes: " if one.needs_flag else ""
            yield f"not fixed {where}: {flag}{one.note}"
    yield _counts(results, written)


def _counts(results: Sequence[FixResult], written: bool) -> str:
    fixed = sum(bool(one.rules) for one in results)
    unsafe = sum(one.needs_flag for one in results)
    if not results:
        return "nothing to fix"
    parts = [f"{fixed} function{'s' * (fixed != 1)} {'fixed' if written else 'would be fixed'}"]
    parts += [f"{len(results) - fixed} not"] if fixed < len(results) else []
    parts += [f"{unsafe} of them with --unsafe-fixes"] if unsafe else []
    return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class _Request:
    """Changes of a function that its findings call for.

    Attributes:
        rules: findings that a new backward is to resolve; empty if the old one stays.
        unsafe: why a new backward may go against the author's intent.
        is_old: whether a finding is about the old style.
        splits_forward: whether one is about a forward that takes the context.
    """

    rules: tuple[str, ...]
    unsafe: str
    is_old: bool
    splits_forward: bool


class _FixRun:
    """State of a fix over several targets.

    Attributes:
        outcomes: outcomes of the audit of the original code.
        results: results of functions.
        diffs: diffs of files.
    """

    def __init__(self, options: Options, load: Callable[[], Given], how: FixOptions) -> None:
        self.outcomes: list[Outcome] = []
        self.results: list[FixResult] = []
        self.diffs: list[str] = []
        self._options, self._load, self._how = options, load, how
        self._patches: dict[Path, dict[str, Patch]] = defaultdict(dict)
        self._after: dict[FunctionKey, Outcome] = {}

    def add_target(self, target: str, outcomes: Sequence[Outcome]) -> None:
        """Take the audit of a target, and search for patches of its functions."""
        self.outcomes += outcomes
        new = set(without(report_of(outcomes), self._how.known).findings)
        requests: dict[FunctionKey, _Request] = {}
        for outcome in outcomes:
            findings = [f for f in outcome.findings if f in new]
            if (request := self._request(FunctionKey.of(outcome.result), findings)) is not None:
                requests[FunctionKey.of(outcome.result)] = request
        if not requests:
            return
        by_module = parse_target(target).path is None
        backward = [key for key, request in requests.items() if request.rules]
        for key, found in search(target, list(requests), backward, self._options, self._load).items():
            self._add_patch(key, found, requests[key], by_module)

    def _request(self, key: FunctionKey, findings: Sequence[Finding]) -> _Request | None:
        """The changes that a function needs; `None` if it stays unchanged."""
        if why := why_unaudited(findings):
            self.results.append(FixResult(key, (), why))
            return None
        rules, unsafe = backward_rules(findings, self._how.unsafe), unsafe_before(findings)
        if rules and unsafe and not self._how.unsafe:
            self.results.append(FixResult(key, (), unsafe, needs_flag=True))
            return None
        named = self._options.select or ("-",)  # an info counts only if `--select` names its rule
        counted = [f for f in findings if f.severity != "info" or f.rule.startswith(named)]
        is_old = bool(style_rules(counted))
        return _Request(rules, unsafe, is_old, lacks_setup_context(counted)) if rules or is_old else None

    def _add_patch(self, key: FunctionKey, found: SearchResult, request: _Request, by_module: bool) -> None:
        if found.why:
            self.results.append(FixResult(key, (), found.why))
            return
        path = Path(found.file)
        if by_module and is_installed(path):
            self.results.append(FixResult(key, (), f"it is installed, in {path}; name the file to have it changed"))
            return
        valid_for = found.backward.valid_for if found.backward is not None else ""
        unsafe = request.unsafe if request.rules else ""
        unsafe = unsafe or (f"the new backward is valid only for {valid_for}" if valid_for else "")
        style = NewStyle(found.non_tensors, found.is_old and request.splits_forward) if request.is_old else None
        patch = Patch(key, found.qualname, found.backward, style, request.rules, unsafe)
        self._patches[path].setdefault(found.qualname, patch)

    def apply(self) -> None:
        """Prove the patches, file by file, and write the files if that is asked for."""
        for path, patches in self._patches.items():
            try:
                self._apply_to_file(path, list(patches.values()))
            except CannotFixError as error:
                self.results += [FixResult(one.key, (), str(error)) for one in patches.values()]

    def _apply_to_file(self, path: Path, patches: Sequence[Patch]) -> None:
        file = EditableFile(path)
        inside = [outcome for outcome in self.outcomes if _is_in(outcome, path)]
        before = {outcome.result.location.line or 0: outcome for outcome in inside}
        prover = PatchProver(file, before, self._options, self._load, self._how.unsafe)
        prover.run(patches)
        if self._how.write and prover.content != file.content:
            file.write(prover.content)
            self._after |= {FunctionKey.of(before[line].result): outcome for line, outcome in prover.after.items()}
        self.results += prover.results
        self.diffs.append(unified_diff(inside[0].result.location.file or path.name, file.content, prover.content))

    def outcomes_after(self) -> list[Outcome]:
        """Outcomes of the audit for the resulting code, by the selected rules."""
        rules = {rule.id for rule in selected(self._options)}
        return [self._outcome_after(outcome, rules) for outcome in self.outcomes]

    def _outcome_after(self, outcome: Outcome, rules: set[str]) -> Outcome:
        after = self._after.get(FunctionKey.of(outcome.result))
        if after is None:
            return outcome
        findings = tuple(f for f in after.findings if f.rule in rules)
        return replace(after, findings=findings, result=replace(after.result, status=status_of(findings)))


def _is_in(outcome: Outcome, path: Path) -> bool:
    file = outcome.result.location.file
    return file is not None and Path(file).resolve() == path

"""New source is audited as it would be, beside the files around it, before it is written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from pullback.check.find.target import package_of
from pullback.check.rules import selected
from pullback.check.runner.importer import audit_targets, list_subjects
from pullback.check.runner.outcome import Outcome
from pullback.check.subject import Given, Options
from pullback.fix.choose import still_wrong, unsafe_after
from pullback.fix.edit import edited
from pullback.fix.files import SourceFile
from pullback.fix.model import Candidate, CannotFixError, Told
from pullback.fix.shadow import shadow


class Proof:
    """The new source of one file, with those of its candidates that hold.

    Args:
        file: as it is.
        before: what the audit said of its functions, by line.
        options: of that audit; the new source is audited by every rule.
        load: returns what gives example inputs.
        unsafe: whether to keep what may change what is meant.

    Attributes:
        told: what becomes of each candidate.
        content: the new source.
        after: what the audit says of it, by the lines before.
    """

    def __init__(
        self,
        file: SourceFile,
        before: Mapping[int, Outcome],
        options: Options,
        load: Callable[[], Given],
        unsafe: bool,
    ) -> None:
        self.told: list[Told] = []
        self.content = file.content
        self.after: dict[int, Outcome] = {}
        self._file, self._before, self._unsafe = file, before, unsafe
        self._options, self._load = replace(options, select=(), ignore=()), load
        self._asked = {rule.id for rule in selected(options)}

    def run(self, candidates: Sequence[Candidate]) -> None:
        """Put the candidates into the source, and take out those that do not hold until all do."""
        left = [one for one in candidates if self._can_be_edited(one)]
        positions = self._positions() if left else {}
        while left:
            content = edited(self._file.content, {one.qualname: one.derived for one in left})
            after = self._audit(content, positions)
            unsafe = {one.key: one.unsafe or unsafe_after(after[one.key.line].findings) for one in left}
            failed = {one.key: told for one in left if (told := self._failure(one, after, unsafe[one.key]))}
            if not failed and (reason := self._harm(left, after)):
                failed = {one.key: Told(one.key, (), reason) for one in left}
            if not failed:
                self.content, self.after = content, after
                self.told += [Told(one.key, one.rules, unsafe[one.key]) for one in left]
                return
            self.told += failed.values()
            left = [one for one in left if one.key not in failed]

    def _can_be_edited(self, one: Candidate) -> bool:
        try:
            edited(self._file.content, {one.qualname: one.derived})
        except CannotFixError as error:
            self.told.append(Told(one.key, (), str(error)))
            return False
        return True

    def _positions(self) -> dict[int, int]:
        """Return the positions of the functions in scope among all of the file, by line; a change moves none."""
        with shadow({self._file.path: self._file.content}) as places:  # the place decides on their order
            listed = list_subjects(str(places[self._file.path]))
            inside = {i: s.location for i, s in enumerate(listed) if s.location.file == str(places[self._file.path])}
        return {at.line: i for i, at in inside.items() if at.line is not None and at.line in self._before}

    def _audit(self, content: bytes, positions: Mapping[int, int]) -> dict[int, Outcome]:
        path = self._file.path
        with shadow({path: content}) as places:
            place = places[path]
            found = audit_targets([str(place)], self._options, self._load, only=set(positions.values()))
        lines = sorted(positions, key=positions.__getitem__)
        old, new = str(package_of(path)[0]), str(place)[: -len(str(path.relative_to(package_of(path)[0])))].rstrip("/")
        return {line: _moved(one, self._before[line], new, old) for line, one in zip(lines, found, strict=True)}

    def _failure(self, one: Candidate, after: Mapping[int, Outcome], unsafe: str) -> Told | None:
        if one.key.line not in after:
            return Told(one.key, (), "it is not found again in the new source")
        reason = still_wrong(self._before[one.key.line].findings, after[one.key.line].findings)
        if reason:
            return Told(one.key, (), reason)
        return Told(one.key, (), unsafe, needs_flag=True) if unsafe and not self._unsafe else None

    def _harm(self, candidates: Collection[Candidate], after: Mapping[int, Outcome]) -> str:
        """Return an error that another function of the file would get; empty if none would."""
        mended = {one.key.line for one in candidates}
        for line in after.keys() - mended:
            known = {f.rule for f in self._before[line].findings}
            for f in after[line].findings:
                if f.severity == "error" and f.rule in self._asked - known:
                    return f"{f.subject} would have {f.rule}: {f.message}"
        return ""


def _moved(after: Outcome, before: Outcome, copy: str, root: str) -> Outcome:
    """Return an outcome of the copy as one of the file itself."""
    name, file = before.result.name, before.result.location.file
    findings = tuple(
        replace(
            f,
            subject=name,
            location=replace(f.location, file=file),
            reproduce=f.reproduce.replace(copy, root),
        )
        for f in after.findings
    )
    result = replace(after.result, name=name, location=replace(after.result.location, file=file))
    return replace(after, result=result, findings=findings)

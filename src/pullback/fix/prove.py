"""Audit of new source, in its place among the files around it, before it is written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from pullback.check.find.target import package_of
from pullback.check.rules import selected
from pullback.check.runner.importer import audit_targets, list_subjects
from pullback.check.runner.outcome import Outcome
from pullback.check.subject import Given, Options
from pullback.fix.behaviour import differences
from pullback.fix.choose import gone, old_style, still_wrong, unsafe_after, wrong_in_style
from pullback.fix.edit import edited
from pullback.fix.elsewhere import objection
from pullback.fix.files import SourceFile
from pullback.fix.model import Candidate, CannotFixError, Key, Told
from pullback.fix.restyle import restyled
from pullback.fix.shadow import shadow


class Proof:
    """The new source of one file, with the candidates that pass.

    Args:
        file: the current one.
        before: outcomes of the audit of its functions, by line.
        options: of that audit; the new source is audited by every rule.
        load: returns the source of example inputs.
        unsafe: whether to keep fixes that may change the intent.

    Attributes:
        told: the result for each candidate.
        content: the new source.
        after: outcomes of its audit, by the lines before.
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
        """Put the candidates into the source, and change or take out those that do not hold until all do."""
        left = [one for candidate in candidates if (one := self._editable(candidate)) is not None]
        positions = self._positions() if left else {}
        while left:
            content = self._edited(left)
            after = self._audit(content, positions)
            differs = self._differences(content, left, positions)
            judged = {one.key: self._judged(one, after.get(one.key.line), differs.get(one.key, "")) for one in left}
            failed = {one.key for one in left if not judged[one.key].rules}
            if not failed and (reason := self._harm(left, after)):
                self.told += [Told(one.key, (), reason) for one in left]
                return
            if not failed:
                self.content, self.after = content, after
                self.told += judged.values()
                return
            left = [better for one in left if (better := self._lesser(one, judged[one.key])) is not None]

    def _lesser(self, one: Candidate, told: Told) -> Candidate | None:
        """Return a candidate that passes, without any part that fails; record and return `None` if none is left."""
        if told.rules:
            return one
        lesser = None if told.needs_flag else one.less(told.note)
        if lesser is not None:
            return self._editable(lesser)
        self.told.append(replace(told, note=one.remains) if one.derived is None and one.remains else told)
        return None

    def _editable(self, one: Candidate) -> Candidate | None:
        """Return a candidate that can be inserted into the source; record and return `None` if there is none."""
        tried: Candidate | None = one
        while tried is not None:
            one = tried
            try:
                if self._edited([one]) != self._file.content:
                    return one
                why = "nothing in it can be put otherwise"
            except CannotFixError as error:
                why = str(error)
            tried = one.less(why)
        self.told.append(Told(one.key, (), one.remains or why))
        return None

    def _edited(self, candidates: Sequence[Candidate]) -> bytes:
        """Return the source with candidates in it.

        Raises:
            CannotFixError: if one of them cannot be put into it.
        """
        content = edited(self._file.content, {one.qualname: one.derived for one in candidates if one.derived})
        for one in candidates:
            if one.restyle and one.restyle.is_split and (why := objection(self._file.path, one.qualname)):
                raise CannotFixError(why)
        return restyled(content, {one.qualname: one.restyle for one in candidates if one.restyle})

    def _differences(
        self, content: bytes, candidates: Sequence[Candidate], positions: Mapping[int, int]
    ) -> dict[Key, str]:
        """Return how candidates that get another style would differ: in values, or in gradients that should stay."""
        styled = [one for one in candidates if one.restyle is not None and one.key.line in positions]
        if not styled:
            return {}
        places = [positions[one.key.line] for one in styled]
        with shadow({self._file.path: self._file.content}) as files:  # the place decides on their order
            target = str(files[self._file.path])
            found = differences(target, places, content, self._options, self._load)
        pairs = zip(styled, found, strict=True)
        return {one.key: d.value or (d.gradient if one.derived is None else "") for one, d in pairs}

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

    def _judged(self, one: Candidate, after: Outcome | None, differs: str) -> Told:
        """Return the result for a candidate; without rules if it fails."""
        if after is None:
            return Told(one.key, (), "it is not found again in the new source")
        before = self._before[one.key.line].findings
        if one.derived is not None and (why := still_wrong(before, after.findings)):
            return Told(one.key, (), why)
        if one.restyle is not None and (why := wrong_in_style(before, after.findings, self._asked) or differs):
            return Told(one.key, (), why)
        unsafe = (one.unsafe or unsafe_after(after.findings)) if one.derived is not None else ""
        if unsafe and not self._unsafe:
            return Told(one.key, (), unsafe, needs_flag=True)
        rules = gone([*one.rules, *(old_style(before) if one.restyle is not None else ())], after.findings)
        return Told(one.key, rules, unsafe or ("" if rules else "the new style would not mend it"), remains=one.remains)

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

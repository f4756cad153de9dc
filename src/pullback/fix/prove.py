"""Proof of patches: the new source is audited in an overlay of its source tree before it is written.

A new backward has to leave its function without errors. A new style may not change a bit of the results (`behaviour`),
nor add a finding. No other function of the file may get a new error. Patches that fail are reduced or dropped until
the rest passes together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from pullback.check.find.target import package_of
from pullback.check.rules import all_rules, selected
from pullback.check.runner.outcome import Outcome
from pullback.check.runner.targets import audit_targets, list_subjects
from pullback.check.subject import Given, Options
from pullback.fix.behaviour import differences
from pullback.fix.choose import resolved_rules, still_wrong, style_rules, unsafe_after, wrong_in_style
from pullback.fix.edit import with_backwards
from pullback.fix.files import EditableFile, overlay
from pullback.fix.patch import CannotFixError, FixResult, FunctionKey, Patch
from pullback.fix.setup_context import other_use, with_new_styles


class PatchProver:
    """The new source of one file, with the patches that pass.

    Args:
        file: the current one.
        before: outcomes of the audit of its functions, by line.
        options: options of that audit. The new source is audited by every rule, except ignored ones without a proof.
        load: returns the source of example inputs.
        unsafe: whether to keep fixes that may go against the author's intent.

    Attributes:
        results: the result of each patch.
        content: the new source.
        after: outcomes of its audit, by the lines before.
    """

    def __init__(
        self,
        file: EditableFile,
        before: Mapping[int, Outcome],
        options: Options,
        load: Callable[[], Given],
        unsafe: bool,
    ) -> None:
        self.results: list[FixResult] = []
        self.content = file.content
        self.after: dict[int, Outcome] = {}
        self._file, self._before, self._unsafe = file, before, unsafe
        ignored = options.ignore or ("-",)
        ignore = tuple(rule.id for rule in all_rules() if rule.id.startswith(ignored) and not rule.proves)
        self._options, self._load = replace(options, select=(), ignore=ignore), load
        self._selected = {rule.id for rule in selected(options)}

    def run(self, patches: Sequence[Patch]) -> None:
        """Apply the patches to the source, and reduce or drop those that fail until all pass."""
        left = [one for patch in patches if (one := self._applicable(patch)) is not None]
        positions = self._positions() if left else {}
        while left:
            content = self._patched(left)
            after = self._audit(content, positions)
            differs = self._differences(content, left, positions)
            judged = {one.key: self._judge(one, after.get(one.key.line), differs.get(one.key, "")) for one in left}
            failed = {one.key for one in left if not judged[one.key].rules}
            if not failed and (reason := self._harm(left, after)):
                self.results += [FixResult(one.key, (), reason) for one in left]
                return
            if not failed:
                self.content, self.after = content, after
                self.results += judged.values()
                return
            left = [reduced for one in left if (reduced := self._reduced(one, judged[one.key])) is not None]

    def _reduced(self, patch: Patch, result: FixResult) -> Patch | None:
        """A patch without the part that failed, if any did; if nothing is left, record the result."""
        if result.rules:
            return patch
        reduced = None if result.needs_flag else patch.with_less_style(result.note)
        if reduced is not None:
            return self._applicable(reduced)
        has_note = patch.backward is None and patch.style_note
        self.results.append(replace(result, note=patch.style_note) if has_note else result)
        return None

    def _applicable(self, patch: Patch) -> Patch | None:
        """A patch, reduced until it can be applied to the source; if nothing is left, record why."""
        candidate: Patch | None = patch
        while candidate is not None:
            patch = candidate
            try:
                if self._patched([patch]) != self._file.content:
                    return patch
                why = "its source would stay the same"
            except CannotFixError as error:
                why = str(error)
            candidate = patch.with_less_style(why)
        self.results.append(FixResult(patch.key, (), patch.style_note or why))
        return None

    def _patched(self, patches: Sequence[Patch]) -> bytes:
        """The source with patches applied.

        Raises:
            CannotFixError: if one of them cannot be applied.
        """
        content = with_backwards(self._file.content, {one.qualname: one.backward for one in patches if one.backward})
        for one in patches:
            if one.style and one.style.splits_forward and (why := other_use(self._file.path, one.qualname)):
                raise CannotFixError(why)
        return with_new_styles(content, {one.qualname: one.style for one in patches if one.style})

    def _differences(
        self, content: bytes, patches: Sequence[Patch], positions: Mapping[int, int]
    ) -> dict[FunctionKey, str]:
        """The effect of patches of style: on values, or on gradients where the backward stays."""
        restyled = [one for one in patches if one.style is not None and one.key.line in positions]
        if not restyled:
            return {}
        chosen = [positions[one.key.line] for one in restyled]
        with overlay({self._file.path: self._file.content}) as copies:  # as in `_positions`
            target = str(copies[self._file.path])
            found = differences(target, chosen, content, self._options, self._load)
        pairs = zip(restyled, found, strict=True)
        return {one.key: d.value or (d.gradient if one.backward is None else "") for one, d in pairs}

    def _positions(self) -> dict[int, int]:
        """Positions of the functions in scope among all of the file, by line; a patch changes no position.

        The order of functions depends on the path of their file, so it is taken in the overlay.
        """
        with overlay({self._file.path: self._file.content}) as copies:
            copy = str(copies[self._file.path])
            inside = {i: s.location for i, s in enumerate(list_subjects(copy)) if s.location.file == copy}
        return {at.line: i for i, at in inside.items() if at.line is not None and at.line in self._before}

    def _audit(self, content: bytes, positions: Mapping[int, int]) -> dict[int, Outcome]:
        """Outcomes of the audit of a new source, by the lines before."""
        path = self._file.path
        root = package_of(path)[0]
        with overlay({path: content}) as copies:
            copy = str(copies[path])
            found = audit_targets([copy], self._options, self._load, only=set(positions.values()))
        lines = sorted(positions, key=positions.__getitem__)
        copied_root = copy[: -len(str(path.relative_to(root)))].rstrip("/")
        return {
            line: _relocated(one, self._before[line], copied_root, str(root))
            for line, one in zip(lines, found, strict=True)
        }

    def _judge(self, patch: Patch, after: Outcome | None, differs: str) -> FixResult:
        """Result of a patch; without rules if it fails."""
        if after is None:
            return FixResult(patch.key, (), "the audit does not find it in the new source")
        before = self._before[patch.key.line].findings
        if patch.backward is not None and (why := still_wrong(before, after.findings)):
            return FixResult(patch.key, (), why)
        if patch.style is not None and (why := wrong_in_style(before, after.findings, self._selected) or differs):
            return FixResult(patch.key, (), why)
        unsafe = (patch.unsafe or unsafe_after(after.findings)) if patch.backward is not None else ""
        if unsafe and not self._unsafe:
            return FixResult(patch.key, (), unsafe, needs_flag=True)
        rules = resolved_rules(
            [*patch.rules, *(style_rules(before) if patch.style is not None else ())], after.findings
        )
        note = unsafe or ("" if rules else "the new style would resolve no finding")
        return FixResult(patch.key, rules, note, style_note=patch.style_note)

    def _harm(self, patches: Collection[Patch], after: Mapping[int, Outcome]) -> str:
        """An error that another function of the file would get; empty if none would."""
        patched = {one.key.line for one in patches}
        for line in after.keys() - patched:
            known = {f.rule for f in self._before[line].findings}
            for f in after[line].findings:
                if f.severity == "error" and f.rule in self._selected - known:
                    return f"{f.subject} would have {f.rule}: {f.message}"
        return ""


def _relocated(after: Outcome, before: Outcome, copied_root: str, root: str) -> Outcome:
    """An outcome of the overlay as one of the file itself."""
    name, file = before.result.name, before.result.location.file
    findings = tuple(
        replace(
            f,
            subject=name,
            location=replace(f.location, file=file),
            reproduce=f.reproduce.replace(copied_root, root),
        )
        for f in after.findings
    )
    result = replace(after.result, name=name, location=replace(after.result.location, file=file))
    return replace(after, result=result, findings=findings)

"""`pullback.Report`: the outcome of an audit, which prints itself as text or, in a notebook, as HTML."""

from __future__ import annotations

from pullback.report.model import ReportData


class Report(ReportData):
    """The outcome of an audit.

    Attributes:
        subjects: every subject, in source order.
        findings: every finding, the most severe first within a subject.
        allowed: how many findings an inline `# pullback: allow[NAME] reason` silenced.
        known: how many a baseline has.
    """

    __slots__ = ()

    def _repr_html_(self) -> str:
        from pullback.report.html import to_frame

        return to_frame(self)

    def __str__(self) -> str:
        from pullback.report.terminal import render_text

        return render_text(self, for_all=".in_full()")

    def in_full(self) -> str:
        """Return the text with every finding and its script, as `pullback check -v` prints it."""
        from pullback.report.terminal import render_text

        return render_text(self, in_full=True)

    def __repr__(self) -> str:
        s = self.summary
        return (
            f"<pullback.Report {'ok' if self.ok else 'not ok'}: {s['subjects']} subjects, {s['errors']} errors, "
            f"{s['warnings']} warnings, {s['infos']} infos, {s['unaudited']} unaudited>"
        )

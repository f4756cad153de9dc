"""A mutant: one textual patch of one right Function, and the rules that should find it."""

from dataclasses import dataclass

INFORMS = ("PB410", "PB415", "PB704")
"""Rules that only give infos: PyTorch drops any backward there, or most backwards do some unneeded work."""


@dataclass(frozen=True)
class Mutant:
    """A planted bug.

    `old` occurs exactly once in the base's source and becomes `new`; `also` holds further such pairs where a
    bug needs two places. `mode` is the row of the table of failure modes (0: waste, which is not in the table).
    An error of any rule catches a mutant; so does a warning of a rule in `expects`, or its info if the rule only
    gives infos. `survives` is the reason why a mutant is not caught.
    """

    id: str
    base: str
    old: str
    new: str
    mode: int
    expects: tuple[str, ...]
    note: str
    also: tuple[tuple[str, str], ...] = ()
    survives: str = ""

    @property
    def slug(self) -> str:
        """The id as a module name."""
        return self.id.replace("/", "_").replace("-", "_")

    def caught_by(self, findings) -> tuple[str, ...]:
        """The rules whose findings kill this mutant."""
        return tuple(
            dict.fromkeys(
                finding.rule
                for finding in findings
                if finding.severity == "error" or (finding.rule in self.expects and _tells(finding))
            )
        )


def _tells(finding) -> bool:
    """True of a warning, and of an info that says `wrong` where its rule gives infos alone."""
    return finding.severity == "warning" or (finding.rule in INFORMS and finding.verdict == "wrong")

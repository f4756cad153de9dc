"""What a mutant is: one textual patch of one right Function, and what should notice it."""

from dataclasses import dataclass

INFORMS = ("PB410", "PB415", "PB704")
"""Rules that give infos alone, as their pages say: PyTorch drops any backward there, and most backwards waste some."""


@dataclass(frozen=True)
class Mutant:
    """A seeded bug.

    `old` occurs exactly once in the base's source and becomes `new`; `also` holds further such pairs where a
    bug needs two places. `mode` is the row of the table of failure modes (0: waste, which it does not list),
    `expects` the rules of which a warning already counts as caught (an error of any rule always does), and of those
    that only inform, what they say. `survives` is the reason why a mutant is not caught, where it is not.
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
    """Whether a finding is a warning, or says that something is wrong where its rule gives infos alone."""
    return finding.severity == "warning" or (finding.rule in INFORMS and finding.verdict == "wrong")

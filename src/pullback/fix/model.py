"""What passes between the parts: a new backward as data, and what was decided for each function."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal


class CannotFixError(Exception):
    """A function stays as it is; the message says why, in one clause."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Something that a forward keeps for its backward.

    Attributes:
        what: a tensor that is saved, or the shape or the value of an argument, which becomes an attribute of `ctx`.
        of: whether of an argument of the forward or of an output.
        position: among those.
        name: of it, in a forward that saves.
        attribute: what the attribute is called; empty for a tensor that is saved.
    """

    what: Literal["tensor", "shape", "value"]
    of: Literal["input", "output"]
    position: int
    name: str
    attribute: str = ""


@dataclass(frozen=True, slots=True)
class Derived:
    """A backward that follows from a forward.

    Attributes:
        parameters: of the backward.
        body: its lines.
        kept: what it reads of the forward.
        only: what it holds for, where the forward takes more; empty otherwise.
    """

    parameters: tuple[str, ...]
    body: tuple[str, ...]
    kept: tuple[Kept, ...]
    only: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data that JSON can hold."""
        return asdict(self)


def derived_from_dict(data: dict[str, Any]) -> Derived:
    """Rebuild what `to_dict` gave."""
    kept = tuple(Kept(**one) for one in data["kept"])
    return Derived(tuple(data["parameters"]), tuple(data["body"]), kept, data["only"])


@dataclass(frozen=True, slots=True)
class Key:
    """Which function of a target: its name in the report, its file and line there."""

    name: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A function with something to mend, and the backward that may do so.

    Attributes:
        key: which.
        qualname: of it in its file.
        derived: the new backward.
        rules: ids of what is to be mended.
        unsafe: why it may change what the author meant; empty if nothing says so.
    """

    key: Key
    qualname: str
    derived: Derived
    rules: tuple[str, ...]
    unsafe: str = ""


@dataclass(frozen=True, slots=True)
class Told:
    """What became of one function.

    Attributes:
        key: which.
        rules: ids of what was mended; empty if it stays as it is.
        note: why it stays, or why its fix is unsafe; empty otherwise.
        needs_flag: whether it stays for want of `--unsafe-fixes`.
    """

    key: Key
    rules: tuple[str, ...]
    note: str = ""
    needs_flag: bool = False

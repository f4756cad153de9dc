"""What passes between the parts: what is to change, as data, and what was decided for each function."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
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
class Restyle:
    """How a Function is to be put into the new style.

    Attributes:
        plain: names of arguments of the forward that are no tensors.
        is_split: whether its forward is to be without its context, which `setup_context` gets.
    """

    plain: tuple[str, ...] = ()
    is_split: bool = True


@dataclass(frozen=True, slots=True)
class Key:
    """Which function of a target: its name in the report, its file and line there."""

    name: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A function with something to mend, and what may do so.

    Attributes:
        key: which.
        qualname: of it in its file.
        derived: the new backward; `None` if the old one stays.
        restyle: how it gets the new style; `None` if its style stays.
        rules: ids of what a new backward is to mend.
        unsafe: why it may change what the author meant; empty if nothing says so.
        remains: why something of the old style stays; empty if nothing does, or was to go.
    """

    key: Key
    qualname: str
    derived: Derived | None
    restyle: Restyle | None
    rules: tuple[str, ...]
    unsafe: str = ""
    remains: str = ""

    def less(self, why: str) -> Candidate | None:
        """Return it with less of the new style, which cannot be had; `None` if nothing would be left to change.

        Args:
            why: it cannot be had.
        """
        if self.restyle is None:
            return None
        if self.restyle.is_split:
            return replace(self, restyle=replace(self.restyle, is_split=False), remains=why)
        return replace(self, restyle=None) if self.derived is not None else None


@dataclass(frozen=True, slots=True)
class Told:
    """What became of one function.

    Attributes:
        key: which.
        rules: ids of what was mended; empty if it stays as it is.
        note: why it stays, or why its fix is unsafe; empty otherwise.
        remains: why something of the old style stays in what was mended; empty otherwise.
        needs_flag: whether it stays for want of `--unsafe-fixes`.
    """

    key: Key
    rules: tuple[str, ...]
    note: str = ""
    needs_flag: bool = False
    remains: str = ""

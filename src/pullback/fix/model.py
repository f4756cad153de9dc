"""Data passed between the steps of a fix: the changes, and the decision on each function."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal


class CannotFixError(Exception):
    """A function that stays unchanged; the message gives the reason, in one clause."""


@dataclass(frozen=True, slots=True)
class Kept:
    """One residual of a forward.

    Attributes:
        what: a saved tensor, or the shape or the value of an argument, which becomes an attribute of `ctx`.
        of: whether it is an argument of the forward or an output.
        position: among those.
        name: of it, in a forward that saves.
        attribute: name of the attribute; empty for a saved tensor.
    """

    what: Literal["tensor", "shape", "value"]
    of: Literal["input", "output"]
    position: int
    name: str
    attribute: str = ""


@dataclass(frozen=True, slots=True)
class Derived:
    """A backward derived from a forward.

    Attributes:
        parameters: of the backward.
        body: its lines.
        kept: its residuals.
        only: the inputs for which it holds, if the forward takes more; empty otherwise.
    """

    parameters: tuple[str, ...]
    body: tuple[str, ...]
    kept: tuple[Kept, ...]
    only: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data that JSON can hold."""
        return asdict(self)


def derived_from_dict(data: dict[str, Any]) -> Derived:
    """Rebuild it from the result of `to_dict`."""
    kept = tuple(Kept(**one) for one in data["kept"])
    return Derived(tuple(data["parameters"]), tuple(data["body"]), kept, data["only"])


@dataclass(frozen=True, slots=True)
class Restyle:
    """The change of a Function to the new style.

    Attributes:
        plain: names of arguments of the forward that are no tensors.
        is_split: whether its forward loses its context, which `setup_context` gets.
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
    """A function with something to mend, and its possible fixes.

    Attributes:
        key: of the function.
        qualname: of it in its file.
        derived: the new backward; `None` if the old one stays.
        restyle: the change to the new style; `None` if its style stays.
        rules: ids of the findings that a new backward is to mend.
        unsafe: why it may change the author's intent; empty if nothing suggests so.
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
    """Result of a fix for one function.

    Attributes:
        key: of the function.
        rules: ids of the mended findings; empty if it stays unchanged.
        note: why it stays, or why its fix is unsafe; empty otherwise.
        remains: why something of the old style stays in the mended function; empty otherwise.
        needs_flag: whether it stays only because `--unsafe-fixes` was not given.
    """

    key: Key
    rules: tuple[str, ...]
    note: str = ""
    needs_flag: bool = False
    remains: str = ""

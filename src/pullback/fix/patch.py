"""A patch of one autograd.Function: its new backward, its new style, and the result of the fix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from pullback.check.subject import Subject
from pullback.report.model import SubjectResult

ValueOrigin = Literal["input", "output"]
"""Argument of a forward, or its result."""


class CannotFixError(Exception):
    """A function that stays unchanged; the message is the reason, in one clause."""


@dataclass(frozen=True, slots=True)
class SavedValue:
    """Residual that a new backward reads.

    Attributes:
        kind: a saved tensor, or the shape or the value of an argument, which becomes an attribute of `ctx`.
        origin: an argument of the forward, or an output.
        position: among those.
        name: variable in a forward that saves it.
        attribute: attribute of `ctx`; empty for a saved tensor.
    """

    kind: Literal["tensor", "shape", "value"]
    origin: ValueOrigin
    position: int
    name: str
    attribute: str = ""


@dataclass(frozen=True, slots=True)
class NewBackward:
    """Backward derived from a forward, as text.

    Attributes:
        parameters: its parameters.
        body: its lines.
        saved: the residuals that it reads.
        valid_for: the inputs for which it is right, if the forward takes more; empty otherwise.
    """

    parameters: tuple[str, ...]
    body: tuple[str, ...]
    saved: tuple[SavedValue, ...]
    valid_for: str = ""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> NewBackward:
        """Rebuild a backward from the result of `dataclasses.asdict`, sent through JSON."""
        saved = tuple(SavedValue(**one) for one in data["saved"])
        return cls(tuple(data["parameters"]), tuple(data["body"]), saved, data["valid_for"])


@dataclass(frozen=True, slots=True)
class NewStyle:
    """Change of a Function to the current style of PyTorch.

    Attributes:
        non_tensors: arguments of the forward that hold no tensor.
        splits_forward: whether the forward loses its context, which `setup_context` takes instead.
    """

    non_tensors: tuple[str, ...] = ()
    splits_forward: bool = True


@dataclass(frozen=True, slots=True)
class FunctionKey:
    """Identity of an audited function: its name in the report, its file and its line."""

    name: str
    file: str
    line: int

    @classmethod
    def of(cls, function: Subject | SubjectResult) -> FunctionKey:
        """Key of a function."""
        return cls(function.name, function.location.file or "", function.location.line or 0)


@dataclass(frozen=True, slots=True)
class Patch:
    """Proposed change of one function.

    Attributes:
        key: the function.
        qualname: its qualified name in its file.
        backward: the new backward; `None` if the old one stays.
        style: the change of style; `None` if the style stays.
        rules: findings that a new backward is to resolve.
        unsafe: why the patch may go against the author's intent; empty if nothing suggests so.
        style_note: why part of the old style stays; empty if no part does, or none was to go.
    """

    key: FunctionKey
    qualname: str
    backward: NewBackward | None
    style: NewStyle | None
    rules: tuple[str, ...]
    unsafe: str = ""
    style_note: str = ""

    def with_less_style(self, why: str) -> Patch | None:
        """Drop the part of the new style that failed; `None` if the patch would then change nothing.

        Args:
            why: reason of the failure.
        """
        if self.style is None:
            return None
        if self.style.splits_forward:
            return replace(self, style=replace(self.style, splits_forward=False), style_note=why)
        return replace(self, style=None) if self.backward is not None else None


@dataclass(frozen=True, slots=True)
class FixResult:
    """Result of a fix for one function.

    Attributes:
        key: the function.
        rules: findings that the fix resolves; empty if the function stays unchanged.
        note: why the function stays, or why its fix is unsafe; empty otherwise.
        needs_flag: whether the function stays only because `--unsafe-fixes` was not given.
        style_note: why part of the old style stays in a fixed function; empty otherwise.
    """

    key: FunctionKey
    rules: tuple[str, ...]
    note: str = ""
    needs_flag: bool = False
    style_note: str = ""

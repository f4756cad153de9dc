"""Search for fixes of functions, in a separate process, which imports the author's code."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from pullback import _torch
from pullback.check.runner.task import Sender, describe_failure
from pullback.check.subject import Given, Options, Subject
from pullback.errors import PullbackError
from pullback.fix.derive import derive
from pullback.fix.each import audited, do_each
from pullback.fix.model import CannotFixError, Derived, Key, derived_from_dict
from pullback.fix.style import own_source


@dataclass(frozen=True, slots=True)
class Found:
    """Search result for one function.

    Attributes:
        why: why there is no fix; empty if there is one.
        derived: the new backward; `None` if none was requested.
        plain: names of the non-tensor arguments.
        is_old: whether the forward takes the context.
        file: of the definition; empty if unknown.
        qualname: of the function in that file.
    """

    why: str = ""
    derived: Derived | None = None
    plain: tuple[str, ...] = ()
    is_old: bool = False
    file: str = ""
    qualname: str = ""


def find_all(
    target: str, keys: Sequence[Key], backward: Collection[Key], options: Options, load: Callable[[], Given]
) -> dict[Key, Found]:
    """Return the possible fixes for some functions of a target.

    Args:
        target: the audited one.
        keys: of the functions.
        backward: keys of those that need a new backward.
        options: of the audit.
        load: returns the source of example inputs.

    Raises:
        PullbackError: if the target cannot be loaded, or the example inputs cannot.
    """

    def chosen(subjects: Sequence[Subject]) -> list[Subject | None]:
        known = {_key(subject): subject for subject in subjects}
        return [known.get(key) for key in keys]

    def do(subject: Subject | None, given: Given, sender: Sender) -> dict[str, Any]:
        derives = subject is not None and _key(subject) in backward
        return asdict(_found(subject, partial(_example, given=given, options=options, sender=sender), derives))

    task = do_each(target, chosen, do, load)
    results = ((key, task.of(i)) for i, key in enumerate(keys))
    return {key: Found(f"reading how to mend it, {r}") if isinstance(r, str) else _from_dict(r) for key, r in results}


def _from_dict(data: Mapping[str, Any]) -> Found:
    derived = derived_from_dict(data["derived"]) if data["derived"] is not None else None
    return Found(**{**data, "derived": derived, "plain": tuple(data["plain"])})


def _key(subject: Subject) -> Key:
    return Key(subject.name, subject.location.file or "", subject.location.line or 0)


def _found(subject: Subject | None, example: Callable[[Subject], tuple[Any, ...]], derives: bool) -> Found:
    if subject is None or subject.kind != "function" or subject.target is None:
        return Found("it is no autograd.Function that can be called")
    try:
        source = own_source(subject)
        args = example(subject)
        return Found(
            derived=derive(subject, args) if derives else None,
            plain=_plain(subject, args),
            is_old=not source.defines("setup_context"),
            file=str(Path(source.file).resolve()),
            qualname=source.qualname,
        )
    except CannotFixError as error:
        return Found(str(error))
    except PullbackError:
        raise
    except Exception as error:  # a bug of ours is reported for this function, and the others still get their fixes
        return Found(f"Pullback failed, which is a bug of it: {describe_failure(error)}")


def _example(subject: Subject, given: Given, options: Options, sender: Sender) -> tuple[Any, ...]:
    """Return the arguments of the audit's example."""
    args, kwargs, _ = audited(subject, given, options, sender).base.arguments()
    if kwargs:
        raise CannotFixError("its example has keyword arguments")
    return tuple(args)


def _plain(subject: Subject, args: Sequence[Any]) -> tuple[str, ...]:
    """Return the names of arguments that hold no tensor; one that is None may be a tensor in another call."""
    assert subject.source is not None  # its source was read
    a = subject.source.methods["forward"].args
    names = [one.arg for one in (*a.posonlyargs, *a.args)][0 if subject.source.defines("setup_context") else 1 :]
    return tuple(
        name
        for name, value in zip(names, args, strict=False)
        if value is not None and not any(isinstance(leaf, Tensor) for leaf in _torch.tree_leaves(value)[0])
    )

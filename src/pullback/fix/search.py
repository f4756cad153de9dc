"""Search for the changes that functions allow, in a worker process: new backwards, and what the new style needs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pullback import _torch
from pullback.check.find.kernels import recording
from pullback.check.find.syntax import positional_parameters
from pullback.check.runner.task import Sender, describe_failure
from pullback.check.subject import Given, Options, Subject
from pullback.errors import PullbackError
from pullback.fix.backward import derive
from pullback.fix.patch import CannotFixError, FunctionKey, NewBackward
from pullback.fix.source import editable_source
from pullback.fix.worker import prepared_audit, run_worker


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Changes that one function allows.

    Attributes:
        why: why there are none; empty otherwise.
        backward: the new backward; `None` if none was requested.
        non_tensors: names of the arguments that hold no tensor.
        is_old: whether the forward takes the context.
        file: file of the definition; empty if unknown.
        qualname: qualified name in that file.
    """

    why: str = ""
    backward: NewBackward | None = None
    non_tensors: tuple[str, ...] = ()
    is_old: bool = False
    file: str = ""
    qualname: str = ""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SearchResult:
        """Rebuild a result from that of `dataclasses.asdict`, sent through JSON."""
        backward = NewBackward.from_dict(data["backward"]) if data["backward"] is not None else None
        return cls(**{**data, "backward": backward, "non_tensors": tuple(data["non_tensors"])})


def search(
    target: str,
    keys: Sequence[FunctionKey],
    backward: Collection[FunctionKey],
    options: Options,
    load: Callable[[], Given],
) -> dict[FunctionKey, SearchResult]:
    """Search for changes of some functions of a target.

    Args:
        target: the audited one.
        keys: the functions.
        backward: those that need a new backward.
        options: options of the audit.
        load: returns the source of example inputs.

    Raises:
        PullbackError: if the target cannot be loaded, or the example inputs cannot.
    """

    def select(subjects: Sequence[Subject]) -> list[Subject | None]:
        known = {FunctionKey.of(subject): subject for subject in subjects}
        return [known.get(key) for key in keys]

    def work(subject: Subject | None, given: Given, sender: Sender) -> dict[str, Any]:
        derives = subject is not None and FunctionKey.of(subject) in backward
        return asdict(_search(subject, partial(_example, given=given, options=options, sender=sender), derives))

    task = run_worker(target, select, work, load)
    results = ((key, task.result(i)) for i, key in enumerate(keys))
    return {
        key: SearchResult(f"while a fix was derived, {found}")
        if isinstance(found, str)
        else SearchResult.from_dict(found)
        for key, found in results
    }


def _search(subject: Subject | None, example: Callable[[Subject], tuple[Any, ...]], derives: bool) -> SearchResult:
    if subject is None or subject.kind != "function" or subject.target is None:
        return SearchResult("it is not an autograd.Function that can be called")
    try:
        source = editable_source(subject)
        args = example(subject)
        if derives and _launches_kernels(subject, args):
            raise CannotFixError("its forward launches Triton kernels, of which no derivative is derived")
        return SearchResult(
            backward=derive(subject, args) if derives else None,
            non_tensors=_non_tensors(subject, args),
            is_old=not source.defines("setup_context"),
            file=str(Path(source.file).resolve()),
            qualname=source.qualname,
        )
    except CannotFixError as error:
        return SearchResult(str(error))
    except PullbackError:
        raise
    except Exception as error:  # a bug of ours is reported for this function, and the others still get their fixes
        return SearchResult(f"Pullback failed, which is a bug in Pullback: {describe_failure(error)}")


def _example(subject: Subject, given: Given, options: Options, sender: Sender) -> tuple[Any, ...]:
    """Arguments of the audit's example."""
    args, kwargs, _ = prepared_audit(subject, given, options, sender).base.arguments()
    if kwargs:
        raise CannotFixError("its example has keyword arguments")
    return tuple(args)


def _launches_kernels(subject: Subject, args: Sequence[Any]) -> bool:
    """Whether a forward launches kernels that are interpreted."""
    if not subject.is_interpreted:
        return False
    with recording() as world, torch.no_grad():
        subject.call(*args)
    return world.launches > 0


def _non_tensors(subject: Subject, args: Sequence[Any]) -> tuple[str, ...]:
    """Names of arguments that hold no tensor; an argument that is None may be a tensor in another call."""
    assert subject.source is not None  # by `editable_source`
    names = positional_parameters(subject.source.methods["forward"])[
        0 if subject.source.defines("setup_context") else 1 :
    ]
    return tuple(
        name
        for name, value in zip(names, args, strict=False)
        if value is not None and not any(isinstance(leaf, Tensor) for leaf in _torch.tree_leaves(value)[0])
    )

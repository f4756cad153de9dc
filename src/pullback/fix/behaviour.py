"""Comparison of a function in two sources, bit for bit: values, gradients and second derivatives, per audit case."""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from pullback.check.audit import Audit
from pullback.check.case import Case
from pullback.check.find.syntax import definitions
from pullback.check.runner.task import Sender, describe_failure
from pullback.check.subject import Given, Options, Subject
from pullback.check.trial import Raised, forward, guarded, reseed, standard_cotangents
from pullback.check.variants import variants_of
from pullback.fix.worker import prepared_audit, run_worker

_MAX_CASES = 60
"""Cases of one function."""

Digests = tuple[str, str]
"""Digest of the values in a case, and that of the gradients and second derivatives; or the errors in their place."""


@dataclass(frozen=True, slots=True)
class BitDifference:
    """Difference between two versions of a function; both fields are empty if there is none.

    Attributes:
        value: a difference of values.
        gradient: a difference of gradients alone.
    """

    value: str = ""
    gradient: str = ""


def differences(
    target: str,
    positions: Sequence[int],
    content: bytes,
    options: Options,
    load: Callable[[], Given],
) -> list[BitDifference]:
    """Differences between the results of some functions in their file and in a new source of it.

    Both versions run in one process on the same inputs: first the current ones, then those of the new source.

    Args:
        target: the current file.
        positions: positions of the functions among all of the target.
        content: the new source of the file.
        options: options of the audit.
        load: returns the source of example inputs.

    Raises:
        PullbackError: if the target cannot be loaded, or the example inputs cannot.
    """
    tree = ast.parse(content)

    def select(subjects: Sequence[Subject]) -> list[Subject | None]:
        return [subjects[i] for i in positions]

    def work(subject: Subject | None, given: Given, sender: Sender) -> dict[str, Any]:
        assert subject is not None  # `select` returns no None
        try:
            return asdict(_difference(prepared_audit(subject, given, options, sender), tree))
        except Exception as error:  # any error of running the author's code: then nothing is proven
            return asdict(BitDifference(value=f"in the new style it was not run: {describe_failure(error)}"))

    task = run_worker(target, select, work, load)
    results = [task.result(i) for i in range(len(positions))]
    return [
        BitDifference(value=f"while it ran in the new style, {r}") if isinstance(r, str) else BitDifference(**r)
        for r in results
    ]


def _difference(audit: Audit, tree: ast.Module) -> BitDifference:
    cases = [audit.base, *(case for case, _ in islice(variants_of(audit), _MAX_CASES - 1))]
    # The current version runs first: `_defined` replaces its name in the module.
    current = [_digests(audit, audit.subject, case) for case in cases]
    new = replace(audit.subject, target=_defined(audit.subject, tree))
    found = BitDifference()
    for case, (values, gradients) in zip(cases, current, strict=True):
        new_values, new_gradients = _digests(audit, new, case)
        if new_values != values:
            return BitDifference(value=f"in the new style it gives another value for {case.describe()}")
        if new_gradients != gradients and not found.gradient:
            found = BitDifference(gradient=f"in the new style it gives another gradient for {case.describe()}")
    return found


def _defined(subject: Subject, tree: ast.Module) -> Any:
    """Define the class of a new source in the module of the current one, under the same name."""
    assert subject.source is not None  # it was edited
    [node] = [one.node for one in definitions(tree) if one.qualname == subject.source.qualname]
    future = [one for one in tree.body if isinstance(one, ast.ImportFrom) and one.module == "__future__"]
    space = vars(sys.modules[subject.target.__module__])
    exec(compile(ast.Module([*future, node], []), subject.source.file, "exec"), space)
    defined = space[node.name]
    return defined.__func__ if isinstance(defined, staticmethod) else defined  # a nested class may be decorated so


def _digests(audit: Audit, subject: Subject, case: Case) -> Digests:
    audit.events.beat()
    try:
        run = forward(subject, case)
        values = _digest([*run.outputs, *(a for a in run.arguments if isinstance(a, Tensor))])
    except Raised as error:
        return _described(error), ""
    count = len(case.wrt)
    # Gradients of all inputs at once and, where there are several, of each alone.
    alone = [[i == j for j in range(count)] for i in range(count)] if count > 1 else []
    return values, " ".join(_gradients(subject, case, mask) for mask in [[True] * count, *alone])


def _gradients(subject: Subject, case: Case, mask: Sequence[bool]) -> str:
    """Digest of the gradients of the masked inputs, and of their derivatives by inputs and cotangents."""
    try:
        run = forward(subject, case, mask)
        asked = [x for x in run.inputs if x.requires_grad]
        cotangents = [g.requires_grad_() for g in standard_cotangents(run.roots)]
        if not cotangents or not asked:
            return ""
        reseed()
        with guarded("backward"):
            first = torch.autograd.grad(run.roots, asked, cotangents, allow_unused=True, create_graph=True)
        roots = [g for g in first if g is not None and g.requires_grad]
        digest = _digest(first)
    except Raised as error:
        return _described(error)
    return f"{digest} {_second(roots, [*asked, *cotangents])}"


def _second(roots: Sequence[Tensor], asked: Sequence[Tensor]) -> str:
    if not roots:
        return ""
    try:
        return _digest(torch.autograd.grad(roots, asked, standard_cotangents(roots), allow_unused=True))
    except Exception as error:  # any error of differentiating the author's backward
        return type(error).__name__


def _described(error: Raised) -> str:
    return f"{error.stage} {type(error.error).__name__}"


def _digest(tensors: Sequence[Tensor | None]) -> str:
    digest = hashlib.sha256()
    for chunk in _chunks(tensors):
        digest.update(chunk)
    return digest.hexdigest()[:24]


def _chunks(tensors: Sequence[Tensor | None]) -> Iterator[bytes]:
    for t in tensors:
        if t is None:
            yield b"none"
            continue
        dense = t.detach().to_dense() if t.layout != torch.strided else t.detach()
        yield f"{t.dtype} {tuple(t.shape)} {t.layout} {t.requires_grad}".encode()
        yield dense.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()

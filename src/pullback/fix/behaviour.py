"""Whether a function gives the same by another source, bit for bit, in each case that the audit tries."""

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

from pullback.check.case import Case
from pullback.check.find.scopes import definitions
from pullback.check.runner.task import Sender, describe_failure
from pullback.check.state import Audit
from pullback.check.subject import Given, Options, Subject
from pullback.check.trial import Raised, forward, guarded, reseed, standard_cotangents
from pullback.check.variants import variants_of
from pullback.fix.each import audited, do_each

_MOST = 60
"""Cases of one function."""

Behaviour = tuple[str, str]
"""Values in a case, with gradients and second derivatives."""


def differences(
    target: str,
    positions: Sequence[int],
    content: bytes,
    options: Options,
    load: Callable[[], Given],
) -> list[Difference]:
    """Return the case, if any, in which another source of some functions would change a bit of their results.

    Both run in one process on the same inputs: first the old functions, then those that the other source defines.

    Args:
        target: the current file.
        positions: of the functions among all of the target.
        content: the other source of the file.
        options: of the audit.
        load: returns the source of example inputs.

    Raises:
        PullbackError: if the target cannot be loaded, or the example inputs cannot.
    """
    tree = ast.parse(content)

    def chosen(subjects: Sequence[Subject]) -> list[Subject | None]:
        return [subjects[i] for i in positions]

    def do(subject: Subject | None, given: Given, sender: Sender) -> dict[str, Any]:
        assert subject is not None  # it was chosen by its place
        try:
            return asdict(_difference(audited(subject, given, options, sender), tree))
        except Exception as error:  # any error of running the author's code again: then nothing is proven
            return asdict(Difference(value=f"in the new style it was not run: {describe_failure(error)}"))

    task = do_each(target, chosen, do, load)
    results = [task.of(i) for i in range(len(positions))]
    return [
        Difference(value=f"running it in the new style, {r}") if isinstance(r, str) else Difference(**r)
        for r in results
    ]


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference between two functions; both fields are empty if there is none.

    Attributes:
        value: in its value.
        gradient: in its gradients alone.
    """

    value: str = ""
    gradient: str = ""


def _difference(audit: Audit, tree: ast.Module) -> Difference:
    cases = [audit.base, *(case for case, _ in islice(variants_of(audit), _MOST - 1))]
    old = [_in_case(audit, audit.subject, case) for case in cases]
    other = replace(audit.subject, target=_defined(audit.subject, tree))
    found = Difference()
    for case, (values, gradients) in zip(cases, old, strict=True):
        got = _in_case(audit, other, case)
        if got[0] != values:
            return Difference(value=f"in the new style it gives another value for {case.describe()}")
        if got[1] != gradients and not found.gradient:
            found = Difference(gradient=f"in the new style it gives another gradient for {case.describe()}")
    return found


def _defined(subject: Subject, tree: ast.Module) -> Any:
    """Define a class of another source beside its old version, under the old name."""
    assert subject.source is not None  # it was edited
    [node] = [one.node for one in definitions(tree) if one.qualname == subject.source.qualname]
    future = [one for one in tree.body if isinstance(one, ast.ImportFrom) and one.module == "__future__"]
    space = vars(sys.modules[subject.target.__module__])
    exec(compile(ast.Module([*future, node], []), subject.source.file, "exec"), space)
    defined = space[node.name]
    return defined.__func__ if isinstance(defined, staticmethod) else defined  # a class inside of a class may be one


def _in_case(audit: Audit, subject: Subject, case: Case) -> Behaviour:
    audit.events.beat()
    try:
        run = forward(subject, case)
        values = _told([*run.outputs, *(a for a in run.arguments if isinstance(a, Tensor))])
    except Raised as error:
        return _raised(error), ""
    masks = [[True] * len(case.wrt), *([i == j for j in range(len(case.wrt))] for i in range(len(case.wrt)))]
    return values, " ".join(_gradients(subject, case, mask) for mask in masks[: 1 + (len(case.wrt) > 1) * len(masks)])


def _gradients(subject: Subject, case: Case, mask: Sequence[bool]) -> str:
    """Return the gradients of the masked inputs, and how these depend on the inputs and the cotangents."""
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
        told = _told(first)
    except Raised as error:
        return _raised(error)
    return f"{told} {_second(roots, [*asked, *cotangents])}"


def _second(roots: Sequence[Tensor], asked: Sequence[Tensor]) -> str:
    if not roots:
        return ""
    try:
        return _told(torch.autograd.grad(roots, asked, standard_cotangents(roots), allow_unused=True))
    except Exception as error:  # any error of differentiating the author's backward
        return type(error).__name__


def _raised(error: Raised) -> str:
    return f"{error.stage} {type(error.error).__name__}"


def _told(tensors: Sequence[Tensor | None]) -> str:
    digest = hashlib.sha256()
    for part in _parts(tensors):
        digest.update(part)
    return digest.hexdigest()[:24]


def _parts(tensors: Sequence[Tensor | None]) -> Iterator[bytes]:
    for t in tensors:
        if t is None:
            yield b"none"
            continue
        dense = t.detach().to_dense() if t.layout != torch.strided else t.detach()
        yield f"{t.dtype} {tuple(t.shape)} {t.layout} {t.requires_grad}".encode()
        yield dense.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()

"""not-copyable (PB414): a module that uses the function cannot be deep-copied or pickled, or the copy differs.

## What it finds
A `torch.nn.Module` that holds the function as an attribute is copied by `copy.deepcopy` and by `pickle`. A copy whose
gradient differs is an error; an exception is a warning. A function defined inside a function or in a notebook, and a
`torch.library` custom op, can never be pickled: that is an info.

## Why it hurts
Weight averaging, best-model snapshots and ensembles deep-copy the module. Data loaders and `torch.multiprocessing`
pickle it.

## Limits
The pickle is loaded immediately, in the same process, and is never written to disk.

## Bad
```python
import threading


class Scale:
    def __init__(self):
        self.lock = threading.Lock()

    def __call__(self, x):
        with self.lock:
            return 2 * x


example = Scale()
```

## Good
```python
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g
```
"""

from __future__ import annotations

import copy
import pickle
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pullback.check.contexts.compare import PRINT, ContextCall, compare_one
from pullback.check.contexts.eager import EagerReference, base_setting, pure
from pullback.check.rules._rule import Rule
from pullback.check.subject import Subject
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_HINT = "its derivative depends on state that a copy does not share"
_OP = "hold torch.ops.NAMESPACE.NAME in its place: that can be deep-copied"
_NAMELESS = "define it at the top level of a module"
_STATE = "give it __deepcopy__ and __getstate__, or keep out of it what cannot be copied"


def _run(audit: Audit) -> Iterator[Finding]:
    setting = base_setting(audit)
    if setting is None:
        return
    excuse = _OP if audit.subject.kind == "op" else ""
    copied = _way("copy.deepcopy", copy.deepcopy, "copy.deepcopy(fn)", excuse)
    found = compare_one(audit, "PB414", setting, copied)
    if found is None:
        excuse = excuse or ("" if _has_a_name(audit.subject) else _NAMELESS)
        pickled = _way("pickle", _pickled, "pickle.loads(pickle.dumps(fn))", excuse)
        found = compare_one(audit, "PB414", setting, pickled)
    if found is not None and _OF_A_COPY.search(found.message) is None:
        yield found


_OF_A_COPY = re.compile(r"attribute lookup \S+ on __main__ failed")
"""The error for a class of a program that is audited in another process, where it came by value: it says nothing."""


class Module(torch.nn.Module):
    """Holds a function as an attribute, as layers do."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)


def _pickled(module: Module) -> Module:
    copied: Module = pickle.loads(pickle.dumps(module))
    return copied


def _has_a_name(subject: Subject) -> bool:
    """Whether the subject, or the class that it is an instance of, can be imported by its name."""
    target = subject.target if hasattr(subject.target, "__qualname__") else type(subject.target)
    names = str(target.__qualname__).split(".")
    module = sys.modules.get(str(target.__module__))
    return reduce(lambda owner, name: getattr(owner, name, None), names, module) is target


def _way(name: str, duplicate: Callable[[Module], Module], text: str, excuse: str) -> ContextCall:
    """Return the comparison of a copied module; `excuse` is the hint if its author is not at fault."""

    def run(setting: EagerReference) -> Sequence[Tensor | None]:
        module = duplicate(Module(setting.subject.called))
        return setting.gradient_of(pure(module, setting.case, setting.slots, setting.outputs))

    return ContextCall(
        name,
        run,
        [
            "import copy, pickle",
            f"fn = {text}",
            "got = torch.autograd.grad(call(*inputs), inputs, cotangents, allow_unused=True)",
            *PRINT,
        ],
        hint=_HINT,
        raising=excuse or _STATE,
        refused_as="info" if excuse else "warning",
    )


RULE = Rule(__doc__, runtime=_run, column="copies", context="copying and pickling")

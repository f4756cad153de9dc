"""Removes private names of PyTorch, each in a separate process, and prints what Pullback does then, as JSON.

The parent imports PyTorch and nothing of Pullback, and runs no backward: in a CUDA build none of its forks could.
"""

import functools
import importlib
import json
import os
import re
import sys
import warnings
from pathlib import Path

import torch

ATTRIBUTES = """
    torch.autograd.forward_ad._current_level torch.autograd.forward_ad._set_fwd_grad_enabled
    torch._ops.OpOverload.has_kernel_for_dispatch_key
    torch.utils._python_dispatch.TorchDispatchMode._should_skip_dynamo
    torch.fx.experimental.symbolic_shapes.StatelessSymbolicContext torch._dynamo.source.ConstantSource
    torch._guards.TracingContext
"""
"""Names that are looked up where they are used; `asked_for` finds those that are looked up at import.

Not `OPDEFS` and `CustomOpDef` of `torch._library.custom_ops`, without which PyTorch itself fails.
"""


def private_names():
    """Return the names that Pullback asks PyTorch for."""
    return [*sorted(asked_for()), *ATTRIBUTES.split()]


def asked_for():
    """Return the names that Pullback looks up at import."""
    folder = Path(__file__).resolve().parents[1] / "src" / "pullback" / "_torch"
    return {n for file in folder.glob("*.py") for n in re.findall(r'private\("(\S+)"\)', file.read_text("utf-8"))}


def take_away(name):
    """Remove a name: from what Pullback finds at its import, or from PyTorch, which may then not work itself."""
    home, _, attribute = name.rpartition(".")
    if name in asked_for() and home != "torch.Tensor":
        found = importlib.import_module

        def import_module(path, package=None):
            return _Without(found(path), attribute) if path == home else found(path, package)

        importlib.import_module = import_module
        return
    try:
        owner = importlib.import_module(home)
    except ImportError:
        module, _, cls = home.rpartition(".")
        owner = getattr(importlib.import_module(module), cls)
    try:
        delattr(owner, attribute)
    except (AttributeError, TypeError):  # of a class in C
        setattr(owner, attribute, property(lambda instance: getattr(object(), attribute)))


class _Without:
    """A module that lacks a name."""

    def __init__(self, module, attribute):
        self._module, self._attribute = module, attribute

    def __getattr__(self, name):
        if name == self._attribute:
            raise AttributeError(name)
        return getattr(self._module, name)


def outcomes():
    """Return, for each use of Pullback, "right", "WRONG", or the error."""
    said = {"import": _attempt(lambda: bool(importlib.import_module("pullback").function))}
    said["check"] = _attempt(_is_wrong_cube_found)
    for kind in ("derived", "relaxed", "ruled"):
        for way in WAYS:
            said[f"{kind}, {way}"] = _attempt(functools.partial(_is_kept, kind, way))
    return said


def _attempt(use):
    try:
        return "right" if use() else "WRONG"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _is_wrong_cube_found():
    """Audit in this process: a new interpreter would have the name."""
    from pullback.check.find.discover import subject_of
    from pullback.check.runner.subjects import audit_here
    from pullback.check.subject import Options
    from tests.check.contexts.test_eager import WrongCube

    example = [((torch.linspace(0.5, 2, 5, dtype=torch.float64),), {})]
    (outcome,) = audit_here([subject_of(WrongCube)], Options(select=("PB0", "PB1")), lambda subject: example)
    told = {f.rule: f.message for f in outcome.findings if f.severity == "error" or f.rule == "PB001"}
    if told and "PB101" not in told:
        raise RuntimeError("; ".join(told.values()))
    return bool(told)


def _is_kept(kind, way):
    """Whether an op has the declared value and the derivatives of x³; the value of relaxed and ruled ops is x."""
    import pullback

    ops = {
        "derived": lambda: pullback.function(lambda x: x * x * x),
        "relaxed": lambda: pullback.function(derivative_of=lambda x: x * x * x)(lambda x: x.clone()),
        "ruled": lambda: pullback.function(lambda x: x.clone()).vjp(lambda g, out, x: g * 3 * x * x),
    }
    x = torch.tensor([0.5, -1.25, 2.0], dtype=torch.float64)
    wanted = {"value": x**3 if kind == "derived" else x, "first": 3 * x**2, "second": 6 * x}
    return all(torch.equal(found.detach(), wanted[what]) for what, found in WAYS[way](ops[kind](), x).items())


def _recorded(op, x):
    x = x.clone().requires_grad_()
    out = op(x)
    (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    return {"value": out, "first": first, "second": second}


def _compiled(op, x):
    x = x.clone().requires_grad_()
    out = torch.compile(lambda t: op(t), backend="aot_eager")(x)
    return {"value": out, "first": torch.autograd.grad(out.sum(), x)[0]}


WAYS = {
    "no grad": lambda op, x: {"value": op(x)},
    "create_graph": _recorded,
    "grad": lambda op, x: {"first": torch.func.grad(lambda t: op(t).sum())(x)},
    "grad of grad": lambda op, x: {"second": torch.vmap(torch.func.grad(torch.func.grad(lambda t: op(t))))(x)},
    "jvp": lambda op, x: dict(zip(("value", "first"), torch.func.jvp(op, (x,), (torch.ones_like(x),)), strict=True)),
    "compile": _compiled,
}


def without(names):
    """Return the outcome of each use without the names, found in a child process; empty if that crashes."""
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        warnings.simplefilter("ignore")
        for name in names:
            take_away(name)
        with os.fdopen(sending, "w") as pipe:
            json.dump(outcomes(), pipe)
        os._exit(0)
    os.close(sending)
    with os.fdopen(receiving) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {}


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(json.dumps([name, without([name] if name != "nothing" else [])]), flush=True)

"""A random program as text: tensors, a formula over them, and how to call it.

A program is nothing but text: the text is run, printed on a failure, and copied into the test of a past failure.
"""

import ast
import itertools
import linecache
import re
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

PACKINGS = {
    "arguments": ("{names}", ""),
    "list": ("xs", "{names}, = xs"),
    "dict": ("xs", "{names}, = xs.values()"),
    "keywords": ("*, {names}", ""),
    "numbers by keyword": ("{names}", ""),
}
"""Ways to pass the inputs of a formula: its parameters, and its first line."""

_WIDE = {"bfloat16": "float64", "float16": "float64", "float32": "float64", "complex64": "complex128"}
_NARROW = re.compile(rf"\btorch\.({'|'.join(_WIDE)})\b")
_counter = itertools.count()


@dataclass(frozen=True)
class Program:
    """Inputs, one assignment a line, in terms of the sizes; and the body of a formula over them.

    Attributes:
        inputs: lines such as `a = torch.randn(n, m).requires_grad_()`.
        formula: lines, of which the last returns.
        sizes: what `n`, `m`, … are.
        packing: the way to pass the inputs, one of `PACKINGS`.
        seed: of the inputs, and of the random numbers of the formula.
    """

    inputs: str
    formula: str
    sizes: dict[str, int] = field(default_factory=dict)
    packing: str = "arguments"
    seed: int = 0

    @property
    def names(self) -> list[str]:
        """Names of the inputs."""
        return [line.targets[0].id for line in ast.parse(textwrap.dedent(self.inputs)).body]

    def make(self, sizes: dict[str, int] | None = None) -> dict[str, Any]:
        """Return new inputs."""
        space = {"torch": torch, **self.sizes, **(sizes or {})}
        torch.manual_seed(self.seed)
        with default_dtype(torch.float32):  # independent of the formula's default dtype
            exec(textwrap.dedent(self.inputs), space)
        return {name: space[name] for name in self.names}

    def function(self, wide: bool = False) -> Callable[..., Any]:
        """Return the formula; with `wide` in float64 and complex128."""
        parameters, first = (part.format(names=", ".join(self.names)) for part in PACKINGS[self.packing])
        lines = [first, *textwrap.dedent(self.formula).strip().splitlines()]
        text = f"def formula({parameters}):\n" + textwrap.indent("\n".join(line for line in lines if line), "    ")
        if wide:
            text = _NARROW.sub(lambda found: f"torch.{_WIDE[found[1]]}", text)
        module = types.ModuleType(f"program_{next(_counter)}")  # tracers import the module of a function
        sys.modules[module.__name__] = module
        file = f"<{module.__name__}>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        vars(module).update(torch=torch, F=torch.nn.functional)
        exec(compile(text, file, "exec"), vars(module))
        return module.formula  # type: ignore[no-any-return]

    def call(self, function: Callable[..., Any], inputs: dict[str, Any]) -> Any:
        """Call the formula, or an op made from it."""
        if self.packing == "arguments":
            return function(*inputs.values())
        if self.packing == "keywords":
            return function(**inputs)
        if self.packing == "numbers by keyword":
            tensors = [x for x in inputs.values() if isinstance(x, torch.Tensor)]
            return function(*tensors, **{name: x for name, x in inputs.items() if not isinstance(x, torch.Tensor)})
        return function(list(inputs.values()) if self.packing == "list" else inputs)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def widened(x: Any) -> Any:
    """Return an input in float64 or complex128, with the same strides, offset and gaps; others as they are."""
    if not isinstance(x, torch.Tensor) or not (x.is_floating_point() or x.is_complex()):
        return x
    flat = x.detach().as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
    wide = flat.to(torch.complex128 if x.is_complex() else torch.float64, copy=True)
    return wide.as_strided(x.shape, x.stride(), x.storage_offset()).requires_grad_(x.requires_grad)

"""The call of a kernel as a Python function generated for it: most of a small call's cost is Python."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

import torch

from pullback.graph.extents import Kind


def direct_call(
    run: Callable[..., Any],
    inputs: Sequence[Kind],
    outputs: Sequence[Kind],
    last: Sequence[Any],
    otherwise: Callable[..., Any],
) -> Callable[..., Any]:
    """Generate a function that allocates a kernel's outputs, runs it and returns one tensor, or a list of several.

    Args:
        run: the kernel: takes pointers to inputs and outputs, then `last`.
        inputs: shape, strides and dtype of each, in the strides that `last` is for.
        outputs: shape, strides and dtype of each.
        last: further arguments of the kernel.
        otherwise: runs it for inputs of other strides.
    """
    xs, ys = [f"x{i}" for i in range(len(inputs))], [f"y{i}" for i in range(len(outputs))]
    scope: dict[str, Any] = {"__name__": __name__, "run": run, "otherwise": otherwise, "last": tuple(last)}
    scope |= {"empty_like": torch.empty_like, "empty_strided": torch.empty_strided}
    known = {stride: f"s{k}" for k, stride in enumerate(dict.fromkeys(stride for _, stride, _ in inputs))}
    scope |= {name: stride for stride, name in known.items()}
    differs = [f"{x}.stride() != {known[stride]}" for x, (_, stride, _) in zip(xs, inputs, strict=True)]
    lines = [f"def call({', '.join(xs)}):"]
    if differs:
        lines += [f"    if {' or '.join(differs)}:", f"        return otherwise({', '.join(xs)})"]
    for i, (y, kind) in enumerate(zip(ys, outputs, strict=True)):
        like = next((x for x, given in zip(xs, inputs, strict=True) if given == kind), None)
        scope[f"of{i}"] = kind[:2]
        lines.append(f"    {y} = " + (f"empty_like({like})" if like else f"empty_strided(*of{i}, dtype={kind[2]})"))
    pointers = "".join(f"{t}.data_ptr(), " for t in (*xs, *ys))
    lines.append(f"    run({pointers}*last)")
    lines.append(f"    return {ys[0] if len(ys) == 1 else '[' + ', '.join(ys) + ']'}")
    scope["torch"] = torch
    exec(_code("\n".join(lines)), scope)
    made: Callable[..., Any] = scope["call"]
    return made


@functools.cache
def _code(text: str) -> CodeType:
    """Compile the text of a call; it is cached, since calls of other sizes have the same text."""
    return compile(text, "<call of a kernel>", "exec")

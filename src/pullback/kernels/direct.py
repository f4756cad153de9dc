"""The call of a kernel as a Python function written for it: most of what a small call costs is Python."""

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
    """Return what allocates the outputs of a kernel, runs it and returns them: one tensor, or a list of several.

    Args:
        run: the kernel: takes pointers to inputs and outputs, and what is `last`.
        inputs: what they are like, in strides that `last` is for.
        outputs: what they are like.
        last: other arguments of the kernel.
        otherwise: does the same for inputs of other strides.
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
    """Return what is the same for all sizes."""
    return compile(text, "<call of a kernel>", "exec")

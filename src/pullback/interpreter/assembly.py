"""Inline assembly of a kernel: PTX instructions that compute floats, one element at a time."""

from __future__ import annotations

import operator
import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from pullback.interpreter.errors import UnsupportedError
from pullback.interpreter.values import Array

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_PREDICATED = re.compile(r"@(!?)([%$\w]+)\s+(.*)", re.DOTALL)
_UNARY: dict[str, Callable[..., Any]] = {
    "mov": lambda x: x, "neg": operator.neg, "abs": np.abs, "ex2": np.exp2, "lg2": np.log2, "sqrt": np.sqrt,
    "rcp": lambda x: 1 / x, "rsqrt": lambda x: 1 / np.sqrt(x), "sin": np.sin, "cos": np.cos, "tanh": np.tanh,
}  # fmt: skip
_ARITHMETIC: dict[str, Callable[..., Any]] = _UNARY | {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.fmax, "min": np.fmin,
    "fma": lambda x, y, z: x * y + z, "mad": lambda x, y, z: x * y + z, "copysign": lambda x, y: np.copysign(y, x),
    "selp": lambda x, y, chosen: np.where(chosen, x, y),
}  # fmt: skip
_COMPARISONS: dict[str, Callable[..., Any]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
_FLOATS = ("f32", "f64")


def run(text: str, outputs: int, inputs: list[Array], held: Any) -> list[Array | None]:
    """Run assembly on arrays.

    Args:
        text: instructions, whose registers `$0`, `$1`, … are the outputs and then the inputs.
        outputs: number of outputs.
        inputs: arrays of floats, of shapes that broadcast.
        held: NumPy's type of the results.

    Returns:
        The outputs; `None` for one that no instruction writes.

    Raises:
        KernelError: an instruction is not one of these.
    """
    registers: dict[str, Any] = {f"${outputs + k}": x for k, x in enumerate(inputs)}
    for line in re.split(r"[;{}]", _COMMENT.sub("", text)):
        if instruction := line.strip():
            _execute(instruction, registers)
    found = [registers.get(f"${k}") for k in range(outputs)]
    return [None if x is None else np.asarray(x, held) for x in found]


def _execute(instruction: str, registers: dict[str, Any]) -> None:
    predicate: Any = True
    if match := _PREDICATED.fullmatch(instruction):
        predicate = _operand(match[2], registers)
        predicate = np.logical_not(predicate) if match[1] else predicate
        instruction = match[3]
    name, _, rest = instruction.partition(" ")
    op, *kinds = name.split(".")
    if name == ".reg" or op == "griddepcontrol":  # a declaration; a hint on when the next kernel may start
        return
    is_known = op in _ARITHMETIC or (op == "setp" and kinds[:1] and kinds[0] in _COMPARISONS)
    if op != "mov" and not (is_known and kinds and kinds[-1] in _FLOATS):
        raise UnsupportedError(f"the instruction {name} of inline assembly: not interpreted")
    target, *sources = (part.strip() for part in rest.split(","))
    function = _COMPARISONS[kinds[0]] if op == "setp" else _ARITHMETIC[op]
    new = function(*(_operand(x, registers) for x in sources))
    old = registers.get(target)
    registers[target] = new if predicate is True or old is None else np.where(predicate, new, old)


def _operand(text: str, registers: dict[str, Any]) -> Any:
    if text in registers:
        return registers[text]
    if text.startswith(("0f", "0F")):
        return struct.unpack(">f", bytes.fromhex(text[2:]))[0]
    try:
        return float(text)
    except ValueError:
        raise UnsupportedError(f"the operand {text} of inline assembly: not interpreted") from None

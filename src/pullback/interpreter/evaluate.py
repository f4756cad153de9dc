"""Evaluates the syntax tree of a kernel for many programs at once.

Where programs diverge, at a branch or at the end of a loop, each group goes on with its part of every value, and the
groups are joined after it. Programs that leave by `return`, `break` or `continue` wait until the function or the loop
ends for the others too.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import numpy as np
import triton
import triton.language as tl

from pullback.interpreter.errors import KernelError, UnsupportedError
from pullback.interpreter.language import BUILTINS, BlockPointer, libdevice
from pullback.interpreter.memory import Space
from pullback.interpreter.values import (
    Array,
    Precision,
    Value,
    binary,
    broadcast_to,
    cast,
    common_type,
    is_number,
    to_value,
    unary,
)
from pullback.interpreter.worlds import World

_BINARY = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Mod: "%", ast.FloorDiv: "//", ast.Pow: "**",
    ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>",
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip
_UNARY = {ast.USub: "-", ast.UAdd: "+", ast.Invert: "~", ast.Not: "not"}
_RETURNED = "return"
"""The name under which an environment has the returned value: no variable can be called so."""
_ROUNDS = 4
"""Rounds of a loop, at its start and at its end, that run where huge tensors are simulated."""
_UNROLLED = 10_000
"""Rounds of a loop beyond which no compiler would finish to unroll it."""
_RETURN, _BREAK, _CONTINUE, _GONE = "return", "break", "continue", "gone"


@dataclass(frozen=True, slots=True)
class Source:
    """A function of Triton: its syntax tree, and what its names stand for.

    Attributes:
        waits: whether programs may wait for one another in it.
        counts: whether what a program does there may depend on a counter that others have changed: the last program
            of a tile may add up what the others stored.
    """

    name: str
    file: str
    first_line: int
    node: ast.FunctionDef
    signature: inspect.Signature
    names: dict[str, Any]
    globals_: dict[str, Any]
    waits: bool
    counts: bool

    def line(self, node: ast.AST) -> int:
        """The line of a part of it, in its file."""
        return self.first_line + int(getattr(node, "lineno", 1)) - 1

    def lookup(self, name: str) -> Any:
        """Return the value of a name outside of the function."""
        for names in (self.names, self.globals_, vars(builtins)):
            if name in names:
                return names[name]
        raise KernelError(f"the name {name!r} is not defined here")


@functools.cache
def source_of(function: Any) -> Source:
    """Return the source of a Python function that Triton compiles.

    Raises:
        KernelError: there is none.
    """
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    except (OSError, TypeError, SyntaxError):
        raise KernelError(f"there is no source of {getattr(function, '__name__', function)}") from None
    if not isinstance(tree, ast.FunctionDef):
        raise KernelError(f"{function.__name__} is not defined by a def statement")
    closure = dict(inspect.getclosurevars(function).nonlocals)
    file = inspect.getsourcefile(function) or ""
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    known = function.__globals__ | closure
    helpers = [getattr(known.get(func.id), "fn", None) for func in calls if isinstance(func, ast.Name)]
    inner = [source_of(helper) for helper in helpers if isinstance(helper, FunctionType) and helper is not function]
    return Source(
        function.__name__,
        file,
        first,
        tree,
        inspect.signature(function),
        closure,
        function.__globals__,
        _waits(tree) or any(source.waits for source in inner),
        _counts(tree) or any(source.counts for source in inner),
    )


def _waits(tree: ast.FunctionDef) -> bool:
    """Whether there is a lock, or a loop whose test reads memory."""
    tests = [node.test for node in ast.walk(tree) if isinstance(node, ast.While)]
    called = [_called(inner) for test in tests for inner in ast.walk(test)]
    is_lock = any(_called(node) == "atomic_cas" for node in ast.walk(tree))
    return is_lock or any(name == "load" or name.startswith("atomic_") for name in called)


def _counts(tree: ast.FunctionDef) -> bool:
    """Whether the result of an atomic operation, which orders memory unless it is relaxed, is used."""
    unused = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return any(
        _called(node).startswith("atomic_") and node not in unused and "relaxed" not in ast.unparse(node)
        for node in ast.walk(tree)
    )


def _called(node: ast.AST) -> str:
    """Return the name of the function of Triton that a call calls; "" for another node."""
    return node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""


@dataclass(slots=True, eq=False)
class Frame:
    """A call of a function by some programs.

    Attributes:
        source: the function.
        env: its variables.
        at: which of the programs that made the call are here.
        programs: their numbers in the grid.
        left: those that left by `return`, `break` or `continue`, until they are waited for.
    """

    source: Source
    env: dict[str, Any]
    at: Array
    programs: Array
    left: dict[str, list[Frame]] = field(default_factory=lambda: {_RETURN: [], _BREAK: [], _CONTINUE: []})

    def part(self, lanes: Array) -> Frame:
        """Return the frame of some of the programs."""
        env = {name: _part(x, lanes) for name, x in self.env.items()}
        return Frame(self.source, env, self.at[lanes], self.programs[lanes], self.left)

    def become(self, frames: Sequence[Frame], precision: Precision) -> None:
        """Take the place of frames that are joined."""
        if len(frames) == 1:
            (other,) = frames
            self.env, self.at, self.programs = other.env, other.at, other.programs
            return
        at = np.concatenate([f.at for f in frames])
        order = np.argsort(at, kind="stable")
        positions = [np.searchsorted(at[order], f.at) for f in frames]
        self.programs = np.concatenate([f.programs for f in frames])[order]
        self.at = at[order]
        known = [name for name in frames[0].env if all(name in f.env for f in frames)]
        joined = {name: _joined([f.env[name] for f in frames], positions, len(at), precision) for name in known}
        self.env = {name: x for name, x in joined.items() if x is not _UNLIKE}


class _Unlike:
    """Stands for a variable that is not the same kind of thing in all programs."""


_UNLIKE = _Unlike()


def _part(x: Any, lanes: Array) -> Any:
    if isinstance(x, Value):
        return x.only(lanes)
    if isinstance(x, BlockPointer):
        return x.with_parts([v.only(lanes) for v in x.parts()])
    if type(x) in (tuple, list):
        return type(x)(_part(v, lanes) for v in x)
    return x


def _joined(parts: list[Any], positions: list[Array], total: int, precision: Precision) -> Any:
    first = parts[0]
    if all(p is first for p in parts):
        return first
    if any(isinstance(p, Value) for p in parts) and all(isinstance(p, Value) or is_number(p) for p in parts):
        return _joined_values(parts, positions, total, precision)
    if all(isinstance(p, BlockPointer) and p.block == first.block for p in parts):
        each = zip(*[p.parts() for p in parts], strict=True)
        return first.with_parts([_joined_values(list(p), positions, total, precision) for p in each])
    if all(type(p) is tuple and len(p) == len(first) for p in parts):
        items = [_joined(list(p), positions, total, precision) for p in zip(*parts, strict=True)]
        return _UNLIKE if any(x is _UNLIKE for x in items) else tuple(items)
    if all(is_number(p) for p in parts):
        if all(type(p) is type(first) and p == first for p in parts):
            return first
        return _joined_values(parts, positions, total, precision)
    return first if all(type(p) is type(first) and p == first for p in parts) else _UNLIKE


def _joined_values(parts: list[Any], positions: list[Array], total: int, precision: Precision) -> Any:
    values = [to_value(p, precision) for p in parts]
    dtype = values[0].dtype
    for other in values[1:]:
        if other.dtype != dtype:
            if dtype.is_ptr() or other.dtype.is_ptr():
                return _UNLIKE
            dtype = common_type(dtype, other.dtype)
    shapes = {v.shape for v in values} - {()}
    if len(shapes) > 1:
        return _UNLIKE
    shape = shapes.pop() if shapes else ()
    out = np.empty((total, *shape), precision.held(dtype))
    for value, at in zip(values, positions, strict=True):
        out[at] = broadcast_to(cast(value, dtype, precision), shape).data
    return Value(out, dtype)


@dataclass(frozen=True, slots=True)
class Method:
    """A function of Triton that is called as a method of a value."""

    name: str
    of: Any


class Machine:
    """Runs kernels for a group of programs; functions of the language find here what they need."""

    def __init__(self, world: World, space: Space, grid: tuple[int, int, int]) -> None:
        """Make one for a launch.

        Args:
            world: the options, and the record of what happens.
            space: the memory of the launch.
            grid: its size.
        """
        self.world = world
        self.space = space
        self.grid = grid
        self.precision = Precision.of(world)
        self.programs: Array = np.zeros(1, np.int64)
        self.is_used = True
        self._stack: list[tuple[Source, ast.AST]] = []
        self._depth = 0

    def indices(self, axis: int) -> Array:
        """Return the index of each running program along an axis of the grid."""
        _, y, z = self.grid
        along = (self.programs // (y * z), self.programs // z % y, self.programs % z)[axis]
        return along.astype(np.int32)

    def place(self) -> tuple[str, int]:
        """Return the file and line that run, of the innermost function that is not Triton's own."""
        for source, node in reversed(self._stack):
            if not source.globals_.get("__name__", "").startswith("triton."):
                return source.file, source.line(node)
        return ("", 0)

    def call(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call a function that Triton compiles, and return what it returns."""
        return self.run(source_of(getattr(function, "fn", function)), args, kwargs)

    def run(self, source: Source, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Do the same with its source."""
        bound = source.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        env = {name: _plain(x) for name, x in bound.arguments.items()}
        before = self.programs
        self._depth += 1
        if self._depth > 100:
            raise KernelError(f"{source.name} calls itself without end")
        try:
            return self._returned(Frame(source, env, np.arange(len(before)), before))
        finally:
            self.programs = before
            self._depth -= 1

    def _returned(self, frame: Frame) -> Any:
        self._stack.append((frame.source, frame.source.node))
        signal = self._block(frame.source.node.body, frame)
        self._stack.pop()
        ended = list(frame.left[_RETURN])
        if signal != _GONE:
            ended.append(frame)
        if len(ended) == 1:
            return ended[0].env.get(_RETURNED)
        at = np.concatenate([f.at for f in ended])
        positions = [np.searchsorted(np.sort(at), f.at) for f in ended]
        found = _joined([f.env.get(_RETURNED) for f in ended], positions, len(at), self.precision)
        if found is _UNLIKE:
            raise KernelError(f"{frame.source.name} returns values of different kinds")
        return found

    # ---- statements -------------------------------------------------------------------------------------------------

    def _block(self, body: Sequence[ast.stmt], frame: Frame) -> str | None:
        """Run statements; return why no later one is to run, for the programs that are still in the frame."""
        for node in body:
            self._stack[-1] = (frame.source, node)
            run = _STATEMENTS.get(type(node))
            if run is None:
                raise KernelError(f"{type(node).__name__}: no statement of Triton")
            signal = run(self, node, frame)
            if signal is not None:
                return signal
        return None

    def _expression(self, node: ast.Expr, frame: Frame) -> None:
        self.is_used = not isinstance(node.value, ast.Call)
        if not isinstance(node.value, ast.Constant):
            self.eval(node.value, frame)
        self.is_used = True

    def _assign(self, node: ast.Assign, frame: Frame) -> None:
        value = self.eval(node.value, frame)
        for target in node.targets:
            self._bind(target, value, frame)

    def _bind(self, target: ast.expr, value: Any, frame: Frame) -> None:
        if isinstance(target, ast.Name):
            frame.env[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            if not isinstance(value, tuple | list) or len(value) < len(target.elts):
                raise KernelError("there are fewer values than names to assign")
            for each, part in zip(target.elts, value, strict=False):  # Triton ignores what is too much
                self._bind(each, part, frame)
        else:
            raise KernelError(f"assignment to {ast.unparse(target)}: Triton has none")

    def _annotated(self, node: ast.AnnAssign, frame: Frame) -> None:
        if node.value is not None:
            self._bind(node.target, self.eval(node.value, frame), frame)

    def _augmented(self, node: ast.AugAssign, frame: Frame) -> None:
        old = self.eval(ast.copy_location(_as_load(node.target), node), frame)
        value = binary(_BINARY[type(node.op)], old, self.eval(node.value, frame), self.precision)
        self._bind(node.target, value, frame)

    def _return(self, node: ast.Return, frame: Frame) -> str:
        frame.env[_RETURNED] = None if node.value is None else self.eval(node.value, frame)
        return _RETURN

    def _if(self, node: ast.If, frame: Frame) -> str | None:
        condition = self.eval(node.test, frame)
        test = self._truth(condition)
        for way in (str(test).lower(),) if isinstance(test, bool) else ("true", "false"):
            self._went(node, frame, way)
        if isinstance(test, bool):
            return self._block(node.body if test else node.orelse, frame)
        groups = [(np.flatnonzero(test), node.body), (np.flatnonzero(~test), node.orelse)]
        stayed: list[Frame] = []
        for lanes, body in groups:
            part = frame.part(lanes)
            self.programs = part.programs
            self._settle(self._block(body, part), part, stayed)
        return self._rejoin(frame, stayed)

    def _went(self, node: ast.stmt, frame: Frame, way: str) -> None:
        """Record which way programs went at a statement, in a function that is not Triton's own."""
        source = frame.source
        if not source.globals_.get("__name__", "").startswith("triton."):
            self.world.ways.add((source.file, source.line(node), way))

    def _settle(self, signal: str | None, part: Frame, stayed: list[Frame]) -> None:
        """Put a group where its programs go on."""
        if signal is None:
            stayed.append(part)
        elif signal != _GONE:
            part.left[signal].append(part)

    def _rejoin(self, frame: Frame, frames: list[Frame]) -> str | None:
        if not frames:
            return _GONE
        frame.become(frames, self.precision)
        self.programs = frame.programs
        return None

    def _truth(self, x: Any) -> bool | Array:
        """Return a condition: one for all programs, or one of each."""
        if not isinstance(x, Value):
            return bool(x)
        if x.data.size != x.programs:
            raise KernelError(f"the condition is a block of shape {x.shape}")
        each = x.data.reshape(-1) != 0
        return bool(each[0]) if (each == each[0]).all() else each

    def _while(self, node: ast.While, frame: Frame) -> str | None:
        def goes_on(finished: list[Frame]) -> bool:
            return self._divide(self._truth(self.eval(node.test, frame)), frame, finished)

        return self._compiled_loop(node, frame, goes_on, set(frame.env))

    def _divide(self, test: bool | Array, frame: Frame, finished: list[Frame]) -> bool:
        """Take the programs that leave a loop out of the frame; return whether some stay."""
        if isinstance(test, bool):
            return test
        finished.append(frame.part(np.flatnonzero(~test)))
        frame.become([frame.part(np.flatnonzero(test))], self.precision)
        self.programs = frame.programs
        return True

    def _compiled_loop(
        self, node: ast.For | ast.While, frame: Frame, goes_on: Callable[[list[Frame]], bool], known: set[str]
    ) -> str | None:
        """Run a loop that Triton does not unroll: a name that is new in it is not known after it."""
        rounds = 0

        def is_next(finished: list[Frame]) -> bool:
            nonlocal rounds
            rounds += (stays := goes_on(finished))
            return stays

        signal = self._loop(node.body, frame, is_next)
        self._went(node, frame, ("never", "once", "again")[min(rounds, 2)])
        frame.env = {name: x for name, x in frame.env.items() if name in known}
        return signal

    def _loop(self, body: Sequence[ast.stmt], frame: Frame, goes_on: Callable[[list[Frame]], bool]) -> str | None:
        outer = frame.left
        frame.left = {_RETURN: outer[_RETURN], _BREAK: [], _CONTINUE: []}
        finished: list[Frame] = []
        signal: str | None = None
        while signal is None and goes_on(finished):
            stayed: list[Frame] = []
            signal = self._block(body, frame)
            if signal in (None, _CONTINUE):
                stayed.append(frame)
            elif signal != _GONE:
                frame.left[signal].append(frame.part(np.arange(len(frame.at))))
            stayed += frame.left[_CONTINUE]
            frame.left[_CONTINUE] = []
            signal = self._rejoin(frame, stayed) if len(stayed) != 1 or stayed[0] is not frame else None
        if signal is None:
            finished.append(frame)
        finished += frame.left[_BREAK]
        frame.left = outer
        for each in finished:
            each.left = outer
        return self._rejoin(frame, finished) if finished != [frame] else None

    def _for(self, node: ast.For, frame: Frame) -> str | None:
        bounds = self._bounds(node.iter, frame)
        if bounds is None:
            return self._for_each(node, self._items(node.iter, frame), frame)
        start, stop, step = (to_value(b, self.precision) for b in bounds)
        for b in (start, stop, step):
            if not b.dtype.is_int():
                raise KernelError("the bounds of a range are not integers")
        ascends = bool((step.data > 0).all())
        dtype = functools.reduce(common_type, (start.dtype, stop.dtype, step.dtype))
        at, end, by = (f"{name} of {node.lineno}:{node.col_offset}" for name in ("next", "end", "step"))
        known = set(frame.env)
        frame.env |= {at: cast(start, dtype, self.precision), end: stop, by: step}

        rounds = 0

        def goes_on(finished: list[Frame]) -> bool:
            nonlocal rounds
            inside = binary("<" if ascends else ">", frame.env[at], frame.env[end], self.precision)
            if not self._divide(self._truth(inside), frame, finished):
                return False
            if self.world.simulates and (rounds := rounds + 1) == _ROUNDS:
                self._skip(frame, at, end, by)
            here = frame.env[at]
            self._bind(node.target, here, frame)
            frame.env[at] = binary("+", here, frame.env[by], self.precision)
            return True

        return self._compiled_loop(node, frame, goes_on, known)

    @staticmethod
    def _skip(frame: Frame, at: str, end: str, by: str) -> None:
        """Go to the last rounds of a loop. What the others would have added to a pointer is missing from it."""
        start, stop, step = (frame.env[name].data.astype(np.int64) for name in (at, end, by))
        skipped = np.maximum(-((start - stop) // step) - _ROUNDS, 0)
        frame.env[at] = frame.env[at].like((start + skipped * step).astype(frame.env[at].data.dtype))

    def _for_each(self, node: ast.For, items: Iterator[Any], frame: Frame) -> str | None:
        def goes_on(finished: list[Frame]) -> bool:
            for item in items:
                self._bind(node.target, item, frame)
                return True
            return False

        return self._loop(node.body, frame, goes_on)

    def _bounds(self, node: ast.expr, frame: Frame) -> tuple[Any, Any, Any] | None:
        """Return the bounds of a loop over `range` or `tl.range`; `None` for one that is unrolled."""
        if not isinstance(node, ast.Call):
            return None
        function = self.eval(node.func, frame)
        if function is not range and function is not tl.range:
            return None
        args, kwargs = self._arguments(node, frame)
        named = [kwargs.get("arg1"), kwargs.get("arg2"), kwargs.get("step")]
        args += [x for x in named[len(args) :] if x is not None]
        return (0, args[0], 1) if len(args) == 1 else (args[0], args[1], args[2] if len(args) > 2 else 1)

    def _items(self, node: ast.expr, frame: Frame) -> Iterator[Any]:
        if isinstance(node, ast.Call) and self.eval(node.func, frame) is tl.static_range:
            args, kwargs = self._arguments(node, frame)
            args += [kwargs[k] for k in ("arg1", "arg2", "step") if k in kwargs]
            if any(isinstance(x, Value) for x in args):
                raise KernelError("static_range needs bounds that are known when the kernel is compiled")
            rounds = range(*args)
            if len(rounds) > _UNROLLED:
                raise KernelError(f"static_range of {len(rounds)} rounds, which Triton would unroll")
            return iter(rounds)
        items = self.eval(node, frame)
        if not isinstance(items, tuple | list | range):
            raise KernelError(f"a loop over {type(items).__name__}: Triton has none")
        return iter(items)

    def _assert(self, node: ast.Assert, frame: Frame) -> None:
        test = self.eval(node.test, frame)
        if not isinstance(test, Value) and not test:
            raise KernelError(f"assert {ast.unparse(node.test)} failed")

    # ---- expressions ------------------------------------------------------------------------------------------------

    def eval(self, node: ast.expr, frame: Frame) -> Any:
        """Return the value of an expression: a value of Triton or, if it is known before, of Python."""
        evaluate = _EXPRESSIONS.get(type(node))
        if evaluate is None:
            raise KernelError(f"{ast.unparse(node)}: {type(node).__name__} is no expression of Triton")
        return evaluate(self, node, frame)

    def _constant(self, node: ast.Constant, frame: Frame) -> Any:
        return node.value

    def _name(self, node: ast.Name, frame: Frame) -> Any:
        if node.id in frame.env:
            return frame.env[node.id]
        return _plain(frame.source.lookup(node.id))

    def _operation(self, node: ast.BinOp, frame: Frame) -> Any:
        left, right = self.eval(node.left, frame), self.eval(node.right, frame)
        return binary(_BINARY[type(node.op)], left, right, self.precision)

    def _unary(self, node: ast.UnaryOp, frame: Frame) -> Any:
        return unary(_UNARY[type(node.op)], self.eval(node.operand, frame), self.precision)

    def _compare(self, node: ast.Compare, frame: Frame) -> Any:
        left = self.eval(node.left, frame)
        found: Any = None
        for op, each in zip(node.ops, node.comparators, strict=True):
            right = self.eval(each, frame)
            here = self._compared(op, left, right)
            found = here if found is None else BUILTINS["logical_and"](self, found, here)
            left = right
        return found

    def _compared(self, op: ast.cmpop, left: Any, right: Any) -> Any:
        match op:
            case ast.Is():
                return left is right
            case ast.IsNot():
                return left is not right
            case ast.In():
                return left in right
            case ast.NotIn():
                return left not in right
        return binary(_BINARY[type(op)], left, right, self.precision)

    def _bool(self, node: ast.BoolOp, frame: Frame) -> Any:
        is_and = isinstance(node.op, ast.And)
        found = self.eval(node.values[0], frame)
        for each in node.values[1:]:
            if not isinstance(found, Value):
                if bool(found) != is_and:
                    return found
                found = self.eval(each, frame)
            else:
                right = self.eval(each, frame)
                found = BUILTINS["logical_and" if is_and else "logical_or"](self, found, right)
        return found

    def _choice(self, node: ast.IfExp, frame: Frame) -> Any:
        test = self._truth(self.eval(node.test, frame))
        if isinstance(test, bool):
            return self.eval(node.body if test else node.orelse, frame)
        before, found, positions = self.programs, [], []
        for lanes, each in ((np.flatnonzero(test), node.body), (np.flatnonzero(~test), node.orelse)):
            part = frame.part(lanes)
            self.programs = part.programs
            found.append(self.eval(each, part))
            positions.append(lanes)
        self.programs = before
        return _joined(found, positions, len(test), self.precision)

    def _tuple(self, node: ast.Tuple, frame: Frame) -> tuple[Any, ...]:
        return tuple(self._elements(node.elts, frame))

    def _list(self, node: ast.List, frame: Frame) -> list[Any]:
        return list(self._elements(node.elts, frame))

    def _elements(self, nodes: Sequence[ast.expr], frame: Frame) -> Iterator[Any]:
        for node in nodes:
            if isinstance(node, ast.Starred):
                yield from self.eval(node.value, frame)
            else:
                yield self.eval(node, frame)

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp, frame: Frame) -> list[Any]:
        (generator,) = node.generators
        found = []
        for item in self._items(generator.iter, frame):
            inner = Frame(frame.source, dict(frame.env), frame.at, frame.programs)
            self._bind(generator.target, item, inner)
            if all(self.eval(test, inner) for test in generator.ifs):
                found.append(self.eval(node.elt, inner))
        return found

    def _slice(self, node: ast.Slice, frame: Frame) -> slice:
        return slice(*(None if x is None else self.eval(x, frame) for x in (node.lower, node.upper, node.step)))

    def _subscript(self, node: ast.Subscript, frame: Frame) -> Any:
        value, key = self.eval(node.value, frame), self.eval(node.slice, frame)
        if isinstance(value, Value):
            return _indexed(value, key)
        if isinstance(key, Value):
            raise KernelError(f"{ast.unparse(node)}: the index must be known when the kernel is compiled")
        return _plain(value[key])

    def _attribute(self, node: ast.Attribute, frame: Frame) -> Any:
        value, name = self.eval(node.value, frame), node.attr
        if isinstance(value, Value):
            if name in ("dtype", "shape", "type"):
                return getattr(value, name)
            if name == "T":
                return BUILTINS["trans"](self, value)
            if name == "handle":
                raise UnsupportedError(f"{ast.unparse(node)}: not interpreted")
            return Method(name, value)
        if isinstance(value, BlockPointer):
            if name in ("load", "store", "advance") or name.startswith("atomic_"):
                return Method(name, value)
            if name in ("gather", "scatter"):
                raise UnsupportedError(f"{ast.unparse(node)}: not interpreted")
        if is_number(value) and name in ("to", "value"):
            return value if name == "value" else Method(name, value)
        return _plain(getattr(value, name))

    def _joined_string(self, node: ast.JoinedStr, frame: Frame) -> str:
        parts = [x.value if isinstance(x, ast.FormattedValue) else x for x in node.values]
        return "".join(str(self.eval(x, frame)) for x in parts)

    # ---- calls ------------------------------------------------------------------------------------------------------

    def _arguments(self, node: ast.Call, frame: Frame) -> tuple[list[Any], dict[str, Any]]:
        used, self.is_used = self.is_used, True
        args = list(self._elements(node.args, frame))
        kwargs: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self.eval(keyword.value, frame)
            kwargs |= value if keyword.arg is None else {keyword.arg: value}
        self.is_used = used
        return args, kwargs

    def _call(self, node: ast.Call, frame: Frame) -> Any:
        function = self.eval(node.func, frame)
        args, kwargs = self._arguments(node, frame)
        used = self.is_used
        try:
            return self._apply(function, args, kwargs)
        finally:
            self.is_used = used

    def _apply(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if isinstance(function, Method):
            if function.name not in BUILTINS:
                raise UnsupportedError(f"the method {function.name!r} of a value: not interpreted")
            return BUILTINS[function.name](self, function.of, *args, **kwargs)
        if getattr(function, "__triton_aggregate__", False):
            raise UnsupportedError(f"the aggregate {function.__name__}: not interpreted")
        if inspect.ismethod(function):  # of a type, say
            return self._python(function, args, kwargs)
        name, module = getattr(function, "__name__", ""), getattr(function, "__module__", None) or ""
        if module.startswith("triton.language") and (builtin := self._builtin(function, name, module)) is not None:
            return builtin(self, *args, **kwargs)
        if isinstance(function, triton.JITFunction):
            self.is_used = True
            return self.call(function, args, kwargs)
        if module.startswith("triton.language") and not isinstance(function, type):
            place = "libdevice" if module.endswith("libdevice") else "tl"
            raise UnsupportedError(f"{place}.{name}: not interpreted")
        return self._python(function, args, kwargs)

    @staticmethod
    def _builtin(function: Any, name: str, module: str) -> Callable[..., Any] | None:
        if module.endswith("libdevice"):
            return libdevice(name)
        return BUILTINS.get(name)

    def _python(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call a function of Python on what is known before the kernel runs."""
        if isinstance(function, tl.dtype):
            return cast(to_value(args[0], self.precision), function, self.precision)
        has_values = any(isinstance(x, Value) for x in [*args, *kwargs.values()])
        if function in (min, max) and has_values:
            name = "minimum" if function is min else "maximum"
            return functools.reduce(functools.partial(BUILTINS[name], self), args)
        if function is print:
            return None
        if function is isinstance:
            return any(_is_of(args[0], kind) for kind in (args[1] if isinstance(args[1], tuple) else (args[1],)))
        if function in (float, int, bool, abs, round) and has_values:
            if function is abs:
                return BUILTINS["abs"](self, *args)
            raise KernelError(f"{function.__name__}() of a value that is not known when the kernel is compiled")
        return _plain(getattr(function, "fn", function)(*args, **kwargs))


def _is_of(x: Any, kind: type) -> bool:
    """Whether Triton would hold a value in an instance of a class."""
    if kind is tl.tensor:
        return isinstance(x, Value)
    if isinstance(x, BlockPointer):
        return x.is_descriptor and kind.__name__.startswith("tensor_descriptor")
    return (kind is tl.constexpr and not isinstance(x, Value)) or isinstance(x, kind)


def _plain(x: Any) -> Any:
    """Return the value of a constexpr."""
    while isinstance(x, tl.constexpr):
        x = x.value
    return x


def _as_load(target: ast.expr) -> ast.expr:
    if not isinstance(target, ast.Name):
        raise KernelError(f"assignment to {ast.unparse(target)}: Triton has none")
    return ast.Name(target.id, ast.Load())


def _indexed(x: Value, key: Any) -> Value:
    """Return x[None, :] and the like, which insert axes of length 1."""
    keys = key if isinstance(key, tuple) else (key,)
    axes: list[int] = []
    for position, k in enumerate(keys):
        if k is None:
            axes.append(position + 1)
        elif k != slice(None):
            raise KernelError("a block is indexed by : and None only")
    if len(keys) - len(axes) > len(x.shape):
        raise KernelError(f"a block of shape {x.shape} has {len(keys) - len(axes)} indices")
    return x.like(np.expand_dims(x.data, tuple(axes)))


_STATEMENTS: dict[type, Callable[..., str | None]] = {
    ast.Expr: Machine._expression, ast.Assign: Machine._assign, ast.AnnAssign: Machine._annotated,
    ast.AugAssign: Machine._augmented, ast.Return: Machine._return, ast.If: Machine._if, ast.While: Machine._while,
    ast.For: Machine._for, ast.Assert: Machine._assert, ast.Pass: lambda machine, node, frame: None,
    ast.Break: lambda machine, node, frame: _BREAK, ast.Continue: lambda machine, node, frame: _CONTINUE,
}  # fmt: skip
_EXPRESSIONS: dict[type, Callable[..., Any]] = {
    ast.Constant: Machine._constant, ast.Name: Machine._name, ast.BinOp: Machine._operation,
    ast.UnaryOp: Machine._unary, ast.Compare: Machine._compare, ast.BoolOp: Machine._bool, ast.IfExp: Machine._choice,
    ast.Tuple: Machine._tuple, ast.List: Machine._list, ast.ListComp: Machine._comprehension,
    ast.GeneratorExp: Machine._comprehension, ast.Slice: Machine._slice, ast.Subscript: Machine._subscript,
    ast.Attribute: Machine._attribute, ast.JoinedStr: Machine._joined_string, ast.Call: Machine._call,
}  # fmt: skip

"""Lines that compute nodes by calls of the functions in `include/`: C++, except where Triton overrides them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Any

import torch
from torch import fx

from pullback.graph.decisions import decides, is_rounded
from pullback.kernels import lowerings
from pullback.kernels.regions import value_of
from pullback.ops.lowering import FUNCTION, Number

aten = torch.ops.aten


class Writer:
    """Writer of the lines that compute some nodes.

    Args:
        nodes: the nodes in topological order.
        outputs: nodes that are read elsewhere.
        names: names of their operands.
        exact: whether each 16-bit op rounds its result, as PyTorch's kernels do.
        short: nodes whose functions are the short ones.
        prefix: prefix of the generated names.
        staged: whether lines may be split into several loops, over `k`, from 0 on; else there is one loop.

    Attributes:
        names: names of operands and nodes.
        count: number of loops.
    """

    def __init__(
        self,
        nodes: Sequence[fx.Node],
        outputs: Collection[fx.Node],
        names: Mapping[fx.Node, str],
        exact: bool = False,
        short: Collection[fx.Node] = (),
        prefix: str = "v",
        staged: bool = False,
    ) -> None:
        self._exact, self._short = exact, short
        self._inputs, self._known = list(names), {*names, *nodes}
        self._locals = {node: f"{prefix}{len(names) + i}" for i, node in enumerate(nodes)}
        self.names = {**names, **self._locals}
        self._sides = self._divided(nodes, outputs)
        self._equal = self._equals()
        nodes = [node for node in nodes if node not in self._equal]
        outputs = frozenset(self._equal.get(node, node) for node in outputs)
        around = self._conditions()
        reads = {node: [self._equal.get(a, a) for a in (*self._operands_of(node), *around[node])] for node in nodes}
        # a condition may come after values that are computed only where it holds
        order = TopologicalSorter({node: [a for a in reads[node] if a in reads] for node in nodes}).static_order()
        self._loops = loops_of(list(order), outputs, reads) if staged else dict.fromkeys(nodes, 0)
        self.count = 1 + max(self._loops.values(), default=0)
        self._read = [{a for n in nodes if self._loops[n] == stage for a in reads[n]} for stage in range(self.count)]
        self._crossing = [n for n in nodes if any(n in read for read in self._read[self._loops[n] + 1 :])]
        self.names |= {node: f"{self._locals[node]}[k]" for node in self._crossing}
        self.names |= {node: self.names[first] for node, first in self._equal.items()}

    def arrays(self) -> list[str]:
        """Return the declarations of values that one loop computes and another one reads."""
        return [f"{vector_of(node)} {self._locals[node]}[TILE];" for node in self._crossing]

    def reads(self, stage: int) -> list[fx.Node]:
        """Return the operands of a loop's lines that are not among the nodes."""
        return [a for a in self._inputs if a in self._read[stage]]

    def stage(self, node: fx.Node) -> int:
        """Return which loop computes a node, or is the first that reads it."""
        known = self._loops.get(self._equal.get(node, node))
        return next(i for i, read in enumerate(self._read) if node in read) if known is None else known

    def is_always_computed(self, node: fx.Node) -> bool:
        """Whether a node is not part of one side of a choice."""
        return self._equal.get(node, node) in self._sides.all.nodes

    def lines(self, stage: int = 0) -> list[str]:
        """Return the lines of one loop."""
        return self._block(self._sides.all, "", stage)

    def _divided(self, nodes: Sequence[fx.Node], outputs: Collection[fx.Node]) -> BranchAssignment:
        return BranchAssignment(nodes, frozenset(outputs))

    def _equals(self) -> dict[fx.Node, fx.Node]:
        """Return nodes whose expression an available earlier node has, each with that node.

        Within one loop a compiler does the same; across two loops it would compute the expression twice.
        """
        equal: dict[fx.Node, fx.Node] = {}
        side_of = {node: side for side in self._sides.every for node in side.nodes}
        first: dict[tuple[Branch, str], fx.Node] = {}
        for node in self._locals:
            if branches_of(node):
                continue
            text = f"{vector_of(node)} {self._expression(node, vector_of(node))}"
            found = next((first[s, text] for s in side_of[node].path() if (s, text) in first), None)
            if found is None:
                first[side_of[node], text] = node
            else:
                equal[node], self.names[node] = found, self.names[found]
        for side in self._sides.every:
            side.nodes = [node for node in side.nodes if node not in equal]
        return equal

    def _conditions(self) -> dict[fx.Node, list[fx.Node]]:
        """Return the conditions of the enclosing branches of each node."""
        return {
            node: [condition_of(s.choice) for s in side.path() if s.choice]
            for side in self._sides.every
            for node in side.nodes
        }

    def _block(self, side: Branch, lanes: str, stage: int) -> list[str]:
        """Return the lines of a side; `lanes` names those that take it, empty for all."""
        lines = []
        for node in side.nodes:
            if branches_of(node):
                lines += self._choice(node, lanes, stage)
            elif self._loops[node] == stage:
                lines.append(self._defined(node, self._expression(node, vector_of(node))))
        return lines

    def _defined(self, node: fx.Node, text: str) -> str:
        name = self.names[node]
        return f"{name} = {text};" if node in self._crossing else f"const {vector_of(node)} {name} = {text};"

    def _choice(self, node: fx.Node, lanes: str, stage: int) -> list[str]:
        """Return a loop's lines for a selection: its branches and, in the loop of the selection itself, the result."""
        condition, vector, name = self._operand(condition_of(node), "M"), vector_of(node), self._locals[node]
        ends = self._loops[node] == stage
        lines, values = [], {}
        for i, branch in branches_of(node).items():
            side, chosen = self._sides.of.get((node, i)), f"{name}_{i}"
            value = self._side_value(branch, node)
            block = self._block(side, f"{name}_on{i}", stage) if side else []
            if side and side.nodes and (ends or block):
                takes = condition if i == 0 else f"~{condition}"
                lines += [f"{vector} {chosen}{{}};"] if ends else []
                lines += [
                    f"if (const M {name}_on{i} = {f'{lanes} & ' if lanes else ''}{takes}; any({name}_on{i})) {{",
                    *(f"  {line}" for line in block),
                    *([f"  {chosen} = {value};"] if ends else []),
                    "}",
                ]
                value = chosen
            values[i] = value
        if ends:
            lines.append(self._defined(node, f"where({condition}, {values[0]}, {values[1]})"))
        return lines

    def _side_value(self, branch: fx.Node | Number, choice: fx.Node) -> str:
        vector = vector_of(choice)
        if isinstance(branch, fx.Node):
            return self._operand(branch, vector)
        return str(Number(_kept(branch.value, choice), vector))

    def _expression(self, node: fx.Node, vector: str) -> str:
        if node.target == aten._to_copy.default:
            return self._cast(node, vector)
        wanted, rounded = vector, None
        if node.target in lowerings.COMPARING:
            common = _common_dtype(node)
            wanted = lowerings.COMPUTED[common]
            rounded = common if common.itemsize == 2 else None  # as PyTorch compares 16 bits with a number
        elif (self._exact or is_rounded(node)) and _rounds_numbers(node):
            rounded = _dtype(node)
        operands = {a: self._operand(a, wanted, rounds=decides(node, a)) for a in self._operands_of(node)}
        if mirrored := self._mirrored(node):
            text = f"{lowerings.LOWERINGS[node.target].mirrored}({operands[mirrored]})"
        else:
            text = lowerings.expression(node, operands, wanted, rounded)
        if node in self._short:
            text = f"short_{text}"
        return through(node, text) if self._exact or is_rounded(node) else text

    def _operands_of(self, node: fx.Node) -> list[fx.Node]:
        """Return the operands of a node's expression."""
        mirrored = self._mirrored(node)
        return node.all_input_nodes if mirrored is None else [mirrored]

    def _mirrored(self, node: fx.Node) -> fx.Node | None:
        """Return x where f(−x) is computed of x: for the few f that share their work with f(x)."""
        lowering = lowerings.LOWERINGS.get(node.target)
        if not (lowering and lowering.mirrored) or node.all_input_nodes[0].target != aten.neg.default:
            return None
        (x,) = node.all_input_nodes[0].all_input_nodes
        return x if x in self._known else None

    def _cast(self, node: fx.Node, vector: str) -> str:
        (source,) = node.all_input_nodes
        text = self._operand(source, vector, rounds=decides(node, source))
        return through(node, text) if _dtype(source) not in (_dtype(node), torch.bool) else text

    def _operand(self, node: fx.Node, vector: str, rounds: bool = False) -> str:
        """Return an operand as a vector of a type, which may have to be rounded to its own."""
        value = lowerings.constant_of(node)
        if value is not None:
            return str(Number(_kept(value, node), vector))
        name = self.names[node]
        if rounds and node.op != "placeholder" and not (self._exact or is_rounded(node)):
            name = through(node, name)
        return _CASTS[vector_of(node), vector].format(name)


_CASTS = {
    **{(v, v): "{}" for v in "FDM"},
    ("F", "D"): "wide({})",
    ("D", "F"): "narrow({})",
    ("M", "F"): "number_F({})",
    ("M", "D"): "number_D({})",
    ("F", "M"): "truth({})",
    ("D", "M"): "truth({})",
}


def through(node: fx.Node, text: str) -> str:
    """Return an expression rounded to the dtype of a node, if that has 16 bits."""
    return f"through_{lowerings.STORED[_dtype(node)]}({text})" if _dtype(node).itemsize == 2 else text


def vector_of(node: fx.Node) -> str:
    """Return the type of vector that a value is computed in."""
    return lowerings.COMPUTED[_dtype(node)]


def _rounds_numbers(node: fx.Node) -> bool:
    """Whether PyTorch rounds a number to 16 bits before it computes: on the CPU in sums, but no factor."""
    value = value_of(node)
    return node.target in _SUMS and value.dtype.itemsize == 2 and value.device.type == "cpu"


_SUMS = frozenset([aten.add.Tensor, aten.sub.Tensor, aten.add.Scalar, aten.sub.Scalar, aten.rsub.Scalar])


def _kept(value: Any, node: fx.Node) -> Any:
    """Return a number as a tensor of a node's dtype keeps it."""
    return torch.tensor(value, dtype=_dtype(node), device="cpu").item()


def _dtype(node: fx.Node) -> torch.dtype:
    dtype: torch.dtype = value_of(node).dtype
    return dtype


def _common_dtype(node: fx.Node) -> torch.dtype:
    """Return the dtype in which operands are compared; a zero-dimensional one has lower priority, as in PyTorch."""
    args: Sequence[Any] = node.args[:2]
    operands = [value_of(a) if isinstance(a, fx.Node) else a for a in args]
    common: torch.dtype = torch.result_type(*operands) if len(operands) == 2 else operands[0].dtype
    return torch.float32 if common == torch.bool else common


@dataclass(eq=False, slots=True)
class Branch:
    """A branch of a selection, or what is always computed, which has no selection."""

    choice: fx.Node | None = None
    parent: Branch | None = None
    nodes: list[fx.Node] = field(default_factory=list)

    def path(self) -> list[Branch]:
        """Return the sides around this one, from the outermost on."""
        return [*(self.parent.path() if self.parent else []), self]


CHEAP = frozenset(target for target, lowering in lowerings.LOWERINGS.items() if lowering.latency == 1)
"""Ops of few instructions."""
_WORTH = 8
"""Number of cheap ops that are worth a branch."""


class BranchAssignment:
    """Nodes divided among the branches of the selections among them.

    Attributes:
        all: nodes that are always computed.
        of: the others, by the selection and the index of the branch.
    """

    def __init__(self, nodes: Sequence[fx.Node], outputs: Collection[fx.Node]) -> None:
        self.all = Branch()
        self.of: dict[tuple[fx.Node, int], Branch] = {}
        self._order = {node: i for i, node in enumerate(nodes)}
        home: dict[fx.Node, Branch] = {}
        for node in reversed(nodes):
            around = [s for user in node.users for s in self._used_in(node, user, home)]
            home[node] = self.all if node in outputs else _common(around)
            for k in branches_of(node):
                self.of[node, k] = Branch(node, home[node])
        for node in nodes:
            home[node].nodes.append(node)
        for key, side in reversed(list(self.of.items())):  # inner ones first
            if sum(1 if n.target in CHEAP else _WORTH for n in side.nodes) < _WORTH:
                self._dissolve(key, side)

    @classmethod
    def undivided(cls, nodes: Sequence[fx.Node]) -> BranchAssignment:
        """Return nodes that are all always computed."""
        sides = cls((), ())
        sides.all.nodes = list(nodes)
        return sides

    @property
    def every(self) -> list[Branch]:
        """The unconditional part, then the branches."""
        return [self.all, *self.of.values()]

    def _used_in(self, node: fx.Node, user: fx.Node, home: Mapping[fx.Node, Branch]) -> list[Branch]:
        """Return the innermost branch that contains a use of a node."""
        if user not in home:
            return []
        branches = branches_of(user)
        if node in branches.values() and [*user.args].count(node) == 1:
            return [self.of[user, next(k for k, a in branches.items() if a is node)]]
        return [home[user]]

    def _dissolve(self, key: tuple[fx.Node, int], side: Branch) -> None:
        assert side.parent is not None
        side.parent.nodes = sorted([*side.parent.nodes, *side.nodes], key=self._order.__getitem__)
        for other in self.of.values():
            if other.parent is side:
                other.parent = side.parent
        del self.of[key]


def branches_of(node: fx.Node) -> dict[int, fx.Node | Number]:
    """Return the branches of a selection: 0 where its condition holds, 1 where it does not."""
    args: Sequence[Any] = node.args
    if node.target == aten.where.self:
        return {0: args[1], 1: args[2]}
    if node.target == aten.masked_fill.Scalar:
        return {0: Number(args[2]), 1: args[0]}
    return {}


def condition_of(node: fx.Node) -> fx.Node:
    """Return the condition of a selection."""
    args: Sequence[Any] = node.args
    condition: fx.Node = args[0] if node.target == aten.where.self else args[1]
    return condition


def _common(sides: Sequence[Branch]) -> Branch:
    """Return the innermost branch that contains all of some branches."""
    first, *others = [side.path() for side in sides]
    for path in others:
        first = [a for a, b in zip(first, path, strict=False) if a is b]
    return first[-1]


_LONG = 6
"""Latency, in additions, above which splitting the loop before an elementary function pays."""
_LONG_AFTER = 8
"""Latency, in additions, of the rest of a chain from which splitting the loop after an elementary function pays."""


def loops_of(
    nodes: Sequence[fx.Node], outputs: Collection[fx.Node], reads: Mapping[fx.Node, Sequence[fx.Node]]
) -> dict[fx.Node, int]:
    """Return for each node the number of its loop; no loop reads results of a later one.

    Args:
        nodes: the nodes in topological order.
        outputs: nodes that are stored in the loop that computes them.
        reads: the operands of a node, conditions of the enclosing branches included.
    """
    stages: dict[fx.Node, int] = {}
    waited: dict[fx.Node, int] = {}
    to_come = _to_come(nodes, reads)
    for node in nodes:
        before = [a for a in reads[node] if a in stages]
        stage = max((stages[a] for a in before), default=0)
        ahead = max((waited[a] for a in before if stages[a] == stage), default=0)
        time = _time_of(node)
        if ahead > _LONG if time == FUNCTION else ahead >= FUNCTION and to_come[node] >= _LONG_AFTER:
            stage, ahead = stage + 1, 0
        stages[node], waited[node] = stage, ahead + time
    _delay(nodes, outputs, reads, stages)
    return stages


def _to_come(nodes: Sequence[fx.Node], reads: Mapping[fx.Node, Sequence[fx.Node]]) -> dict[fx.Node, int]:
    """Return the latency from a node's operands to the end of the longest chain through the node."""
    after = dict.fromkeys(nodes, 0)
    for node in reversed(nodes):
        after[node] += _time_of(node)
        for a in reads[node]:
            if a in after:
                after[a] = max(after[a], after[node])
    return after


def _time_of(node: fx.Node) -> int:
    if node.target == aten.pow.Tensor_Scalar and node.args[1] in (1, 2, 3):
        return 2
    lowering = lowerings.LOWERINGS.get(node.target)
    return lowering.latency if lowering else FUNCTION


def _delay(
    nodes: Sequence[fx.Node],
    outputs: Collection[fx.Node],
    reads: Mapping[fx.Node, Sequence[fx.Node]],
    stages: dict[fx.Node, int],
) -> None:
    """Move cheap nodes to the loop that reads them first, if their operands take no more memory than they do."""
    readers: dict[fx.Node, list[fx.Node]] = {node: [] for node in nodes}
    for node in nodes:
        for a in reads[node]:
            if a in readers:
                readers[a].append(node)
    for node in reversed(nodes):
        if node in outputs or node.target not in CHEAP or not readers[node]:
            continue
        stage = min(stages[reader] for reader in readers[node])
        own = [a for a in reads[node] if a in readers and all(stages[r] < stage for r in readers[a] if r is not node)]
        if sum(map(_size_of, own)) <= _size_of(node):
            stages[node] = stage


def _size_of(node: fx.Node) -> int:
    size: int = value_of(node).dtype.itemsize
    return size

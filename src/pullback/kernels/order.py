"""The order of regions: which of them have to run before which, known at all times while nodes are added to them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Protocol, TypeVar

from torch import fx


class Placed(Protocol):
    """A region with a complete list of nodes; `inputs` are the outside nodes that they read."""

    nodes: list[fx.Node]
    inputs: list[fx.Node]


R = TypeVar("R", bound=Placed)


def in_order(graph: fx.Graph, home: Mapping[fx.Node, R]) -> Iterator[fx.Node | R]:
    """Yield the regions of a graph, and the nodes in none of them, each after its operands.

    Args:
        graph: its order is kept where possible.
        home: the region of each node that is in one.
    """
    yielded: set[fx.Node | R] = set()
    for node in graph.nodes:
        stack: list[fx.Node | R] = [home.get(node, node)]
        while stack:
            at = stack[-1]
            read = at.all_input_nodes if isinstance(at, fx.Node) else at.inputs
            waiting = [] if at in yielded else [b for a in read if (b := home.get(a, a)) not in yielded]
            stack += waiting
            if not waiting:
                stack.pop()
                if at not in yielded:
                    yielded.add(at)
                    yield at


class Order:
    """Regions by number, and those that have to run before each.

    A node comes after all that it reads. Sets of regions are the bits of a number.
    """

    def __init__(self) -> None:
        self._before: list[int] = []
        self._region: dict[fx.Node, int] = {}
        self._latest: dict[fx.Node, int] = {}
        """For a node in no region, the latest regions that run before it: those without a successor among them."""

    def region(self) -> int:
        """Return the number of a new region without nodes."""
        self._before.append(0)
        return len(self._before) - 1

    def join(self, nodes: Iterable[fx.Node], region: int, read: Collection[fx.Node]) -> None:
        """Add nodes to a region; `read` are their operands."""
        self._region.update(dict.fromkeys(nodes, region))
        direct, through = self._reached(read)
        reached = (direct | through) & ~(1 << region)
        self._run_before(region, reached | self._all_before(reached))

    def stay_out(self, node: fx.Node) -> None:
        """Add a node that is in no region."""
        direct, through = self._reached(node.all_input_nodes)
        self._latest[node] = (direct | through) & ~self._all_before(direct | through)

    def closed(self, read: Collection[fx.Node]) -> int:
        """Return the regions that a node cannot join because something outside of them has to run in between.

        Args:
            read: the node's operands.
        """
        direct, through = self._reached(read)
        return through | self._all_before(direct | through)

    def runs_before(self, one: int, other: int) -> bool:
        """Whether a region has to run before another."""
        return bool(self._before[other] >> one & 1)

    def merge(self, one: int, other: int) -> None:
        """Merge a region into another, which does not depend on it. No nodes may be added afterwards."""
        bit = 1 << other
        self._run_before(other, self._before[one] & ~bit)
        for region, before in enumerate(self._before):
            if before >> one & 1:
                self._before[region] = before | bit | self._before[other]

    def _reached(self, read: Collection[fx.Node]) -> tuple[int, int]:
        """Return the regions that some nodes are in, and the latest that run before those in no region."""
        direct = through = 0
        for a in read:
            if a in self._region:
                direct |= 1 << self._region[a]
            else:
                through |= self._latest.get(a, 0)
        return direct, through

    def _all_before(self, regions: int) -> int:
        before = 0
        while regions:
            latest = regions.bit_length() - 1
            before |= self._before[latest]
            regions &= ~(self._before[latest] | 1 << latest)
        return before

    def _run_before(self, region: int, found: int) -> None:
        """Note that some regions, and all before these, run before one, and before all after it."""
        if found & ~self._before[region]:
            for other, before in enumerate(self._before):
                if other == region or before >> region & 1:
                    self._before[other] = before | found

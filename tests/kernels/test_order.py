"""The order of regions, against a search through the graph."""

import operator
import random

import pytest
from torch import fx

from pullback.kernels.regions import Order, in_order


def random_graph(draw, n):
    graph = fx.Graph()
    nodes = [graph.placeholder(f"x{i}") for i in range(3)]
    for _ in range(n):
        nodes.append(graph.call_function(operator.add, tuple(draw.choices(nodes[-12:], k=2))))
    return graph, nodes


def waits(read, members, home):
    """Whether nodes depend on a region through a node outside it; each region counts as one node."""
    seen, stack = set(), [a for a in read if home.get(a) is not members]
    while stack:
        at = stack.pop()
        around = home.get(at)
        if around is members:
            return True
        if at not in seen:
            group = around or [at]
            seen.update(group)
            stack += [a for node in group for a in node.all_input_nodes]
    return False


@pytest.mark.parametrize("seed", range(30))
def test_closed_regions_match_a_graph_search(seed):
    draw = random.Random(seed)
    graph, _ = random_graph(draw, 60)
    order, regions, home = Order(), [], {}
    for node in graph.nodes:
        read = node.all_input_nodes
        closed = order.closed(read)
        searched = [waits(read, members, home) for members in regions]
        assert [bool(closed >> i & 1) for i in range(len(regions))] == searched
        open_ones = [i for i, waiting in enumerate(searched) if not waiting]
        kind = draw.choice(["out", "new", "join", "join"])
        if kind == "out":
            order.stay_out(node)
            continue
        if kind == "new" or not open_ones:
            regions.append([])
            open_ones = [order.region()]
        number = draw.choice(open_ones)
        regions[number].append(node)
        home[node] = regions[number]
        order.join([node], number, read)


@pytest.mark.parametrize("seed", range(30))
def test_merged_regions_keep_the_order_of_both(seed):
    draw = random.Random(seed)
    graph, _ = random_graph(draw, 30)
    order, home = Order(), {}
    for node in graph.nodes:  # each a region by itself
        home[node] = [node]
        order.join([node], order.region(), node.all_input_nodes)
    nodes, alive = list(graph.nodes), set(range(len(home)))
    for _ in range(40):
        one, other = draw.sample(sorted(alive), 2)
        if order.runs_before(one, other) or waits(nodes[one].all_input_nodes, home[nodes[other]], home):
            continue
        order.merge(one, other)
        home[nodes[other]].extend(home[nodes[one]])
        home |= dict.fromkeys(home[nodes[one]], home[nodes[other]])
        alive.remove(one)
        for a in alive:
            for b in alive - {a}:
                members = home[nodes[b]]
                read = [r for node in members for r in node.all_input_nodes if home[r] is not members]
                group = home[nodes[a]]
                needed = waits(read, group, home) or any(home[r] is group for r in read)
                assert order.runs_before(a, b) == needed


class Placed:
    def __init__(self, nodes, inputs):
        self.nodes, self.inputs = nodes, inputs


def test_region_is_placed_after_all_its_inputs():
    graph = fx.Graph()
    x = graph.placeholder("x")
    first = graph.call_function(operator.neg, (x,))
    reader = graph.call_function(operator.neg, (first,))
    between = graph.call_function(operator.pos, (x,))
    last = graph.call_function(operator.add, (first, between))
    region = Placed([first, last], [x, between])
    assert list(in_order(graph, dict.fromkeys(region.nodes, region))) == [x, between, region, reader]

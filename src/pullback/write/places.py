"""How shapes, indices and sizes are spelled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pullback.write.expressions import ATOM, Context, Text, op_name


def _transposed(node: Any, context: Context) -> Text:
    x: Any = node.args[0]
    return Text(f"{context.show(x).at(ATOM)}.T") if x.meta["val"].dim() == 2 else context.show(x)


def _sized(node: Any, context: Context) -> Text:
    x, sizes = node.args[:2]
    method = "expand" if op_name(node) == "expand" else "reshape"
    return Text(f"{context.show(x).at(ATOM)}.{method}({context.show(sizes).text})")


def _slice(node: Any, context: Context) -> Text:
    given = list(node.args)
    x, dim, start, end, step = given + [0, None, None, 1][len(given) - 1 :]
    place = dim % x.meta["val"].dim()
    last = end is None or (isinstance(end, int) and end >= 2**62)
    span = f"{'' if start in (0, None) else context.show(start).text}:{'' if last else context.show(end).text}"
    span += "" if step == 1 else f":{context.show(step).text}"
    return Text(f"{context.show(x).at(ATOM)}[{', '.join([':'] * place + [span])}]")


def _select(node: Any, context: Context) -> Text:
    x, dim, index = node.args
    place = dim % x.meta["val"].dim()
    return Text(f"{context.show(x).at(ATOM)}[{', '.join([':'] * place + [context.show(index).text])}]")


def _index(node: Any, context: Context) -> Text:
    x, places = node.args
    shown = [":" if i is None else context.show(i).text for i in places]
    return Text(f"{context.show(x).at(ATOM)}[{', '.join(shown)}]")


def _index_put(node: Any, context: Context) -> Text | None:
    x, places, values = node.args[:3]
    if any(i is None for i in places):
        return None
    inside = ", ".join(context.show(i).text for i in places)
    comma = "," if len(places) == 1 else ""
    more = ", accumulate=True" if (*node.args[3:], node.kwargs.get("accumulate"))[0] else ""
    return Text(f"{context.show(x).at(ATOM)}.index_put(({inside}{comma}), {context.show(values).text}{more})")


def _size(node: Any, context: Context) -> Text:
    return Text(f"{context.show(node.args[0]).at(ATOM)}.shape[{node.args[1]}]")


def _count(node: Any, context: Context) -> Text:
    return Text(f"{context.show(node.args[0]).at(ATOM)}.numel()")


PLACES: dict[str, Callable[[Any, Context], Text | None]] = {
    "t": _transposed,
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "expand"), _sized),
    "slice": _slice,
    "select": _select,
    "index": _index,
    "index_put": _index_put,
    "sym_size": _size,
    "sym_numel": _count,
}

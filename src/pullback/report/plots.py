"""Plots of measurements as SVG, embedded in the page: with text as text, and in the colours of the page.

They need matplotlib (`pip install 'pullback[plots]'`).
"""

from __future__ import annotations

import importlib.util
import io
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from pullback.report.model import GradientCurve, UlpErrors
from pullback.report.text import clean_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK, _DIM, _RULE, _ERROR, _OK = "#010203", "#010204", "#010205", "#010206", "#010207"
_SERIES = ("#010208", "#010209", "#01020a", "#01020b")
_COLOURS = {
    **dict(zip((_INK, _DIM, _RULE, _ERROR, _OK), ("ink", "dim", "rule", "error", "ok"), strict=True)),
    **{colour: f"series-{k}" for k, colour in enumerate(_SERIES)},
}
"""Placeholders of the page's colours, which matplotlib cannot name."""
_DTYPES = ("float64", "float32", "bfloat16", "float16")
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "pullback",
    "text.parse_math": False,
    "font.size": 10.0,
    "font.family": "sans-serif",
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "text.color": _INK,
    "axes.labelcolor": _DIM,
    "axes.edgecolor": _RULE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "xtick.color": _RULE,
    "ytick.color": _RULE,
    "xtick.labelcolor": _DIM,
    "ytick.labelcolor": _DIM,
    "grid.color": _RULE,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
}
_SIZE = (4.6, 2.7)
_PLACE = (0.13, 0.16, 0.82, 0.7)
_ABOVE: dict[str, Any] = {"bbox_to_anchor": (0, 1), "borderaxespad": 0.2, "fontsize": 9, "handlelength": 1.5}
_NAMESPACES = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
_SMALL = 2.0**-24
_ULP_FLOOR, _ULP_CEILING = 0.1, 1e9


def can_plot() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def slope_plot(slope: GradientCurve, function: str) -> Markup:
    """Return the plot of a gradient and of the numeric derivative of the forward, along one input."""
    by = clean_line(slope.by)

    def draw(axes: Axes) -> None:
        middle = [None if a is None or b is None else (a + b) / 2 for a, b in zip(slope.low, slope.high, strict=True)]
        at, low, high = map(_floats, (slope.at, slope.low, slope.high))
        axes.fill_between(at, low, high, color=_OK, alpha=0.35, linewidth=0)
        axes.plot(at, _floats(middle), color=_OK, linewidth=3, alpha=0.6, label="numeric derivative")
        axes.plot(at, _floats(slope.got), color=_ERROR, linewidth=1.2, linestyle=(0, (4, 1.5)), label="backward")
        axes.set_ylim(*_limits([*slope.low, *slope.high], slope.got))
        axes.locator_params(nbins=8)
        axes.set_xlabel(by)
        axes.legend(loc="lower left", ncols=2, **_ABOVE)

    title = f"Gradient of {by} by the backward of {clean_line(function)}, and the numeric derivative of its forward"
    return _svg(draw, title)


def error_plot(of: str, members: Sequence[UlpErrors], function: str) -> Markup:
    """Return the plot of the errors of one quantity, in every dtype."""

    def draw(axes: Axes) -> None:
        for one in members:
            colour = _SERIES[_DTYPES.index(one.dtype)]
            at = _floats(one.at)
            ulp = [min(max(x, _ULP_FLOOR), _ULP_CEILING) for x in _floats(one.ulp)]
            axes.plot(at, ulp, color=colour, linewidth=1.2, label=one.dtype)
            spurious = [x for x, error in zip(at, one.ulp, strict=True) if error is None]
            axes.plot(spurious, [_ULP_CEILING] * len(spurious), "x", color=colour, markersize=4)
        axes.set_xscale("symlog", linthresh=_SMALL, linscale=0.3)
        axes.set_xticks([-1e6, -1e3, -1, -1e-3, 0, 1e-3, 1, 1e3, 1e6])
        axes.set_xticklabels(["−1e6", "", "−1", "", "0", "", "1", "", "1e6"])
        axes.set_yscale("log")
        axes.set_ylim(_ULP_FLOOR, 2 * _ULP_CEILING)
        axes.set_yticks([0.1, 1, 1e3, 1e6, _ULP_CEILING], ["≤ 0.1", "1", "1e3", "1e6", "≥ 1e9"])
        axes.minorticks_off()
        axes.legend(loc="lower left", ncols=4, columnspacing=1, **_ABOVE)

    what = f"{clean_line(of)} of {clean_line(function)}"
    return _svg(draw, f"Error of the {what}, in units in the last place, over the range of its input")


def _svg(draw: Callable[[Axes], None], title: str) -> Markup:
    from matplotlib import style
    from matplotlib.figure import Figure

    out = io.StringIO()
    with style.context(["default", _SETTINGS]):  # independent of the user's settings
        figure = Figure(figsize=_SIZE)
        axes = figure.add_axes(_PLACE)
        axes.grid(True)
        draw(axes)
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(out, format="svg", metadata=nothing)
    return _for_the_page(out.getvalue(), title)


def _for_the_page(svg: str, title: str) -> Markup:
    """Give an SVG an accessible name and the colours of the page, and remove styles and ids of its own."""
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r'\bd="[^"<]*"', lambda match: re.sub(r"(\.\d\d)\d+|\s+", r"\1 ", match[0]), svg)
    svg = re.sub(r'style="font: (\S+) [^;"<]*', r'style="font: \1 system-ui, sans-serif', svg)
    svg = re.sub(r">\s+<", "><", svg)
    for stand_in, name in _COLOURS.items():
        svg = svg.replace(stand_in, f"var(--{name})")
    head, _, rest = svg.partition(">")
    box = head[head.index("viewBox=") :].split('"')[1]
    label = Markup.escape(title)
    head = f'<svg class="plot" viewBox="{box}" role="img" aria-label="{label}" {_NAMESPACES}>'
    return Markup(f"{head}<title>{label}</title>{rest}")


def _floats(numbers: Sequence[float | None]) -> list[float]:
    return [float("nan") if x is None else x for x in numbers]


def _limits(derivative: Sequence[float | None], got: Sequence[float | None]) -> tuple[float, float]:
    """Return the limits of the vertical axis: without the extreme values, so that a pole leaves the rest visible."""
    known = sorted(x for x in (*derivative, *got) if x is not None)
    if not known:
        return 0.0, 1.0
    cut = len(known) // 50
    low, high = known[cut], known[-1 - cut]
    margin = 0.08 * (high - low) or max(1e-3, 0.5 * abs(high))
    return low - margin, high + margin

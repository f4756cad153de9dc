"""Plot of the figures of `kernels.py`: time of the peers of one formula by size, relative to `torch.sigmoid`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SHOWN = {
    "eager": "eager formula",
    "hand": "hand-written Function",
    "compile": "torch.compile",
    "wide": "pullback, searched forms",
    "op": "pullback, default",
    "written": "pullback, as written",
    "copy": "copy of the same bytes",
}
FEW = 1024
"""Sizes up to this one fit the cache, so a copy does not measure memory."""


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the first formula of some rows.

    Raises:
        SystemExit: if matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise SystemExit("the plot needs matplotlib, which is no dependency of this project: pip install it") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    of = [row for row in rows if row["formula"] == rows[0]["formula"] and not row["large_pages"]]
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for peer, label in SHOWN.items():
        has = [row for row in of if peer in row["seconds"] and (peer != "copy" or row["n"] >= FEW)]
        points = [(row["n"], row["seconds"][peer] / row["seconds"]["sigmoid"]) for row in has]
        if points:
            width = 2.5 if label.startswith("pullback") else 1.2
            axes.plot(*zip(*points, strict=True), marker="o", markersize=4, linewidth=width, label=label)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="elements (float32)", ylabel="time over torch.sigmoid's")
    axes.set_title(f"{rows[0]['formula']}: forward and backward", fontsize=10)
    axes.set_xticks([row["n"] for row in of], [f"$2^{{{row['n'].bit_length() - 1}}}$" for row in of])
    axes.set_yticks([0.5, 1, 2, 4, 8, 16], ["0.5", "1", "2", "4", "8", "16"])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path)
    print(f"written: {path}")

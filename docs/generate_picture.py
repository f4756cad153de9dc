"""Writes docs/sin_squared.svg: the gradient of the README's wrong function, beside the numeric derivative.

    python docs/generate_picture.py

It is the picture that the HTML report shows of the function, with colours of its own.
"""

import re
import tempfile
from pathlib import Path

import pullback
from pullback.report.plots import slope_plot

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "sin_squared.svg"
COLOURS = {"ink": "#1f2328", "dim": "#59636e", "rule": "#d1d9e0", "error": "#cf222e", "ok": "#1a7f37"}


def main() -> None:
    """Audit the first block of the README, and draw what was measured."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="pullback-picture-") as folder:
        ops = Path(folder) / "ops.py"
        ops.write_text(re.findall(r"^```python\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)[0], encoding="utf-8")
        (subject,) = pullback.check(str(ops), select="PB1").subjects
    (slope,) = subject.measured.slopes
    TARGET.write_text(f"{standing_alone(str(slope_plot(slope, subject.name)))}\n", encoding="utf-8")


def standing_alone(svg: str) -> str:
    """Give a picture of the report a size, a white ground, and the colours that it otherwise takes from the page."""
    width, height = re.search(r'viewBox="0 0 (\S+) (\S+)"', svg).groups()
    for name, colour in COLOURS.items():
        svg = svg.replace(f"var(--{name})", colour)
    head, end, rest = svg.replace("<svg ", f'<svg width="{width}pt" height="{height}pt" ', 1).partition("</title>")
    return f'{head}{end}<rect width="100%" height="100%" fill="#ffffff"/>{rest}'


if __name__ == "__main__":
    main()

"""The printed table of a measurement."""

import io
import math

from rich.console import Console

from pullback.stable.measure import Spurious, Summary, Worst
from pullback.stable.result import Accuracy, Row, render, render_text

GOOD = Summary(1000, 1000, 0.75, Worst({"x": 1.5}, 1.0, 1.0), 250.0, 0)
NAN, ZERO = Spurious(2, {"x": 88.7}), Spurious(98, {"x": 9.0})
BAD = Summary(1000, 900, 8e6, Worst({"x": -2.0}, 1.0, 2.0), 9e6, 123, NAN, Spurious(), ZERO, 7, 3.0, 0, 12)


def measured(domain=None, **missing):
    rows = (
        Row("float32", "value", "sample", GOOD, "the oracle"),
        Row("float32", "d/dx", "sample", BAD, "the oracle"),
        Row("bfloat16", "value", "every input", Summary(), "the oracle"),
    )
    return Accuracy("f", ("x",), domain or {}, rows, missing, "2.13")


def test_measurement_as_text():
    assert render_text(measured(float16="there is no kernel")).splitlines() == [
        "f(x)",
        "dtype     of     points  max ulp   mean  > 4 ulp  subnormal  worst at  spurious",
        "float32   value    1000     0.75   0.25        0             x=1.5",
        "          d/dx     1000    8e+06  1e+04    12.3%          3  x=-2      NaN 0.2% from x=88.7; zero 9.8% from",
        "                                                                       x=9; 12 undecided",
        "bfloat16  value       0                        0",
        "float32: a sample, so a maximum is a lower bound; exact values from the oracle.",
        "bfloat16: every finite input; exact values from the oracle.",
        "float16: does not run: there is no kernel",
        "torch 2.13",
    ]


def test_domain_is_in_the_heading():
    above = math.nextafter(0.0, 1.0)
    assert render_text(measured({"x": (above, math.inf)})).startswith("f(x) for x > 0\n")
    assert render_text(measured({"x": (-1.0, 0.5)})).startswith("f(x) for x >= -1 and x <= 0.5\n")


def test_terminal_output_has_colours():
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    render(measured(), console)
    assert "\x1b[" in console.file.getvalue()


def test_names_are_escaped():
    strange = Accuracy("[red]f\x1b[0m", ("x",), {}, (), {}, "2.13")
    assert render_text(strange).splitlines()[0] == "[red]f\\x1b[0m(x)"

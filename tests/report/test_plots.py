"""SVG plots: labels, colours, escaping, and independence from the page around them."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from .findings import DTYPES, MEASURED

pytest.importorskip("matplotlib")

from pullback.report.plots import error_plot, slope_plot

(SLOPE,) = MEASURED.slopes
VALUE = [errors for errors in MEASURED.errors if errors.of == "value"]


def words(picture):
    root = ElementTree.fromstring(picture)
    return [e.text for e in root.iter() if e.tag.endswith("text")]


def test_curve_plot_names_the_input_and_both_curves():
    found = words(slope_plot(SLOPE, "Square"))
    assert {"x", "numeric derivative", "backward"} <= set(found)


def test_error_plot_names_every_dtype_and_the_scale():
    assert {*DTYPES, "1e6", "≥ 1e9"} <= set(words(error_plot("value", VALUE, "Square")))


def test_colours_are_variables_of_the_page():
    for picture in (slope_plot(SLOPE, "Square"), error_plot("value", VALUE, "Square")):
        assert "var(--" in picture
        assert not re.search(r"(fill|stroke): #[0-9a-f]", picture)


def test_picture_has_no_styles_and_no_external_references():
    picture = slope_plot(SLOPE, "Square")
    assert "<style" not in picture
    assert "<metadata" not in picture
    assert not re.search(r"href=\"(?!#)", picture)
    assert not re.search(r"url\((?!#)", picture)


def test_names_are_escaped_and_not_parsed_as_mathtext():
    hostile = replace(SLOPE, by="$\\frac{$</text><script> font: 1 d=")
    picture = slope_plot(hostile, '"><script>')
    assert "<script" not in picture
    assert "$\\frac{$</text><script> font: 1 d=" in words(picture)
    assert ElementTree.fromstring(picture).get("aria-label").count("<script>") == 2


def test_plot_is_deterministic():
    assert slope_plot(SLOPE, "Square") == slope_plot(SLOPE, "Square")


@pytest.mark.parametrize("numbers", [(None, None, None), (1.0, 1.0, 1.0), (0.0, 0.0, 1e300)])
def test_missing_equal_and_extreme_numbers_can_be_plotted(numbers):
    assert slope_plot(replace(SLOPE, got=numbers, low=numbers, high=numbers), "Square").startswith("<svg")
    assert error_plot("value", [replace(VALUE[0], ulp=numbers)], "Square").startswith("<svg")

import html
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from pullback.report import plots
from pullback.report.html import to_html
from pullback.report.model import ContextResult, Evidence, Location, Measurements, SubjectResult

from .findings import ERROR, INFO, MEASURED, UNAUDITED, report


def body_of(page):
    """The body, which has to be well-formed, as a tree."""
    return ElementTree.fromstring(re.search(r"<body>.*</body>", page, re.S).group())


def text_of(page):
    return " ".join("".join(body_of(page).itertext()).split())


def test_every_finding_is_on_the_page():
    text = text_of(to_html(report(ERROR, INFO, UNAUDITED, allowed=2)))
    for part in (ERROR.message, ERROR.hint, ERROR.reproduce, "expected 2", "PB001", "PB405", "allowed: 2", "ops.py:12"):
        assert part in text


HOSTILE = "<script>alert(1)</script>&\"'\x1b[31m"


@pytest.mark.parametrize("field", ["subject", "message", "hint", "reproduce", "name"])
def test_fields_of_findings_are_escaped(field):
    hostile = replace(ERROR, **{field: HOSTILE}, location=Location(HOSTILE, 1))
    found = report(hostile)
    named = SubjectResult(hostile.subject, hostile.location, "wrong", 1, 0.1)
    page = to_html(replace(found, subjects=(named,)))
    assert "<script" not in page.lower()
    assert "\x1b" not in page
    assert "<script>alert(1)</script>" in text_of(page)


def test_values_and_source_are_escaped(tmp_path):
    path = tmp_path / "ops.py"
    path.write_text("x = '<script>1</script>'\n")
    evidence = replace(ERROR.evidence, got="<script>" * 20, where="</pre><script>")
    found = report(replace(ERROR, evidence=evidence, location=Location(str(path), 1)))
    found = replace(found, subjects=(replace(found.subjects[0], location=Location(str(path), 1)),))
    page = to_html(found)
    assert "<script" not in page
    assert "x = '<script>1</script>'" in text_of(page)


def test_page_loads_no_external_resources():
    page = to_html(report(ERROR, INFO))
    assert not re.search(r"(src|href)\s*=\s*[\"'](?!#)", page)
    assert "@import" not in page
    assert "default-src 'none'" in page


def test_every_link_has_a_target():
    root = body_of(to_html(report(ERROR)))
    ids = {e.get("id") for e in root.iter() if e.get("id")}
    links = [a.get("href") for a in root.iter("a")]
    assert links
    assert {link[1:] for link in links} == ids


def test_report_without_findings_or_functions_renders():
    assert "nothing found" in text_of(to_html(report()))
    assert "0 functions" in text_of(to_html(replace(report(), subjects=())))


def test_notebook_shows_the_page_in_a_sandboxed_frame():
    found = report(replace(ERROR, message='"><script>'))
    page = re.fullmatch(r'<iframe sandbox srcdoc="([^"]*)" style="[^"<>]*"></iframe>', found._repr_html_())
    assert html.unescape(page.group(1)) == to_html(found)


def test_secondary_finding_is_folded_in_full():
    second = replace(ERROR, rule="PB401", message="The second one.", reproduce="fn(2)", hint="And again.")
    root = body_of(to_html(report(ERROR, second)))
    (article,) = root.iter("article")
    (folded,) = [d for d in article.iter("details") if d.get("class") == "also"]
    text = " ".join("".join(folded.itertext()).split())
    for part in ("also error PB401", "The second one.", "fn(2)", "And again.", "expected 2"):
        assert part in text
    assert "PB101" not in text


def test_table_counts_findings_by_severity():
    root = body_of(to_html(report(ERROR, replace(ERROR, rule="PB104"), UNAUDITED)))
    (row,) = [tr for tr in root.iter("tr") if tr.find("td/a") is not None]
    assert [td.text for td in row.iter("td") if "n" in td.get("class", "").split()] == [
        *("12", "2", "1", None, "3", "0.5")
    ]


def test_each_context_has_its_result_in_words():
    root = body_of(to_html(report(ERROR, measured=MEASURED)))
    (row,) = [ul for ul in root.iter("ul") if ul.get("class") == "contexts"]
    told = [" ".join("".join(li.itertext()).split()) for li in row.iter("li")]
    assert told == ["✗ eager error", "○ func.grad refused", "– export not tried"]


def test_byte_counts_are_a_bar():
    kept = replace(ERROR, rule="PB702", evidence=Evidence(16, 64, where="kept for the backward", unit="bytes"))
    for page in (to_html(report(kept)), to_html(report(replace(kept, severity="info")))):
        (bar,) = [e for e in body_of(page).iter("span") if e.get("class") == "bar"]
        assert bar.get("aria-label") == "16 of 64 bytes are needed"
        assert bar.find("span").get("style") == "width: 25.0%"


def test_plots_have_labels_and_captions():
    pytest.importorskip("matplotlib")
    root = body_of(to_html(report(ERROR, measured=MEASURED)))
    figures = list(root.iter("figure"))
    assert len(figures) == 3
    for figure in figures:
        (picture,) = [e for e in figure if e.tag.endswith("svg")]
        assert picture.get("role") == "img"
        assert "Square" in picture.get("aria-label")
        assert picture[0].text == picture.get("aria-label")
    captions = [figure.find("figcaption").text for figure in figures]
    for word, caption in zip(("ten error bars", "exact values", "a float64 run"), captions, strict=True):
        assert word in caption


def test_page_without_matplotlib_is_complete_and_names_the_package(monkeypatch):
    monkeypatch.setattr(plots, "can_plot", lambda: False)
    page = to_html(report(ERROR, measured=MEASURED))
    assert "pip install 'pullback[plots]'" in text_of(page)
    assert "<svg" not in page
    assert ERROR.message in text_of(page)
    assert "pullback[plots]" not in text_of(to_html(report(ERROR)))


def test_number_of_plots_is_limited_with_a_note(monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(plots, "slope_plot", lambda slope, function: plots.Markup("<svg/>"))
    one = replace(report(measured=replace(MEASURED, errors=())).subjects[0])
    names = [f"f{n}" for n in range(50)]
    found = replace(
        report(),
        subjects=tuple(replace(one, name=name) for name in names),
        findings=tuple(replace(ERROR, subject=name) for name in names),
    )
    page = to_html(found)
    assert page.count("<svg/>") == 40
    assert "those of the first 40 functions are" in text_of(page)


def test_measurements_are_escaped():
    hostile = Measurements(
        (ContextResult(HOSTILE, "error"),),
        tuple(replace(slope, by=HOSTILE) for slope in MEASURED.slopes),
        tuple(replace(errors, of=HOSTILE) for errors in MEASURED.errors),
    )
    finding = replace(ERROR, subject=HOSTILE)
    found = report(finding, measured=hostile)
    found = replace(found, subjects=(replace(found.subjects[0], name=HOSTILE),))
    page = to_html(found)
    assert "<script" not in page.lower()
    assert "\x1b" not in page
    assert text_of(page).count("<script>alert(1)</script>") >= 3


def test_functions_with_errors_come_first():
    one = report().subjects[0]
    mild, bad = replace(ERROR, subject="Mild", severity="warning"), replace(ERROR, subject="Bad")
    subjects = tuple(replace(one, name=name) for name in ("Square", "Mild", "Bad"))
    root = body_of(to_html(replace(report(), subjects=subjects, findings=(INFO, mild, bad))))
    assert [section.find("h2").text for section in root.iter("section")] == ["Bad", "Mild", "Square"]
    names = [code.text for code in root.iter("code")]
    assert names == ["Square", "Mild", "Bad"]


def test_functions_are_grouped_by_file():
    one = report().subjects[0]
    nowhere = replace(one, name="Nowhere", location=Location())
    root = body_of(to_html(replace(report(), subjects=(one, nowhere))))
    assert [tr.find("td").text for tr in root.iter("tr") if tr.get("class") == "file"] == ["ops.py", "no file"]

import html
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from pullback.report.html import to_html
from pullback.report.model import Location, SubjectResult

from .findings import ERROR, INFO, UNAUDITED, report


def body_of(page):
    """The body, which has to be well-formed, as a tree."""
    return ElementTree.fromstring(re.search(r"<body>.*</body>", page, re.S).group())


def text_of(page):
    return " ".join("".join(body_of(page).itertext()).split())


def test_all_that_was_found_is_on_the_page():
    text = text_of(to_html(report(ERROR, INFO, UNAUDITED, allowed=2)))
    for part in (ERROR.message, ERROR.hint, ERROR.reproduce, "expected 2", "PB001", "PB405", "allowed: 2", "ops.py:12"):
        assert part in text


HOSTILE = "<script>alert(1)</script>&\"'\x1b[31m"


@pytest.mark.parametrize("field", ["subject", "message", "hint", "reproduce", "name"])
def test_what_is_audited_cannot_become_markup(field):
    hostile = replace(ERROR, **{field: HOSTILE}, location=Location(HOSTILE, 1))
    found = report(hostile)
    named = SubjectResult(hostile.subject, hostile.location, "wrong", 1, 0.1)
    page = to_html(replace(found, subjects=(named,)))
    assert "<script" not in page.lower()
    assert "\x1b" not in page
    assert "<script>alert(1)</script>" in text_of(page)


def test_hostile_values_and_source_stay_text(tmp_path):
    path = tmp_path / "ops.py"
    path.write_text("x = '<script>1</script>'\n")
    evidence = replace(ERROR.evidence, got="<script>" * 20, where="</pre><script>")
    found = report(replace(ERROR, evidence=evidence, location=Location(str(path), 1)))
    found = replace(found, subjects=(replace(found.subjects[0], location=Location(str(path), 1)),))
    page = to_html(found)
    assert "<script" not in page
    assert "x = '<script>1</script>'" in text_of(page)


def test_nothing_comes_from_elsewhere():
    page = to_html(report(ERROR, INFO))
    assert not re.search(r"(src|href)\s*=\s*[\"'](?!#)", page)
    assert "@import" not in page
    assert "default-src 'none'" in page


def test_links_lead_somewhere():
    root = body_of(to_html(report(ERROR)))
    ids = {e.get("id") for e in root.iter() if e.get("id")}
    links = [a.get("href") for a in root.iter("a")]
    assert links
    assert {link[1:] for link in links} == ids


def test_without_findings_and_without_functions():
    assert "nothing found" in text_of(to_html(report()))
    assert "0 functions" in text_of(to_html(replace(report(), subjects=())))


def test_a_notebook_shows_the_page_in_a_frame_of_its_own():
    found = report(replace(ERROR, message='"><script>'))
    page = re.fullmatch(r'<iframe sandbox srcdoc="([^"]*)" style="[^"<>]*"></iframe>', found._repr_html_())
    assert html.unescape(page.group(1)) == to_html(found)

"""The HTML page in a browser: desktop and phone widths, light and dark colour schemes."""

import re
import shutil
import subprocess
from dataclasses import replace

import pytest

from pullback.report.html import to_html

from .findings import ERROR, INFO, MEASURED, report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="no browser")]

DESK, PHONE = 1280, 390
LIGHT, DARK = ("--blink-settings=preferredColorScheme=1",), ("--blink-settings=preferredColorScheme=0",)
PAPER, NIGHT = (255, 255, 255), (13, 17, 23)
LONG = "A_name_that_is_much_longer_than_any_phone_is_wide_and_has_no_space_in_it_at_all_from_end_to_end"

_TELL = """<script>addEventListener("load", () => {
  const root = document.documentElement, style = getComputedStyle(document.body);
  parent.postMessage([root.scrollWidth, root.clientWidth, style.backgroundColor].join("|"), "*");
});</script></body>"""
_FRAME = """<body style="margin: 0"><script>
addEventListener("message", (e) => document.body.setAttribute("data-facts", e.data));
</script><iframe src="page.html" style="border: 0; width: {width}px; height: 900px"></iframe></body>"""
"""A frame can be as narrow as a phone; the window of a headless browser has a minimum width."""


def page():
    """A page with long names, code and numbers, and a script that measures it."""
    finding = replace(ERROR, subject=LONG, message="x" * 300, hint="y " * 90, reproduce="z" * 300)
    found = report(ERROR, INFO, measured=MEASURED)
    wide = replace(found.subjects[0], name=LONG, cases=12345)
    text = to_html(replace(found, subjects=(*found.subjects, wide), findings=(*found.findings, finding)))
    opened = text.replace("<details", "<details open")
    return re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", opened).replace("</body>", _TELL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    (folder / "page.html").write_text(page(), encoding="utf-8")
    return folder


def browse(folder, width, *options):
    """Run the browser on the page in a frame of that width, and return what it prints."""
    frame = folder / f"frame_{width}.html"
    frame.write_text(_FRAME.format(width=width))
    profile = f"--user-data-dir={folder / 'profile'}"
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", profile]
    size = f"--window-size={max(width, 500)},900"
    return subprocess.run(
        [*command, size, *options, frame.as_uri()], capture_output=True, text=True, timeout=120, check=True
    ).stdout


@pytest.mark.parametrize("width", [DESK, PHONE])
@pytest.mark.parametrize(("scheme", "paper"), [(LIGHT, PAPER), (DARK, NIGHT)], ids=["light", "dark"])
def test_page_fits_the_width_and_follows_the_colour_scheme(folder, width, scheme, paper):
    told = re.search(r'data-facts="(\d+)\|(\d+)\|([^"]*)"', browse(folder, width, *scheme, "--dump-dom"))
    assert int(told[2]) == width
    assert int(told[1]) == width  # no horizontal overflow
    assert told[3] == f"rgb{paper}"


@pytest.mark.parametrize("width", [DESK, PHONE])
@pytest.mark.parametrize(("scheme", "paper"), [(LIGHT, PAPER), (DARK, NIGHT)], ids=["light", "dark"])
def test_screenshot_is_not_blank(folder, width, scheme, paper):
    image = pytest.importorskip("PIL.Image")
    target = folder / f"page_{width}_{paper[0]}.png"
    browse(folder, width, *scheme, f"--screenshot={target}")
    with image.open(target) as picture:
        pixels = picture.convert("RGB").crop((0, 0, width, 900))
    counted = {colour: count for count, colour in pixels.getcolors(1 << 24)}
    assert 0.5 < counted[paper] / (width * 900) < 0.98
    assert len(counted) > 50

"""Writes docs/report.png, a picture of the HTML report on examples/tutorial_functions.py.

    python docs/generate_screenshot.py

It needs Chromium, and Pillow, which matplotlib brings along.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "report.png"
AUDITED = "examples/tutorial_functions.py"
WIDTH, HEIGHT = 1080, 1600
COLOURS = 256  # text and lines need no more, and the file is half the size


def main() -> None:
    """Audit, show and shoot."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        sys.exit("there is no Chromium here")
    with tempfile.TemporaryDirectory(prefix="pullback-screenshot-") as folder:
        page, picture = Path(folder) / "report.html", Path(folder) / "report.png"
        audit = [sys.executable, "-m", "pullback", "check", AUDITED, "--format", "html", "--output", str(page)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        subprocess.run([*audit, "--fail-on", "never"], cwd=ROOT, env=environment, check=True)
        shoot = [browser, "--headless", "--no-sandbox", "--hide-scrollbars", f"--user-data-dir={folder}/profile"]
        size = [
            f"--window-size={WIDTH},{HEIGHT}",
            "--blink-settings=preferredColorScheme=1",
            "--virtual-time-budget=2000",
        ]
        subprocess.run([*shoot, *size, f"--screenshot={picture}", page.as_uri()], check=True, capture_output=True)
        with Image.open(picture) as image:
            image.convert("RGB").quantize(COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(
                TARGET, optimize=True
            )


if __name__ == "__main__":
    main()

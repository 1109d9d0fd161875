"""Draw the diagrams of the documentation again: ``python docs/diagrams.py``.

Each Mermaid block of a page becomes two pictures, for light and for dark pages, so that the site
loads no script from the network. Mermaid comes from npm, and Chromium draws.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from hooks import DIAGRAM, THEMES, picture_name

DOCS: Final = Path(__file__).resolve().parent
PICTURES: Final = DOCS / "images" / "diagrams"
sys.path.insert(0, str(DOCS.parent / "tests"))
from browser import Browser  # noqa: E402  the tests' own

_MERMAID: Final = "mermaid@11.17.2"


def diagrams() -> list[str]:
    """Return the diagrams of all pages."""
    pages = sorted(DOCS.rglob("*.md"))
    return [diagram for page in pages for diagram in DIAGRAM.findall(page.read_text("utf-8"))]


def main() -> None:
    """Draw every diagram, and delete pictures of earlier ones."""
    for picture in PICTURES.glob("*.svg"):
        picture.unlink()
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, Browser(1200, 1200) as browser:
        command = ["npm", "pack", "--silent", _MERMAID]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)  # noqa: S603
        [package] = Path(folder).glob("*.tgz")
        with tarfile.open(package) as archive:
            archive.extract("package/dist/mermaid.min.js", folder, filter="data")
        page = Path(folder) / "page.html"
        page.write_text('<script src="package/dist/mermaid.min.js"></script>', "utf-8")
        browser.go(page.as_uri())
        browser.wait("window.mermaid")
        for diagram in diagrams():
            for theme, mermaid_theme in THEMES.items():
                settings = {
                    "theme": mermaid_theme,
                    "htmlLabels": False,
                    "flowchart": {"htmlLabels": False, "useMaxWidth": False},
                    "fontFamily": "sans-serif",
                }
                browser.eval(f"mermaid.initialize({json.dumps(settings)})")
                drawn = browser.eval(f"mermaid.render('d', {json.dumps(diagram)}).then(d => d.svg)")
                file = PICTURES / picture_name(diagram, theme)
                file.write_text(drawn + "\n", "utf-8")


if __name__ == "__main__":
    main()

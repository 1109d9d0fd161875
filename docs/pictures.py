"""Make the pictures of README and documentation again: `python docs/pictures.py`.

They show real output: the HTML page of a file's chunks, and the page that `serve` shows. Chromium
draws them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from llama_index.core import Document

from llama_index_contextual import ContextualNodePostprocessor, HeadingAwareMarkdownNodeParser
from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.serve.html import chunk_data, render

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from browser import CHROMIUM, Browser  # noqa: E402  the tests' own

IMAGES = ROOT / "docs" / "images"


def chunks() -> None:
    """Draw the page of a file's chunks."""
    path = ROOT / "examples" / "notes" / "docs" / "gateway.md"
    document = Document(
        text=path.read_text("utf-8"), id_="docs/gateway.md", metadata={"path": "docs/gateway.md"}
    )
    nodes = ContextualNodePostprocessor()(
        HeadingAwareMarkdownNodeParser(chunk_size=120, min_chunk_size=20)([document])
    )
    with tempfile.TemporaryDirectory() as folder, Browser(960, 720) as browser:
        file = Path(folder) / "page.html"
        html = render("chunks.html", title="docs/gateway.md", budget=120, chunks=chunk_data(nodes))
        file.write_text(html, "utf-8")
        browser.go(file.as_uri())
        browser.wait("document.querySelector('#chunks > *')")
        browser.screenshot(IMAGES / "chunks.png")


def page() -> None:
    """Draw the page of `serve`.

    A document beside its hits, why a hit is there in the dark, and a narrow window.
    """
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "notes"
        shutil.copytree(ROOT / "examples" / "notes", notes)
        with ContextualIndex.open(notes) as index:
            index.refresh()
        command = [
            sys.executable,
            "-m",
            "llama_index_contextual",
            "serve",
            "-f",
            str(notes),
            "--port",
            "0",
        ]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:  # noqa: S603
            try:
                draw((server.stderr or sys.stdin).readline().split()[-1])
            finally:
                server.terminate()


QUESTION = "q=what+is+the+default+timeout+of+the+gateway%3F"
STATES = {  # name: size, what follows the address, whether it is dark, the key that is pressed
    "page": ((1280, 800), QUESTION, False, "Enter"),
    "page-hits": ((1280, 800), QUESTION, False, ""),
    "page-empty": ((1280, 800), "", False, ""),
    "page-nothing": ((1280, 800), "q=how+tall+is+Mount+Kilimanjaro", False, ""),
    "page-filters": ((1280, 800), QUESTION + "&folder=memory%2F", False, ""),
    "page-dark": ((960, 640), QUESTION, True, ""),
    "page-narrow": ((320, 640), QUESTION, False, ""),
}

SHOWN = ("page", "page-dark", "page-narrow")  # in README and documentation


def draw(address: str, folder: Path = IMAGES, names: Iterable[str] = SHOWN) -> None:
    """Draw some states of the page at an address."""
    for name in names:
        size, query, dark, key = STATES[name]
        with Browser(*size, dark=dark) as browser:
            browser.go(f"{address}&{query}")
            selector = "#hits .hit, #hits .empty" if query else "#hits .start"
            browser.wait(f"document.querySelector('{selector}')")
            if key:
                browser.key(key)
                browser.wait("document.querySelector('.band.here')")
            browser.screenshot(folder / f"{name}.png")


if __name__ == "__main__":
    if CHROMIUM is not None:
        chunks()
        page()

"""Make the pictures of README and documentation again: `python docs/pictures.py`.

They show real output: of `examples/demo.py`, and of the HTML page of a file's chunks. Chromium draws the page. Where
Chromium is absent, the picture of the page stays as it is.
"""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from llama_index.core import Document
from rich.console import Console

from llama_index_contextual import ContextualNodePostprocessor, HeadingAwareMarkdownNodeParser
from llama_index_contextual.report import chunks_page

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"


def demo() -> None:
    """Run the demo and keep what it prints as a picture of a terminal."""
    recorded = Console(record=True, width=118, file=sys.stderr)
    names = runpy.run_path(str(ROOT / "examples" / "demo.py"))
    main = names["main"]
    main.__globals__["console"] = recorded
    main()
    recorded.save_svg(str(IMAGES / "demo.svg"), title="make demo")


def chunks() -> None:
    """Draw the page of a file's chunks."""
    path = ROOT / "examples" / "notes" / "docs" / "gateway.md"
    document = Document(text=path.read_text("utf-8"), id_="docs/gateway.md", metadata={"path": "docs/gateway.md"})
    nodes = ContextualNodePostprocessor()(HeadingAwareMarkdownNodeParser(chunk_size=120, min_chunk_size=20)([document]))
    page = chunks_page(nodes, title="docs/gateway.md", budget=120).replace("<details>", "<details open>", 1)
    chromium = shutil.which("chromium")
    if chromium is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(page, "utf-8")
        picture = f"--screenshot={IMAGES / 'chunks.png'}"
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1000,900", picture]
        subprocess.run([chromium, *options, f"file://{file}"], check=True, capture_output=True)  # noqa: S603


if __name__ == "__main__":
    demo()
    chunks()

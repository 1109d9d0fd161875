"""Web pages."""

from __future__ import annotations

from pathlib import Path

from llama_index_contextual.app.folder.formats import Conversion, declare_format


@declare_format(
    "HTML",
    ".html",
    ".htm",
    ".xhtml",
    packages=("bs4", "lxml"),
    kept="numbering, merged cells, asides",
    left_out="text outside `main`, menus, scripts",
)
def read_html(path: Path) -> Conversion:
    """Return the text of a page."""
    from llama_index_contextual.app.folder.html_to_markdown import decode_html, html_to_markdown

    return html_to_markdown(decode_html(path.read_bytes()))

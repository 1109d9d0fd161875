"""EPUB books."""

from __future__ import annotations

import posixpath
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

from llama_index_contextual.app.folder.archive import Archive, attribute, core_metadata
from llama_index_contextual.app.folder.formats import (
    Conversion,
    ConversionError,
    Part,
    declare_format,
)


@declare_format(
    "EPUB",
    ".epub",
    packages=("bs4", "lxml"),
    place="chapter",
    kept="numbering, merged cells, asides",
    left_out="menus, scripts",
)
def read_epub(path: Path) -> Conversion:
    """Return a book with one part per chapter, in reading order."""
    from llama_index_contextual.app.folder.html_to_markdown import decode_html, html_to_markdown

    parts: list[Part] = []
    left_out: Counter[str] = Counter()
    with Archive(path) as archive:
        container = archive.xml("META-INF/container.xml")
        name = attribute(container.find(".//{*}rootfile"), "full-path")
        if name not in archive:
            raise ConversionError("it is damaged or not an EPUB (it has no package). Ignore it.")
        package = archive.xml(name)
        links = {}
        for item in package.iterfind(".//{*}item"):
            links[attribute(item, "id")] = attribute(item, "href")
        for reference in package.iterfind(".//{*}itemref"):
            link = unquote(links.get(attribute(reference, "idref"), ""))
            member = posixpath.normpath(posixpath.join(posixpath.dirname(name), link))
            if member in archive:
                page = html_to_markdown(decode_html(archive.read(member)))
                left_out.update(page.left_out)
                if page.text.strip():
                    parts.append(Part(page.text, {"chapter": len(parts) + 1}))
        return Conversion(parts, core_metadata(package, "created"), left_out)

"""Hooks of mkdocs.

Add the benchmark pages, the tables of formats, contexts and features, pictures of diagrams, and a
search that works from a folder.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File

from llama_index_contextual.app.folder.formats import known_formats
from llama_index_contextual.context import registry
from llama_index_contextual.retrievers.features import FEATURES

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

_BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):<code>~?(?:[\w.]+\.)?(\w+)</code>")
_TABLE = re.compile(r"<!-- table of (\w+) -->\n.*?<!-- end of table -->", re.DOTALL)
_FETCHED = "https://unpkg.com/iframe-worker/shim"
DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
THEMES = {"light": "neutral", "dark": "dark"}  # names in the site, and names in Mermaid
_log = logging.getLogger("mkdocs.hooks.site")


def on_files(files: Files, config: Any) -> Files:
    """Add the benchmark pages to the site."""
    for page in (_BENCHMARKS / "RESULTS.md", *sorted((_BENCHMARKS / "results").glob("*.md"))):
        name = page.relative_to(_BENCHMARKS.parent).as_posix()
        files.append(File.generated(config, name, content=page.read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Correct links to the benchmark pages, and insert the tables."""
    markdown = _TABLE.sub(lambda block: _TABLES[block[1]](), markdown)
    depth = page.file.src_uri.count("/")
    markdown = DIAGRAM.sub(lambda block: pictures_of(block[1], "../" * depth), markdown)
    if page.file.src_uri.startswith("benchmarks/"):
        return markdown
    in_checkout = "../" * (depth + 1)
    in_site = "../" * depth
    return markdown.replace(f"]({in_checkout}benchmarks/", f"]({in_site}benchmarks/")


def pictures_of(diagram: str, root: str) -> str:
    """Return the pictures of a Mermaid diagram, which `docs/diagrams.py` has drawn."""
    return "\n".join(
        f"![Diagram]({root}images/diagrams/{picture_name(diagram, theme)}#only-{theme})"
        for theme in THEMES
    )


def picture_name(diagram: str, theme: str) -> str:
    """Return the name of the picture of a diagram, which changes with the diagram."""
    digest = hashlib.sha256(diagram.encode("utf-8")).hexdigest()
    return f"{digest[:12]}-{theme}.svg"


def table_of_formats() -> str:
    """Return a Markdown table of the document formats."""
    lines = [
        "| Format | Files | Cited as | Kept besides text, headings, lists and tables | Left out |",
        "|---|---|---|---|---|",
    ]
    for known in dict.fromkeys(known_formats().values()):
        files = ", ".join(f"`{suffix}`" for suffix in known.suffixes)
        place = f"{known.place}=2" if known.place else "L12-L16"
        citation = f"`file{known.suffixes[0]}#{place}`"
        cells = (known.name, files, citation, known.kept, known.left_out)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def table_of_features() -> str:
    """Return a Markdown table of the ranking features."""
    lines = ["| Feature | Weight | Meaning |", "|---|---|---|"]
    for feature in FEATURES:
        meaning = (inspect.getdoc(feature) or "").partition("\n")[0]
        lines.append(f"| {feature.name} | {feature.weight:.2f} | {meaning} |")
    return "\n".join(lines)


def table_of_contexts() -> str:
    """Return a Markdown table of the context generators."""
    lines = ["| `context` | What it writes | Cost |", "|---|---|---|"]
    for name in registry.names():
        if name == registry.OFF:
            continue
        generator = registry.generator_class(name)
        cost = "none" if generator.free else "calls of a language model"
        lines.append(f'| `"{name}"` | {generator.description} | {cost} |')
    lines.append(f'| `"{registry.OFF}"` | nothing; contexts of the nodes are removed | none |')
    return "\n".join(lines)


_TABLES = {
    "contexts": table_of_contexts,
    "features": table_of_features,
    "formats": table_of_formats,
}


def on_page_content(html: str, **_: Any) -> str:
    """Turn ``:class:`Name``` of a docstring into ``Name``."""
    return _ROLE.sub(r"<code>\1</code>", html)


def on_post_build(config: Any, **_: Any) -> None:
    """Load the script of the search from the site itself.

    The theme's pages fetch it from the network.
    """
    site = Path(config.site_dir)
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        if _FETCHED not in text:
            _log.warning("%s does not fetch %s: see docs/offline-search.js", page.name, _FETCHED)
        upwards = "../" * (len(page.relative_to(site).parts) - 1)
        page.write_text(text.replace(_FETCHED, f"{upwards}offline-search.js"), "utf-8")

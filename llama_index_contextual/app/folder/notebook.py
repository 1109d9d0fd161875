"""Jupyter notebooks to Markdown: cells in order, with code and the plain text of its outputs as fences."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual.app.folder.formats import Conversion, ConversionError, Part, escape
from llama_index_contextual.text import decode

if TYPE_CHECKING:
    from pathlib import Path

_LONG_PART: Final = 1500  # characters of a notebook after which a part ends at the next cell
_LONG_OUTPUT: Final = 2000  # characters of an output that are kept
_HEADING: Final = re.compile(r"\s*#{1,6}\s")
_DATA: Final = re.compile(r"data:[\w/+.-]{1,60};base64,[A-Za-z0-9+/=]*")
_COLORS: Final = re.compile(r"\x1b\[[0-9;]*m")


def read_notebook(path: Path) -> Conversion:
    """A Jupyter notebook: cells in order, code and the text of its outputs as fences.

    A part begins at a heading, and at the next cell where it is long; ``cell`` is the number of its first one.

    Raises:
        ConversionError: It is no notebook of version 4.
    """
    notebook = json.loads(decode(path.read_bytes()).text)
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        raise ConversionError("it is no Jupyter notebook of version 4. Cure: save it anew, or ignore it.")
    about: dict[str, Any] = notebook.get("metadata") or {}
    language = str((about.get("language_info") or about.get("kernelspec") or {}).get("name") or "python")
    parts: list[tuple[int, list[str]]] = []
    left_out: Counter[str] = Counter()
    for number, cell in enumerate(notebook["cells"], start=1):
        text, pictures = _DATA.subn("", _joined(cell.get("source")))
        left_out["picture"] += pictures
        if not text.strip():
            continue
        kind = cell.get("cell_type")
        blocks = [escape(text.rstrip(), keep_lists=True) if kind == "raw" else text.rstrip()]
        if kind == "code":
            outputs = "\n".join(filter(None, (_output(one, left_out) for one in cell.get("outputs") or [])))
            blocks = [_fence(text, language), *([_fence(outputs, "")] if outputs.strip() else [])]
        if not parts or _HEADING.match(text) or sum(map(len, parts[-1][1])) > _LONG_PART:
            parts.append((number, []))
        parts[-1][1].extend(blocks)
    authors = [author.get("name") for author in about.get("authors") or [] if isinstance(author, dict)]
    return Conversion(
        [Part("\n\n".join(texts) + "\n", str(number), {"cell": number}) for number, texts in parts],
        {"title": str(about.get("title") or ""), "author": ", ".join(map(str, filter(None, authors)))},
        dict(left_out),
    )


def _joined(source: Any) -> str:
    """A text that a notebook holds as one string or as lines."""
    return "".join(map(str, source)) if isinstance(source, list) else str(source or "")


def _output(output: Any, left_out: Counter[str]) -> str:
    """The plain text of an output; pictures, pages and programs in it are counted."""
    data = output.get("data") if isinstance(output, dict) else None
    if not isinstance(data, dict):
        return _cut(_joined(output.get("text")) if output.get("output_type") == "stream" else "", left_out)
    pictures = [kind for kind in data if kind.startswith(("image/", "video/", "audio/"))]
    left_out["picture"] += bool(pictures)
    return "" if pictures else _cut(_joined(data.get("text/plain")), left_out)


def _cut(text: str, left_out: Counter[str]) -> str:
    text = _COLORS.sub("", text).strip("\n")
    left_out["character of outputs"] += max(0, len(text) - _LONG_OUTPUT)
    return text[:_LONG_OUTPUT]


def _fence(text: str, language: str) -> str:
    ticks = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{ticks}{language}\n{text.rstrip()}\n{ticks}"

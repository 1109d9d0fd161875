"""Jupyter notebooks."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from llama_index_contextual.app.folder.files import decode
from llama_index_contextual.app.folder.formats import (
    Conversion,
    ConversionError,
    Part,
    declare_format,
)
from llama_index_contextual.app.folder.markdown import escape, fence

_MAX_PART = 1500  # characters; a longer part ends at the next cell
_MAX_OUTPUT = 2000  # characters of an output that are kept
_MEDIA = ("image/", "video/", "audio/", "application/vnd.jupyter.widget")
_HEADING = re.compile(r"\s*#{1,6}\s")
# Terminal codes for colours and cursor movements.
_CONTROL = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")
# All states of a progress bar except the last.
_OVERWRITTEN = re.compile(r"^.*\r(?=[^\r\n])|\r+$", re.MULTILINE)
_PICTURE = re.compile(r"data:[\w/+.-]{1,60};base64,[A-Za-z0-9+/=]*")


@declare_format("Notebook", ".ipynb", place="cell", kept="code, text output", left_out="pictures")
def read_ipynb(path: Path) -> Conversion:
    """Return a Jupyter notebook, with its cells in order, and code and text outputs in fences.

    A part starts at a heading, or at the next cell if the previous part is long. Its ``cell`` is
    the number of its first cell.

    Raises:
        ConversionError: The file is not a notebook of version 4.
    """
    notebook = json.loads(decode(path.read_bytes()).text)
    try:
        return _convert(notebook)
    except (AttributeError, LookupError, TypeError) as error:  # such as lists in place of objects
        raise ConversionError(
            "it is not a Jupyter notebook of version 4. Save it again, or ignore it."
        ) from error


def _convert(notebook: dict[str, Any]) -> Conversion:
    about: dict[str, Any] = notebook.get("metadata") or {}
    language = _language(about)
    left_out: Counter[str] = Counter()
    parts: list[Part] = []
    for number, cell in enumerate(notebook["cells"], start=1):
        source, pictures = _PICTURE.subn("", _joined_lines(cell.get("source")).rstrip())
        left_out["picture"] += pictures
        if not source.strip():
            continue
        blocks = [_source_markdown(source, str(cell.get("cell_type")), language)]
        outputs = [_output_text(output, left_out) for output in cell.get("outputs") or []]
        shown_output = "\n".join(filter(None, outputs))
        if shown_output.strip():
            blocks.append(fence(shown_output))
        text = "\n\n".join(blocks)
        is_long = bool(parts) and len(parts[-1].text) > _MAX_PART
        if not parts or is_long or _HEADING.match(source):
            parts.append(Part(f"{text}\n", {"cell": number}))
        else:
            before = parts.pop()
            parts.append(before._replace(text=f"{before.text}\n{text}\n"))
    return Conversion(parts, {"title": str(about.get("title") or "")}, +left_out)


def _language(about: dict[str, Any]) -> str:
    """Return the programming language that the metadata of a notebook names."""
    language_info = about.get("language_info") or {}
    kernel = about.get("kernelspec") or {}
    return str(language_info.get("name") or kernel.get("language") or "python")


def _source_markdown(source: str, cell_type: str, language: str) -> str:
    """Return the source of a cell as Markdown."""
    if cell_type == "code":
        return fence(source, language)
    return escape(source, keep_lists=True) if cell_type == "raw" else source


def _joined_lines(source: Any) -> str:
    """Return a text that a notebook stores as a string or as lines."""
    return "".join(map(str, source)) if isinstance(source, list) else str(source or "")


def _output_text(output: dict[str, Any], left_out: Counter[str]) -> str:
    """Return the plain text of an output, and count pictures and characters that are left out."""
    data: dict[str, Any] = output.get("data") or {}
    if any(media_type.startswith(_MEDIA) for media_type in data):
        left_out["picture"] += 1
        return ""
    kind = output.get("output_type")
    if kind == "error":
        text = f"{output.get('ename')}: {output.get('evalue')}"
    elif kind == "stream":
        text = _joined_lines(output.get("text"))
    else:
        text = _joined_lines(data.get("text/markdown") or data.get("text/plain"))
    left_out["output"] += bool(data and not text)
    text = _OVERWRITTEN.sub("", _CONTROL.sub("", text)).strip("\n\r")
    left_out["output character"] += max(0, len(text) - _MAX_OUTPUT)
    return text[:_MAX_OUTPUT]

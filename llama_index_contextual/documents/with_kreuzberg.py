"""Excel, OpenDocument, RTF and Outlook mail, as Kreuzberg reads them."""

from __future__ import annotations

import re
import zipfile
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual.documents.archive import open_archive
from llama_index_contextual.documents.conversion import Conversion, ConversionError, Part

if TYPE_CHECKING:
    from pathlib import Path

_MIDNIGHT: Final = re.compile(r"(\d{4}-\d\d-\d\d) 00:00:00(?= \|)")
_KNOWN: Final = {"created_at": "created", "modified_at": "modified", "title": "title", "subject": "subject"}


def read_with_kreuzberg(path: Path) -> Conversion:
    """Return a document that Kreuzberg reads; sheets of a workbook are parts of their own.

    Raises:
        ConversionError: It says that it cannot.
    """
    from kreuzberg import ExtractionConfig, KreuzbergError, extract_file_sync

    if zipfile.is_zipfile(path):
        with open_archive(path):
            pass  # it refuses bombs
    config = ExtractionConfig(use_cache=False, enable_quality_processing=False, output_format="markdown")
    try:
        result = extract_file_sync(path, config=config)
    except KreuzbergError as error:
        words = str(error).split("\n", 1)[0]
        why = "it is encrypted" if "password" in words.lower() or "encrypt" in words.lower() else words[:200]
        raise ConversionError(f"{why}. Cure: ignore it, or give its type a reader.") from error
    metadata = _metadata(dict(result.metadata))
    if names := result.metadata.get("sheet_names"):
        return Conversion(_sheets(_MIDNIGHT.sub(r"\1", result.content), list(names)), metadata)
    return Conversion([Part(result.content)], metadata)


def _sheets(text: str, names: list[str]) -> list[Part]:
    """Return the sheets of a workbook, which begin with their names as headings, in order."""
    starts, start = [], 0
    for name in names:
        at = text.find(f"## {name}\n", start)
        if at >= 0 and (at == 0 or text[at - 1] == "\n"):
            starts.append((at, name))
            start = at + 1
    parts = [
        Part(text[at + 1 : end].strip() + "\n", name, {"sheet": name})
        for (at, name), (end, _) in pairwise([*starts, (len(text), "")])
    ]
    return parts or [Part(text)]


def _metadata(data: dict[str, Any]) -> dict[str, str]:
    values = {ours: str(data[theirs]) for theirs, ours in _KNOWN.items() if data.get(theirs)}
    if authors := [str(author) for author in data.get("authors") or []]:
        values["author"] = ", ".join(authors)
    if data.get("from_email"):
        values["sender"] = str(data["from_email"])
    if data.get("to_emails"):
        values["to"] = ", ".join(map(str, data["to_emails"]))
    return values

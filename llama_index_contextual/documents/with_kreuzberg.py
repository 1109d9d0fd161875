"""Kreuzberg as a converter: Excel, OpenDocument, RTF and Outlook mail, and others where a folder chooses it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from contextlib import suppress
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual.documents.archive import opened
from llama_index_contextual.documents.conversion import ConversionError, Converted, Part, suffix_of

if TYPE_CHECKING:
    from pathlib import Path

_MIDNIGHT: Final = re.compile(r"(\d{4}-\d\d-\d\d) 00:00:00(?= \|)")
# A PDF of nothing is refused, but by then its library lies in the folder for temporary files.
_UNPACK: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "import kreuzberg; kreuzberg.extract_bytes_sync(b'%PDF-1.4', 'application/pdf')"
)
_KNOWN: Final = {"created_at": "created", "modified_at": "modified", "title": "title", "subject": "subject"}


@cache
def unpack_pdfium() -> None:
    """Let Kreuzberg write its PDF library where it looks for it, once: the process that converts writes no file."""
    command = [sys.executable, "-c", _UNPACK, json.dumps(sys.path)]
    with suppress(subprocess.TimeoutExpired):  # the conversion says what is wrong
        subprocess.run(command, capture_output=True, timeout=60, check=False)  # noqa: S603  our own words


def read_with_kreuzberg(path: Path) -> Converted:
    """Return any document that Kreuzberg reads; sheets of a workbook are parts of their own.

    Raises:
        ConversionError: It says that it cannot.
    """
    from kreuzberg import ExtractionConfig, KreuzbergError, PageConfig, extract_file_sync

    if zipfile.is_zipfile(path):
        with opened(path):
            pass  # it refuses bombs
    pages = suffix_of(path.name) == ".pdf"
    config = ExtractionConfig(
        use_cache=False,
        enable_quality_processing=False,
        output_format="markdown",
        pages=PageConfig(extract_pages=True) if pages else None,
    )
    try:
        result = extract_file_sync(path, config=config)
    except KreuzbergError as error:
        words = str(error).split("\n", 1)[0]
        why = "it is encrypted" if "password" in words.lower() or "encrypt" in words.lower() else words[:200]
        raise ConversionError(f"{why}. Cure: ignore it, or give its type a reader.") from error
    metadata = _metadata(dict(result.metadata))
    if pages:
        found = [(page["page_number"], page["content"]) for page in result.pages or []]
        return Converted([Part(text, str(number), {"page": number}) for number, text in found], metadata)
    if names := result.metadata.get("sheet_names"):
        return Converted(_sheets(_MIDNIGHT.sub(r"\1", result.content), list(names)), metadata)
    return Converted([Part(result.content)], metadata)


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


def _metadata(found: dict[str, Any]) -> dict[str, str]:
    values = {ours: str(found[theirs]) for theirs, ours in _KNOWN.items() if found.get(theirs)}
    if authors := [str(author) for author in found.get("authors") or []]:
        values["author"] = ", ".join(authors)
    if found.get("from_email"):
        values["sender"] = str(found["from_email"])
    if found.get("to_emails"):
        values["to"] = ", ".join(map(str, found["to_emails"]))
    return values

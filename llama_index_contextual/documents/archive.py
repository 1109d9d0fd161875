"""Office files, OpenDocument and EPUB are ZIP archives of XML: open_archive with care, as a stranger packed them."""

from __future__ import annotations

import re
import zipfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree as ET

from llama_index_contextual.documents.conversion import ConversionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_MOST_BYTES: Final = 500_000_000  # of all members, as the archive says; a member that lies is cut
_MOST_MEMBERS: Final = 50_000
_COMPOUND: Final = b"\xd0\xcf\x11\xe0"  # an encrypted Office file is no ZIP, but one of these
_DOCTYPE: Final = re.compile(rb"<!(?:DOCTYPE|ENTITY)[^>\[]*(?:\[.*?\])?\s*>", re.DOTALL)
_CORE: Final = {
    "title": "title",
    "subject": "subject",
    "creator": "author",
    "initial-creator": "author",
    "created": "created",
    "creation-date": "created",
    "modified": "modified",
    "date": "modified",
}


@contextmanager
def open_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive.

    Raises:
        ConversionError: It is encrypted, damaged, or a bomb.
    """
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        with path.open("rb") as file:
            encrypted = file.read(4) == _COMPOUND
        why = "it is encrypted, or of an old version of Office" if encrypted else f"it is damaged ({error})"
        raise ConversionError(f"{why}. Cure: save it without a password in today's format, or ignore it.") from error
    with archive:
        members = archive.infolist()
        size = sum(member.file_size for member in members)
        if size > _MOST_BYTES or len(members) > _MOST_MEMBERS:
            raise ConversionError(
                f"it is a ZIP archive of {len(members):,} files and {size:,} bytes, more than any document. "
                "Cure: ignore it."
            )
        if any(member.flag_bits & 1 for member in members):
            raise ConversionError("it is encrypted. Cure: save it without a password, or ignore it.")
        yield archive


def xml_of(archive: zipfile.ZipFile, name: str) -> ET.Element:
    """Return a member as XML; an empty element where there is none. Entities are not read."""
    if name not in archive.NameToInfo:
        return ET.Element("")
    return ET.fromstring(_DOCTYPE.sub(b"", archive.read(name)))  # noqa: S314  no entities are left in it


def local(element: ET.Element) -> str:
    """Return an element's name without its namespace."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def attribute(element: ET.Element, name: str) -> str:
    """Return an attribute by its name without a namespace; "" where there is none."""
    return next((value for key, value in element.attrib.items() if key.rpartition("}")[2] == name), "")


def core_metadata(root: ET.Element, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return title, author and dates as Office, OpenDocument and EPUB write them down."""
    names = {**_CORE, **(more or {})}
    values: dict[str, str] = {}
    for element in root.iter():
        if (key := names.get(local(element))) and (text := "".join(element.itertext()).strip()):
            values.setdefault(key, text)
    return values


def table_of(rows: list[list[str]]) -> str:
    """Return a Markdown table; the first row is its header.

    Args:
        rows: Cells as plain text.
    """
    rows = [row for row in rows if any(cell.strip() for cell in row)]
    if not rows:
        return ""
    width = max(map(len, rows))
    cells = [[" ".join(cell.split()).replace("|", "\\|") for cell in row] + [""] * (width - len(row)) for row in rows]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([lines[0], f"|{' --- |' * width}", *lines[1:]])

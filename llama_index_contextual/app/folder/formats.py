"""What a document becomes when it is converted: parts of Markdown, such as pages; and which converter reads what.

This is all that converters, the process that they run in, and who asks for a conversion have in common. Office files,
OpenDocument and EPUB are ZIP archives of XML, which are opened with care, as a stranger packed them.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple
from xml.etree import ElementTree as ET

EXTRA: Final = "documents"  # of this package: brings the converters
PYTHON: Final = "python"  # our own converters
KREUZBERG: Final = "kreuzberg"
PDFIUM: Final = "pdfium"
# What a converter needs besides Python, and its revision: raised when the same file gives another text, so that it is
# converted again.
PACKAGES: Final = {PDFIUM: "pypdfium2", KREUZBERG: "kreuzberg"}
REVISIONS: Final = {PDFIUM: 3, KREUZBERG: 1, PYTHON: 3}
# By suffix what reads it. Kreuzberg would lose Word's lists, slides without text, and where chapters begin.
_CONVERTERS: Final = {
    ".pdf": (PDFIUM, "pdf.read_pdf"),
    **dict.fromkeys((".xlsx", ".csv", ".odt", ".msg", ".rtf"), (KREUZBERG, "office.read_with_kreuzberg")),
    **dict.fromkeys((".html", ".htm"), (PYTHON, "web.read_html")),
    ".docx": (PYTHON, "office.read_docx"),
    ".pptx": (PYTHON, "office.read_pptx"),
    ".epub": (PYTHON, "web.read_epub"),
    ".eml": (PYTHON, "web.read_mail"),
    ".ipynb": (PYTHON, "markup.read_notebook"),
    ".rst": (PYTHON, "markup.read_rst"),
    ".org": (PYTHON, "markup.read_org"),
    ".tex": (PYTHON, "markup.read_tex"),
}
FORMATS: Final = {suffix: package for suffix, (package, _) in _CONVERTERS.items()}
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
ATTACHED: Final = "attached"  # metadata of mail: names of what came with it
MOST_CHARS: Final = 20_000_000  # of a converted text: all of the Kubernetes documentation is half of that
MOST_PARTS: Final = 20_000


class Part(NamedTuple):
    """A page, a slide, a sheet or some cells.

    Attributes:
        text: Markdown.
        label: What tells it from the others: ``"12"``, ``"Fees"``; "" where a document has one part.
        place: What its chunks say of where they are: ``{"page": 12}``, ``{"slide": 3}``, ``{"sheet": "Fees"}``.
    """

    text: str
    label: str = ""
    place: dict[str, str | int] = {}  # noqa: RUF012  nobody changes it


class Conversion(NamedTuple):
    """A converted document.

    Attributes:
        parts: In reading order.
        metadata: Of the document: ``title``, ``author``, ``created`` ...; for mail ``date``, ``sender``, ``to``. What
            is empty is left out of the plain data.
    """

    parts: list[Part]
    metadata: dict[str, str] = {}  # noqa: RUF012  nobody changes it

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        metadata = {key: value for key, value in self.metadata.items() if value}
        return {"parts": [list(part) for part in self.parts], "metadata": metadata}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Conversion:
        """Return what :meth:`to_dict` gave."""
        return cls([Part(*part) for part in data["parts"]], dict(data["metadata"]))


class ConversionError(Exception):
    """A converter's word on a document that it cannot read: what is wrong, and the cure."""


def suffix_of(path: str) -> str:
    """Return the suffix of a path, in small letters."""
    stem, _, suffix = path.replace("\\", "/").rpartition("/")[2].rpartition(".")
    return f".{suffix.lower()}" if stem.strip(".") else ""  # as splitext, in a third of the time: asked of each file


@cache
def is_installed(converter: str) -> bool:
    """Return whether a converter can run here."""
    package = PACKAGES.get(converter)
    return package is None or find_spec(package) is not None


def converter_of(suffix: str) -> Callable[[Path], Conversion]:
    """Return the function that reads a kind of file."""
    module, _, name = _CONVERTERS[suffix][1].partition(".")
    converter: Callable[[Path], Conversion] = getattr(import_module(f"{__package__}.{module}"), name)
    return converter


def default_patterns() -> tuple[str, ...]:
    """Return patterns of the files that are read by default because the extra is installed; none without it."""
    return tuple(f"*{suffix}" for suffix in FORMATS) if all(map(is_installed, PACKAGES)) else ()


def lacking_extra(paths: Iterable[str]) -> bool:
    """Return whether the extra would read some of these files, and is not installed."""
    return not default_patterns() and any(suffix_of(path) in FORMATS for path in paths)


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

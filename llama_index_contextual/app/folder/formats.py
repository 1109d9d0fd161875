"""What a converter yields, which converter reads which file, and what converters share: escaping, tables, archives.

Office files, OpenDocument and EPUB are ZIP archives of XML. Whoever packed them is not trusted: sizes are checked
before a member is read, and entities of XML are refused.
"""

from __future__ import annotations

import posixpath
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from llama_index_contextual.text import counted

if TYPE_CHECKING:
    from lxml.etree import _Element

EXTRA: Final = "documents"  # of this package: brings the packages that converters need
MOST_CHARS: Final = 20_000_000  # of a converted text: all of the Kubernetes documentation is half of that
MOST_PARTS: Final = 20_000
MOST_CELLS: Final = 500_000  # of a table
ATTACHED: Final = "attached"  # metadata of mail: names of the attachments
LEFT_OUT: Final = "left_out"  # metadata of a converted file: what its text lacks, with counts
_MOST_BYTES: Final = 500_000_000  # of all members, as the archive declares; a member that lies is cut
_MOST_XML: Final = 50_000_000  # of one member that is parsed
_MOST_MEMBERS: Final = 50_000
_COMPOUND: Final = b"\xd0\xcf\x11\xe0"  # an encrypted Office file is no ZIP, but one of these
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
# What Markdown takes for a block at the start of a line: a heading, an underline or rule, a table's rule, a fence,
# HTML, front matter; and what people also write for lists and quotes.
_BLOCK: Final = re.compile(
    r"\s*(?=#{1,6}(?:\s|$)|=+\s*$|[-|:][-|:\s]*$|_{3,}\s*$|`{3}|~{3}|<[a-zA-Z/!?]|\||\+{3,}\s*$)"
)
_LIST: Final = re.compile(r"(\s*)(?:(?=[-+*>](?:\s|$)|(?:\*\s*){3,}$)|(\d{1,9})(?=[.)](?:\s|$)))")


class Part(NamedTuple):
    """A page, a slide, a sheet or some cells.

    Attributes:
        text: Markdown.
        label: The name of the part: ``"12"``, ``"Fees"``; "" where a document has one part.
        place: Metadata of its chunks: ``{"page": 12}``, ``{"slide": 3}``, ``{"sheet": "Fees"}``.
    """

    text: str
    label: str = ""
    place: dict[str, str | int] = {}  # noqa: RUF012  nobody changes it


class Conversion(NamedTuple):
    """A converted document.

    Attributes:
        parts: In reading order.
        metadata: Of the document: ``title``, ``author``, ``created`` ...; for mail ``date``, ``sender``, ``to``.
        left_out: What of the file is no text here, with its number: ``{"picture": 3}``.
    """

    parts: list[Part]
    metadata: dict[str, str] = {}  # noqa: RUF012  nobody changes it
    left_out: dict[str, int] = {}  # noqa: RUF012  nobody changes it

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without empty metadata; what is left out becomes one line of it."""
        lacks = "; ".join(counted(number, thing) for thing, number in sorted(self.left_out.items()) if number)
        metadata = {key: value for key, value in {**self.metadata, LEFT_OUT: lacks}.items() if value}
        return {"parts": [list(part) for part in self.parts], "metadata": metadata}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Conversion:
        """The conversion that :meth:`to_dict` wrote."""
        return cls([Part(*part) for part in data["parts"]], dict(data["metadata"]))


class ConversionError(Exception):
    """A document cannot be read: why, and the cure."""


class Format(NamedTuple):
    """How a kind of file is read.

    Attributes:
        converter: Module and function in this folder.
        revision: Raised when the same file gives another text, so that it is converted again.
        package: The package that the converter needs; "" for none.
    """

    converter: str
    revision: int
    package: str = ""


FORMATS: Final = {
    ".pdf": Format("pdf.read_pdf", 4, "pypdfium2"),
    ".docx": Format("word.read_docx", 4, "mammoth"),
    ".odt": Format("opendocument.read_odt", 2, "markdownify"),
    ".rtf": Format("rtf.read_rtf", 2, "striprtf"),
    ".pptx": Format("slides.read_pptx", 4, "lxml"),
    ".xlsx": Format("sheets.read_xlsx", 2, "openpyxl"),
    ".csv": Format("sheets.read_csv", 2),
    **dict.fromkeys((".html", ".htm"), Format("html.read_html", 4, "markdownify")),
    ".epub": Format("html.read_epub", 4, "markdownify"),
    ".eml": Format("mail.read_eml", 4, "markdownify"),
    ".msg": Format("mail.read_msg", 2, "oxmsg"),
    ".ipynb": Format("notebook.read_notebook", 4),
    ".rst": Format("markup.read_rst", 4),
    ".org": Format("markup.read_org", 4),
    ".tex": Format("markup.read_tex", 4),
}


def suffix_of(path: str) -> str:
    """The suffix of a path, in small letters."""
    stem, _, suffix = path.replace("\\", "/").rpartition("/")[2].rpartition(".")
    return f".{suffix.lower()}" if stem.strip(".") else ""  # as splitext, in a third of the time: every file has one


@cache
def is_installed(package: str) -> bool:
    """Whether a package that a converter needs is here; "" always is."""
    return not package or find_spec(package) is not None


def converter_of(suffix: str) -> Callable[[Path], Conversion]:
    """The function that reads a kind of file."""
    module, _, name = FORMATS[suffix].converter.partition(".")
    converter: Callable[[Path], Conversion] = getattr(import_module(f"{__package__}.{module}"), name)
    return converter


def default_patterns() -> tuple[str, ...]:
    """Patterns of the files that are read by default because the extra is installed; none without it."""
    has_all = all(is_installed(format_.package) for format_ in FORMATS.values())
    return tuple(f"*{suffix}" for suffix in FORMATS) if has_all else ()


def lacking_extra(paths: Iterable[str]) -> bool:
    """Whether the extra would read some of these files, and is not installed."""
    return not default_patterns() and any(suffix_of(path) in FORMATS for path in paths)


def escape(text: str, *, keep_lists: bool = False) -> str:
    r"""Plain text as Markdown: a backslash before what would begin a block, as in ``\# of units``.

    Args:
        text: One line or several.
        keep_lists: Whether lines that look like items of a list, or like quotes, are such.
    """
    return "\n".join(_escaped_line(line, keep_lists=keep_lists) for line in text.split("\n"))


def _escaped_line(line: str, *, keep_lists: bool) -> str:
    match = _BLOCK.match(line) or (None if keep_lists else _LIST.match(line))
    return f"{line[: match.end()]}\\{line[match.end() :]}" if match else line


def heading(level: int, text: str) -> str:
    """A heading of one line."""
    words = " ".join(text.split())
    rest = len(words.rstrip("#"))  # Markdown would take signs at the end for the end of the heading
    return f"{'#' * max(1, min(level, 6))} {words[:rest]}{chr(92) * (rest < len(words))}{words[rest:]}"


def cells_of(row: Sequence[str]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in row)} |"


def table_of(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, whose first row is the header; titles above it are lines of text.

    Args:
        rows: Cells as plain text.

    Raises:
        ConversionError: There are too many cells.
    """
    filled = [list(row) for row in rows if any(cell.strip() for cell in row)]
    width = max(map(len, filled), default=0)
    if width * len(filled) > MOST_CELLS:
        raise ConversionError(f"it holds a table of more than {MOST_CELLS:,} cells. Cure: split it, or ignore it.")
    titles = []
    while len(filled) > 1 and _is_title(filled[0], filled[1], width):
        titles.append(escape(" ".join(filled.pop(0)[0].split())))
    if not filled:
        return ""
    lines = [cells_of([*row, *[""] * (width - len(row))]) for row in filled]
    return "\n\n".join([*titles, "\n".join([lines[0], f"|{' --- |' * width}", *lines[1:]])])


def _is_title(row: Sequence[str], following: Sequence[str], width: int) -> bool:
    """Whether a row above a table's header holds only a title."""
    named = [cell for cell in following if cell.strip()]
    is_alone = bool(row[0].strip()) and not any(cell.strip() for cell in row[1:])
    return is_alone and (width > 2 or (len(named) == width > 1 and not any(map(_has_digit, named))))  # noqa: PLR2004


def _has_digit(text: str) -> bool:
    return any(map(str.isdigit, text))


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


def xml_of(archive: zipfile.ZipFile, name: str, most: int = _MOST_XML) -> _Element:
    """A member of an archive as XML; an empty element where there is none.

    Raises:
        ConversionError: It is too large, or declares entities.
    """
    from lxml import etree

    if name not in archive.NameToInfo:
        return etree.Element("none")
    size = archive.NameToInfo[name].file_size
    if size > most:
        raise ConversionError(f"its {name} is of {size:,} bytes, more than {most:,}. Cure: split it, or ignore it.")
    parser = etree.XMLParser(resolve_entities=False, load_dtd=False, no_network=True, huge_tree=False)
    try:
        root = etree.fromstring(archive.read(name), parser)
    except etree.XMLSyntaxError as error:
        raise ConversionError(f"it is damaged ({name}: {error}). Cure: save it anew, or ignore it.") from error
    dtd = root.getroottree().docinfo.internalDTD
    if dtd is not None and any(True for _ in dtd.iterentities()):
        raise ConversionError(f"its {name} declares an entity, which is not read. Cure: ignore it.")
    return root


def relations(archive: zipfile.ZipFile, name: str) -> list[tuple[str, str, str]]:
    """The id, the kind and the name of each member that a member of an Office file refers to; "" is the archive."""
    folder, base = posixpath.split(name)
    return [
        (
            attribute(child, "Id"),
            attribute(child, "Type").rpartition("/")[2],
            posixpath.normpath(posixpath.join("/", folder, attribute(child, "Target"))).lstrip("/"),
        )
        for child in xml_of(archive, posixpath.join(folder, "_rels", f"{base}.rels"))
        if attribute(child, "TargetMode") != "External"
    ]


def local(element: _Element) -> str:
    """An element's name without its namespace; "" of a comment."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def attribute(element: _Element, name: str) -> str:
    """An attribute by its name without a namespace; "" where there is none."""
    return next((str(value) for key, value in element.attrib.items() if str(key).rpartition("}")[2] == name), "")


def core_metadata(root: _Element, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Title, author and dates as Office, OpenDocument and EPUB write them down."""
    names = {**_CORE, **(more or {})}
    values: dict[str, str] = {}
    for element in root.iter():
        if (key := names.get(local(element))) and (text := "".join(map(str, element.itertext())).strip()):
            values.setdefault(key, text)
    return values

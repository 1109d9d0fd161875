"""Which function reads which kind of file, in a process with limits, and what these functions share.

Office files, OpenDocument and EPUB are ZIP archives of XML. Whoever packed them is not trusted: sizes are checked
before a member is read, and entities of XML are refused. What cannot be read raises a ConversionError.
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import re
import signal
import sys
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from llama_index_contextual.utils.errors import DocumentError
from llama_index_contextual.utils.metadata import LEFT_OUT
from llama_index_contextual.utils.text import counted

if TYPE_CHECKING:
    from lxml.etree import _Element

EXTRA: Final = "documents"  # of this package: brings the packages that converters need
MOST_CELLS: Final = 500_000  # of a table
REPEATED: Final = 80  # characters of a cell that is repeated in the rows that it spans
_MOST_BYTES: Final = (
    500_000_000  # of all members, as the archive declares; a member that lies is cut
)
_MOST_XML: Final = 50_000_000  # of one member that is parsed
_STRICT: Final = re.compile(
    rb"purl\.oclc\.org/ooxml/(\w+)/(\w+)"
)  # namespaces of "Strict Open XML"
_MOST_MEMBERS: Final = 50_000
IDLE: Final = 30  # seconds without work after which the process ends
_FORBIDDEN: Final = (
    "socket.connect",
    "subprocess.Popen",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "os.system",
)
_CORE: Final = {"creator": "author", "initial-creator": "author", "creation-date": "created"}
# Elements of Office and OpenDocument that are no text.
_PICTURES: Final = dict.fromkeys(("blip", "imagedata", "image"), "picture")
_OTHERS: Final = {
    "chart": "chart",
    "object": "object",
    "oleObj": "object",
    "videoFile": "video",
    "audioFile": "sound",
}
_LACKING: Final = {
    **_PICTURES,
    **_OTHERS,
    **dict.fromkeys(("comment", "cm", "annotation"), "comment"),
}
# Names of Word and of slides for what HTML calls the type of a list.
_NAMES: Final = "lowerLetter alphaL upperLetter alphaU lowerRoman romanL upperRoman romanU".split()  # noqa: SIM905
_KINDS: Final = dict(zip(_NAMES, "aaAAiiII", strict=True))
_VALUES: Final = (1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1)
_ROMAN: Final = [*zip(_VALUES, "m cm d cd c xc l xl x ix v iv i".split(), strict=True)]  # noqa: SIM905
PAGE: Final = "\ue002"  # where a page begins
# What Markdown takes for a block at the start of a line: a heading, an underline or rule, a table's rule, a fence,
# HTML, front matter; comments of Obsidian; and what people also write for lists and quotes.
_SIGNS: Final = (
    r"#{1,6}(?:\s|$)|=+\s*$|[-|:][-|:\s]*$|_{3,}\s*$|`{3}|~{3}|<[a-zA-Z/!?]|\||\+{3,}\s*$|%%"
)
_BLOCK: Final = re.compile(rf"[\s{PAGE}]*(?={_SIGNS})")
# Code, or what begins a comment or tag of MDX, Liquid, Jinja or Hugo anywhere on a line.
_TAG: Final = re.compile(r"(?<!`)(`{1,9})[^`]{1,1000}\1|\{(?=/\*|%|#\s)|(?<=\{)\{(?=<)")
BULLETS: Final = (
    "\uf02d\uf06c\uf06e\uf076\uf0a7\uf0b7\uf0d8"  # of fonts of symbols; boxes to tick are others
)
_LIST: Final = re.compile(
    rf"[\s{PAGE}]*(?:(?=[-+*>](?:\s|$)|(?:\*\s*){{3,}}$)|\d{{1,9}}(?=[.)](?:\s|$)))"
)


class Part(NamedTuple):
    """Markdown of a page, a slide, a sheet or some cells; its place is ``{"page": 12}``, or {} of the only part."""

    text: str
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
    left_out: Mapping[str, int] = {}

    @property
    def text(self) -> str:
        """The text of all parts."""
        return "".join(part.text for part in self.parts)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without empty metadata; what is left out becomes one line of it."""
        lacks = "; ".join(
            counted(number, thing) for thing, number in sorted(self.left_out.items()) if number
        )
        metadata = {
            key: value for key, value in {LEFT_OUT: lacks, **self.metadata}.items() if value
        }
        return {"parts": self.parts, "metadata": metadata}


class ConversionError(Exception):
    """A document cannot be read: why, and the cure."""


REVISION: Final = 12  # raised when the same file gives another text, so that it is converted again
_MODULES: Final = {
    "pdf": ".pdf",
    "word": ".docx .docm",
    "rich_text": ".odt .epub .rtf .eml .msg",
    "office": ".pptx .pptm .xlsx .xlsm .csv .tsv",
    "html": ".html .htm .xhtml",
    "markup": ".ipynb .rst .org .tex",
}
FORMATS: Final = {
    suffix: module for module, suffixes in _MODULES.items() for suffix in suffixes.split()
}
OTHER_NAMES: Final = {
    ".docm": ".docx",
    ".pptm": ".pptx",
    ".xlsm": ".xlsx",
    ".tsv": ".csv",
    ".htm": ".html",
    ".xhtml": ".html",
}
_PACKAGES: Final = (
    "bs4",
    "lxml",
    "mammoth",
    "openpyxl",
    "oxmsg",
    "pypdfium2",
    "striprtf",
)  # of the extra


def suffix_of(path: str) -> str:
    """The suffix of a path, in small letters."""
    stem, _, suffix = path.replace("\\", "/").rpartition("/")[2].rpartition(".")
    return (
        f".{suffix.lower()}" if stem.strip(".") else ""
    )  # as splitext, in a third of the time: every file has one


@cache
def has_extra() -> bool:
    """Whether the packages that converters need are installed."""
    return all(map(find_spec, _PACKAGES))


def converter_of(suffix: str) -> Callable[[Path], Conversion]:
    """The function that reads a kind of file."""
    module = import_module(f"{__package__}.{FORMATS[suffix]}")
    converter: Callable[[Path], Conversion] = getattr(
        module, f"read_{OTHER_NAMES.get(suffix, suffix)[1:]}"
    )
    return converter


def serve(megabytes: int) -> None:
    """Convert what standard input names, a JSON object a line, until it ends; called in a process of its own.

    It has limits of time, memory and size, starts nothing, opens no connection and writes no file.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer
    sys.dont_write_bytecode = True
    if sys.platform != "win32":
        import resource

        limits = {
            resource.RLIMIT_AS: megabytes * 1_000_000,
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_FSIZE: 0,
        }
        for kind, value in limits.items():
            with contextlib.suppress(
                OSError, ValueError
            ):  # macOS knows no limit of memory, others a lower one
                resource.setrlimit(kind, (value, value))
    sys.addaudithook(_refuse)
    set_alarm = getattr(signal, "alarm", int)
    for line in sys.stdin.buffer:
        job = json.loads(line)
        set_alarm(int(job["seconds"]) + 5)  # who hangs after the asking process has died ends, too
        answer = _answer(job["path"], job["suffix"])
        set_alarm(IDLE)
        answers.write(f"{json.dumps(answer)}\n")
        answers.flush()


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    writes = (
        event == "open"
        and isinstance(arguments[2], int)
        and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    )
    if writes or event in _FORBIDDEN:
        raise PermissionError(f"a converter may not do that ({event})")


def _answer(path: str, suffix: str) -> dict[str, Any]:
    try:
        converted = converter_of(suffix)(Path(path))
    except Exception as error:  # noqa: BLE001  anything can be wrong in a foreign document
        return {"problem": _problem(error, suffix[1:])}
    most, many = (
        20_000_000,
        20_000,
    )  # characters: all of the Kubernetes documentation is half of that
    if sum(len(part.text) for part in converted.parts) > most or len(converted.parts) > many:
        limits = f"{most:,} characters of text, or {many:,} pages or sheets"
        return {"problem": f"it holds more than {limits}. Cure: split it, or ignore it."}
    return converted.to_dict()


def _problem(error: Exception, kind: str) -> str:
    """The reason of a failed conversion: damage, where a library refused the file; a fault of ours elsewhere."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    shown = f"{type(error).__name__}: {error}"[:200]
    if isinstance(error, ConversionError | DocumentError):
        return str(error)
    if isinstance(error, RecursionError | MemoryError):
        cure = "ignore it, or DocumentReader(megabytes=…) among readers=."
        return f"it is nested too deeply, or needs too much memory. Cure: {cure}"
    if Path(place.filename).parent != Path(__file__).parent or type(error).__module__ != "builtins":
        return f"it is damaged or no {kind} file ({shown}). Cure: save it again in its program, or ignore it."
    where = f"{Path(place.filename).name}, line {place.lineno}"
    return f"a fault of llama-index-contextual, not of the file ({where}: {shown}). Cure: report it, or ignore it."


def escape(text: str, *, keep_lists: bool = False) -> str:
    r"""Plain text as Markdown: a backslash before what would begin a block or a tag: ``\# of units``, ``{\% note %}``.

    Args:
        text: One line or several.
        keep_lists: Whether lines that look like items of a list, or like quotes, are such.
    """
    lines = text.split("\n")
    for at, line in enumerate(lines):
        if "{" in line:
            line = lines[at] = _TAG.sub(lambda tag: tag[0] if tag[1] else "{\\", line)  # noqa: PLW2901
        if match := _BLOCK.match(line) or (None if keep_lists else _LIST.match(line)):
            lines[at] = f"{line[: match.end()]}\\{line[match.end() :]}"
    return "\n".join(lines)


def heading(level: int, text: str) -> str:
    """A heading of one line."""
    words = " ".join(text.split())
    rest = len(words.rstrip("#"))  # Markdown would take signs at the end for the end of the heading
    return (
        f"{'#' * max(1, min(level, 6))} {words[:rest]}{chr(92) * (rest < len(words))}{words[rest:]}"
    )


def fence(code: str, language: str = "") -> str:
    """Code between ticks, more of them than stand in it."""
    ticks = "`" * max(3, 1 + max(map(len, re.findall("`+", code)), default=0))
    return f"{ticks}{language}\n{code.rstrip()}\n{ticks}"


def check_size(cells: int) -> None:
    """Refuse a table of too many cells."""
    if cells > MOST_CELLS:
        raise ConversionError(
            f"it holds a table of more than {MOST_CELLS:,} cells. Cure: split it, or ignore it."
        )


def table_of(rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table of plain text, whose first row is the header; titles above it are lines of text."""
    filled = [row for row in ([" ".join(cell.split()) for cell in row] for row in rows) if any(row)]
    width, blocks = max(map(len, filled), default=0), []
    check_size(width * len(filled))
    while len(filled) > 1 and filled[0][0] and not any(filled[0][1:]):
        names = [cell for cell in filled[1] if cell]
        if width < 3 and (len(names) < 2 or any(map(str.isdigit, "".join(names)))):  # noqa: PLR2004
            break
        blocks.append(escape(filled.pop(0)[0]))
    cells = (
        [cell.replace("|", r"\|") for cell in (*row, *[""] * (width - len(row)))] for row in filled
    )
    lines = [f"| {' | '.join(row)} |" for row in cells]
    lines[1:1] = [f"|{' --- |' * width}"] if lines else []
    return "\n\n".join([*blocks, "\n".join(lines)])


def numeral(number: int, kind: str) -> str:
    """A number as HTML, Word and slides show it: as letters, in Roman numerals, or as it is."""
    kind, text = _KINDS.get(kind, kind), ""
    if kind in ("a", "A") and number > 0:
        text = chr(ord("a") + (number - 1) % 26) * min((number - 1) // 26 + 1, 10)
    elif kind in ("i", "I") and 0 < number < 4000:  # noqa: PLR2004
        for value, letters in _ROMAN:
            text += letters * (number // value)
            number %= value
    else:
        return f"{number:02}" if kind == "decimalZero" else str(number)
    return text.upper() if kind.isupper() else text


def open_archive(path: Path) -> zipfile.ZipFile:
    """An archive whose members are not too large."""
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        is_encrypted = path.read_bytes()[:4] == b"\xd0\xcf\x11\xe0"
        why = (
            "it is encrypted, or of an old version of Office"
            if is_encrypted
            else f"it is damaged ({error})"
        )
        raise ConversionError(
            f"{why}. Cure: save it without a password in today's format, or ignore it."
        ) from error
    members = archive.infolist()
    size = sum(member.file_size for member in members)
    if size > _MOST_BYTES or len(members) > _MOST_MEMBERS:
        many = f"{len(members):,} files and {size:,} bytes"
        raise ConversionError(
            f"it is a ZIP archive of {many}, more than any document. Cure: ignore it."
        )
    if any(member.flag_bits & 1 for member in members):
        raise ConversionError("it is encrypted. Cure: save it without a password, or ignore it.")
    return archive


def xml_of(archive: zipfile.ZipFile, name: str, most: int = _MOST_XML) -> _Element:
    """A member of an archive as XML; an empty element where there is none."""
    from lxml import etree

    if name not in archive.NameToInfo:
        return etree.Element("none")
    size = archive.NameToInfo[name].file_size
    if size > most:
        raise ConversionError(
            f"its {name} is of {size:,} bytes, more than {most:,}. Cure: split it, or ignore it."
        )
    parser = etree.XMLParser(
        resolve_entities=False, collect_ids=False
    )  # loads no DTD, no network, no huge tree
    try:
        root = etree.fromstring(
            _STRICT.sub(rb"schemas.openxmlformats.org/\1/2006/\2", archive.read(name)), parser
        )
    except etree.XMLSyntaxError as error:
        raise ConversionError(
            f"it is damaged ({name}: {error}). Cure: save it anew, or ignore it."
        ) from error
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


def related(archive: zipfile.ZipFile, name: str, kind: str, default: str = "") -> list[str]:
    """The names of the members of a kind that a member refers to, or else a default."""
    found = [target for _, one, target in relations(archive, name) if one == kind]
    return found or [default] * bool(default)


def integer(text: object, default: int = 1, most: int = 10**6) -> int:
    """A number of an attribute, up to a bound; the default where it is none."""
    match = re.fullmatch(r"\s{0,9}(\d{1,9})\s{0,9}", str(text))
    return min(int(match[1]), most) if match else default


def local(element: _Element) -> str:
    """An element's name without its namespace; "" of a comment."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def attribute(element: _Element | None, name: str) -> str:
    """An attribute by its name without a namespace; "" where there is none."""
    found = {} if element is None else element.attrib
    return next(
        (str(value) for key, value in found.items() if str(key).rpartition("}")[2] == name), ""
    )


def lacking(root: _Element) -> Counter[str]:
    """What of XML is no text here, with its number."""
    return Counter(_LACKING[kind] for kind in map(local, root.iter()) if kind in _LACKING)


def core_metadata(root: _Element, dates: str = "modified") -> dict[str, str]:
    """Title, author and dates as Office, OpenDocument and EPUB write them; what the element ``date`` is may differ."""
    values: dict[str, str] = {}
    for element in root.iter():
        key = dates if local(element) == "date" else _CORE.get(local(element), local(element))
        is_core = key in ("title", "subject", "author", "created", "modified")
        if is_core and (text := "".join(map(str, element.itertext())).strip()):
            values.setdefault(key, text)
    return values

"""The document formats that are read.

Each module of ``converters`` declares its formats where it defines the functions that read them.
Everything else that needs to know them asks here: the walk over a folder, the conversion, messages
and the documentation. Modules of ``converters`` import the packages that they need in their
functions, so that asking is cheap and needs no extra.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Final, NamedTuple

from llama_index_contextual.app.folder import converters
from llama_index_contextual.utils.metadata import LEFT_OUT
from llama_index_contextual.utils.text import counted

EXTRA: Final = "documents"  # of this package: brings the packages that converters need
REVISION: Final = 13  # raised when the same file gives another text, so that it is converted again


class Part(NamedTuple):
    """Markdown of a page, a slide, a sheet or some cells.

    Its place is ``{"page": 12}``, or {} of the only part.
    """

    text: str
    place: dict[str, str | int] = {}  # noqa: RUF012  nobody changes it


class Conversion(NamedTuple):
    """A converted document.

    Attributes:
        parts: In reading order.
        metadata: Of the document: ``title``, ``author``, ``created`` ...; for mail ``date``,
            ``sender``, ``to``.
        left_out: What of the file is no text here, with its number: ``{"picture": 3}``.
    """

    parts: list[Part]
    metadata: dict[str, str] = {}  # noqa: RUF012  nobody changes it
    left_out: Mapping[str, int] = {}

    @property
    def text(self) -> str:
        """Return the text of all parts."""
        return "".join(part.text for part in self.parts)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, without empty metadata; what is left out becomes one line of it."""
        left_out = [
            counted(number, thing) for thing, number in sorted(self.left_out.items()) if number
        ]
        metadata = {LEFT_OUT: "; ".join(left_out), **self.metadata}
        filled = {key: value for key, value in metadata.items() if value}
        return {"parts": self.parts, "metadata": filled}


class ConversionError(Exception):
    """A document cannot be read; the message says why, and what to do."""


class Format(NamedTuple):
    """A document format.

    Attributes:
        name: As a user calls it.
        suffixes: Of its files, in lower case.
        convert: Reads a file.
        packages: What ``convert`` imports; the extra ``documents`` brings it.
        place: The key that names the place of a part, as ``page``; "" where a document has one
            part.
        kept: What is kept beside text, headings, lists and tables.
        dropped: What is not read.
    """

    name: str
    suffixes: tuple[str, ...]
    convert: Callable[[Path], Conversion]
    packages: tuple[str, ...] = ()
    place: str = ""
    kept: str = ""
    dropped: str = ""


def format_of(name: str, *suffixes: str, **details: Any) -> Callable[[Any], Any]:
    """Declare that the function below reads a format; takes what :class:`Format` has."""

    def declare(convert: Callable[[Path], Conversion]) -> Callable[[Path], Conversion]:
        convert.format = Format(name, suffixes, convert, **details)  # type: ignore[attr-defined]
        return convert

    return declare


@cache
def known_formats() -> Mapping[str, Format]:
    """Return the formats of all converters by suffix."""
    formats: dict[str, Format] = {}
    for module_info in iter_modules(converters.__path__):
        module = import_module(f"{converters.__name__}.{module_info.name}")
        for value in vars(module).values():
            declared = getattr(value, "format", None)
            if isinstance(declared, Format):
                formats.update(dict.fromkeys(declared.suffixes, declared))
    return formats


def suffix_of(path: str) -> str:
    """Return the suffix of a path, in small letters."""
    # As splitext, in a third of the time: every file has one.
    stem, _, suffix = path.replace("\\", "/").rpartition("/")[2].rpartition(".")
    return f".{suffix.lower()}" if stem.strip(".") else ""


def has_format(path: str) -> bool:
    """Return whether a file of this name is converted."""
    return suffix_of(path) in known_formats()


def is_text(path: str) -> bool:
    """Return whether most of a file of this name is text."""
    known = known_formats().get(suffix_of(path))
    return known is None or not known.packages


@cache
def has_extra() -> bool:
    """Return whether the packages that converters need are installed."""
    packages = {package for known in known_formats().values() for package in known.packages}
    return all(map(find_spec, packages))


def table_of_formats() -> str:
    """Return a Markdown table of the formats, for the documentation."""
    lines = [
        (
            "| format | files | read by | cited by | kept beside text, headings, lists, "
            "tables | not read |"
        ),
        "|---|---|---|---|---|---|",
    ]
    for known in dict.fromkeys(known_formats().values()):
        files = ", ".join(f"`{suffix}`" for suffix in known.suffixes)
        packages = ", ".join(known.packages) or "this package"
        cells = (known.name, files, packages, known.place, known.kept, known.dropped)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)

"""The registry of document formats.

Each module of ``converters`` declares its formats next to the functions that read them. All other
code gets the formats from here: the walk over a folder, the conversion, messages and the
documentation. The modules of ``converters`` import the packages that they need inside their
functions, so that this registry is fast and needs no extra.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, NamedTuple

from llama_index_contextual.app.folder import converters
from llama_index_contextual.utils.metadata import LEFT_OUT
from llama_index_contextual.utils.text import counted

EXTRA = "documents"  # the extra with the packages that converters need
REVISION = 13  # increased when the same file gives a different text, to convert it again


class Part(NamedTuple):
    """The Markdown of a page, a slide, a sheet or some cells.

    Its place is a dictionary such as ``{"page": 12}``, or {} if there is only one part.
    """

    text: str
    place: dict[str, str | int] = {}  # noqa: RUF012  never changed


class Conversion(NamedTuple):
    """A converted document.

    Attributes:
        parts: The parts in reading order.
        metadata: The metadata of the document, such as ``title``, ``author`` and ``created``, or
            ``date``, ``sender`` and ``to`` for mail.
        left_out: The kinds of content that the text lacks, with counts: ``{"picture": 3}``.
    """

    parts: list[Part]
    metadata: dict[str, str] = {}  # noqa: RUF012  nobody changes it
    left_out: Mapping[str, int] = {}

    @property
    def text(self) -> str:
        """Return the text of all parts."""
        return "".join(part.text for part in self.parts)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data without empty metadata, in which ``left_out`` is a line of text."""
        left_out = [
            counted(number, thing) for thing, number in sorted(self.left_out.items()) if number
        ]
        metadata = {LEFT_OUT: "; ".join(left_out), **self.metadata}
        filled = {key: value for key, value in metadata.items() if value}
        return {"parts": self.parts, "metadata": filled}


class ConversionError(Exception):
    """A document cannot be converted. The message says why, and what to do."""


class Format(NamedTuple):
    """A document format.

    Attributes:
        name: The name for users.
        suffixes: The suffixes of its files, in lower case.
        convert: The function that reads a file.
        packages: The packages that ``convert`` imports, from the extra ``documents``.
        place: The key for the place of a part, such as ``page``; "" if documents have one part.
        kept: Contents kept besides text, headings, lists and tables, for the documentation.
        left_out: Contents that are not read, for the documentation.
    """

    name: str
    suffixes: tuple[str, ...]
    convert: Callable[[Path], Conversion]
    packages: tuple[str, ...] = ()
    place: str = ""
    kept: str = ""
    left_out: str = ""


def declare_format(name: str, *suffixes: str, **details: Any) -> Callable[[Any], Any]:
    """Return a decorator for a function that reads a format, with the fields of :class:`Format`."""

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
    """Return the suffix of a path in lower case."""
    # Like splitext, but in a third of the time, because this runs for every file.
    stem, _, suffix = path.replace("\\", "/").rpartition("/")[2].rpartition(".")
    return f".{suffix.lower()}" if stem.strip(".") else ""


def has_format(path: str) -> bool:
    """Return whether files with this name are converted."""
    return suffix_of(path) in known_formats()


def is_text(path: str) -> bool:
    """Return whether files with this name consist mostly of text."""
    known = known_formats().get(suffix_of(path))
    return known is None or not known.packages


@cache
def has_extra() -> bool:
    """Return whether the packages that converters need are installed."""
    packages = {package for known in known_formats().values() for package in known.packages}
    return all(map(find_spec, packages))

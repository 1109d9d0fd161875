"""What a document becomes when it is converted: parts of Markdown, such as pages; and which converter reads what.

This is all that converters, the process that they run in, and who asks for a conversion have in common.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

EXTRA: Final = "documents"  # of this package: brings the converters
PYTHON: Final = "python"  # our own converters
KREUZBERG: Final = "kreuzberg"
PDFIUM: Final = "pdfium"
# What a converter needs besides Python, and its revision: raised when the same file gives another text, so that it is
# converted again.
PACKAGES: Final = {PDFIUM: "pypdfium2", KREUZBERG: "kreuzberg"}
REVISIONS: Final = {PDFIUM: 3, KREUZBERG: 1, PYTHON: 2}
# By suffix what reads it. Kreuzberg would lose Word's lists, slides without text, and where chapters begin.
_CONVERTERS: Final = {
    ".pdf": (PDFIUM, "pdf.read_pdf"),
    **dict.fromkeys((".xlsx", ".odt", ".msg", ".rtf"), (KREUZBERG, "office.read_with_kreuzberg")),
    **dict.fromkeys((".html", ".htm"), (PYTHON, "web.read_html")),
    ".docx": (PYTHON, "office.read_docx"),
    ".pptx": (PYTHON, "office.read_pptx"),
    ".epub": (PYTHON, "web.read_epub"),
    ".eml": (PYTHON, "web.read_mail"),
    ".ipynb": (PYTHON, "markup.read_notebook"),
    ".rst": (PYTHON, "markup.read_rst"),
    ".org": (PYTHON, "markup.read_org"),
    ".csv": (PYTHON, "markup.read_csv"),
    ".tex": (PYTHON, "markup.read_tex"),
}
FORMATS: Final = {suffix: package for suffix, (package, _) in _CONVERTERS.items()}
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
        metadata: Of the document: ``title``, ``author``, ``created`` ...; for mail ``date``, ``sender``, ``to``.
    """

    parts: list[Part]
    metadata: dict[str, str] = {}  # noqa: RUF012  nobody changes it

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {"parts": [list(part) for part in self.parts], "metadata": self.metadata}

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

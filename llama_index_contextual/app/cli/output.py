"""Everything that the command line prints: nothing in a name or a text commands the terminal."""

from __future__ import annotations

import json
import logging
import re
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.text import Text

from llama_index_contextual.app.settings.schema import SETTINGS
from llama_index_contextual.errors import ContextualWarning, SettingError
from llama_index_contextual.text import counted, printable

if TYPE_CHECKING:
    from pathlib import Path

    from llama_index_contextual.app.index import ContextualIndex

_QUOTE: Final = "'"
_OPTIONS: Final = ("storage", "since", "until", "port")  # of no setting
messages = Console(stderr=True, soft_wrap=True, highlight=False)
# Beyond those that JSON escapes by itself: of terminals, of direction, and those without a shape.
_UNSEEN: Final = re.compile("[\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]")


def print_text(text: str, end: str = "\n") -> None:
    """Print lines, or with another end a part of a line at once."""
    sys.stdout.write(f"{printable(text)}{end}")
    if not end:
        sys.stdout.flush()


def print_styled(*parts: str | tuple[str, str], indent: int = 0) -> None:
    """Print a line of texts and of texts with a style, wrapped at the width of a terminal; plain where it is none."""
    pairs = [(part, "") if isinstance(part, str) else part for part in parts]
    text = Text.assemble(*((printable(part, one_line="\n" in part), style) for part, style in pairs))
    if not sys.stdout.isatty():
        sys.stdout.write(f"{' ' * indent}{text.plain}".rstrip() + "\n")
        return
    from rich.padding import Padding

    Console(highlight=False).print(Padding(text, (0, 0, 0, indent), expand=False))


def print_json(data: Any) -> None:
    """Print plain data as JSON. With ``--json`` nothing else goes to standard output."""
    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    text = json.dumps(data, indent=2, ensure_ascii=not is_unicode)
    sys.stdout.write(_UNSEEN.sub(lambda match: json.dumps(match[0])[1:-1], text) + "\n")


def print_report(report: Any, text: str, *, as_json: bool) -> None:
    """Print a report as JSON or in words, at once, since ``--watch`` goes on."""
    if as_json:
        print_json(report.to_dict() if hasattr(report, "to_dict") else report)
    else:
        print_text(text)
    sys.stdout.flush()


def tell(text: str, label: str = "", style: str = "yellow") -> None:
    """Write a message to standard error."""
    messages.print(Text.assemble((label, style), " " if label and text else "", printable(text)))


def note(text: str) -> None:
    """Write a note to standard error, where there is one."""
    if text:
        tell(text, "note:")


def skipped_line(index: ContextualIndex, *, names: bool) -> str:
    """How many files of a folder are not read, by their kinds, or as a vault's templates; "" for none.

    Args:
        index: Of the folder.
        names: Whether each of them is written, and what the text of other files lacks.
    """
    from llama_index_contextual.app.folder.formats import LEFT_OUT
    from llama_index_contextual.app.folder.walk import summary_of_skipped
    from llama_index_contextual.metadata import PATH

    found = index.found()
    paths, not_notes = found.skipped, found.not_notes
    for path in sorted([*paths, *not_notes]) if names else ():
        tell(path, "not read:")
    if names and index.documents():
        lacking = zip(index.values(PATH), index.values(LEFT_OUT), strict=True)
        for path, parts in sorted({(path, parts) for path, parts in lacking if parts}):
            tell(f"{path}: {parts}", "left out:")
    vault = f"{counted(len(not_notes), 'template')} or drawings of an Obsidian vault not read"
    line = "; ".join(filter(None, (summary_of_skipped(paths), vault if not_notes else "")))
    return line + ("" if names or not line else "; --list-skipped names them")


def tell_error(error: Exception) -> None:
    """Write an error as one message. It names settings as the command line does."""
    text = error.shown(_as_option) if isinstance(error, SettingError) else str(error)
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename}: {error.strerror}. Cure: name a place that exists and that you may use."
    tell(text, "error:", "red")


def _as_option(name: str, value: str) -> str:
    """A setting as the command line names it, with its value as a shell would have it."""
    named = [one.option or one.key for one in SETTINGS.values() if one.name == name]
    option = max(named, default=f"--{name}" if name in _OPTIONS else name, key=lambda text: text[:2] == "--")
    return f"{option}={value if any(map(str.isspace, value)) else value.strip(_QUOTE)}"


def tell_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Show our own warnings as one line. A user cannot mend those of libraries, so they are not shown."""
    if issubclass(category, ContextualWarning):
        tell(str(message), "warning:")


class _Once(logging.Handler):
    """Writes the warnings that parts of this package log, each once: a damaged file is met by several of them."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._write = cache(lambda text: tell(text, "warning:"))

    def emit(self, record: logging.LogRecord) -> None:
        self._write(record.getMessage())


def write_log() -> None:
    """Write what this package logs in the same way as its warnings."""
    logger = logging.getLogger("llama_index_contextual")
    logger.handlers[:] = [_Once()]
    logger.propagate = False


def write_page(file: Path, text: str) -> None:
    """Write a page to a file and say so."""
    file.write_text(text, "utf-8", errors="replace")
    tell(f"Written: {file}")

"""Everything that the command line prints: nothing in a name or a text commands the terminal."""

from __future__ import annotations

import codecs
import json
import logging
import re
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.text import Text

from llama_index_contextual.app.settings.schema import SETTINGS
from llama_index_contextual.errors import ContextualWarning, SettingError
from llama_index_contextual.text import counted, printable

if TYPE_CHECKING:
    from pathlib import Path

    from llama_index_contextual.app.index import ContextualIndex, Freshness

messages = Console(stderr=True, soft_wrap=True, highlight=False)
# Beyond those that JSON escapes by itself: of terminals, of direction, and those without a shape.
_UNSEEN: Final = re.compile("[\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]")


def _escape(error: UnicodeError) -> tuple[str, int]:
    r"""``\uXXXX`` for a character that the output's encoding lacks. It is valid inside JSON, too."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


escape_unencodable: Final = "llama-index-contextual.escape"
codecs.register_error(escape_unencodable, _escape)


def shown(text: str, *, one_line: bool = False) -> str:
    """A foreign text as a terminal shows it: without characters that command it, turn a line, or have no shape."""
    return printable(text, one_line=one_line)


def print_text(text: str) -> None:
    """Print lines."""
    sys.stdout.write(f"{shown(text)}\n")


def print_part(text: str) -> None:
    """Print a part of a line at once."""
    sys.stdout.write(shown(text))
    sys.stdout.flush()


def print_styled(*parts: str | tuple[str, str], indent: int = 0) -> None:
    """Print a line of texts and of texts with a style, wrapped at the width of a terminal; plain where it is none."""
    text = Text.assemble(*((shown(part), "") if isinstance(part, str) else (shown(part[0]), part[1]) for part in parts))
    if not sys.stdout.isatty():
        sys.stdout.write(f"{' ' * indent}{text.plain}".rstrip() + "\n")
        return
    from rich.padding import Padding

    Console(highlight=False).print(Padding(text, (0, 0, 0, indent), expand=False))


def print_json(data: Any) -> None:
    """Print plain data as JSON. With ``--json`` nothing else goes to standard output."""
    text = json.dumps(data, indent=2, ensure_ascii=False)
    sys.stdout.write(_UNSEEN.sub(lambda match: json.dumps(match[0])[1:-1], text) + "\n")


def print_report(report: Any, text: str = "", *, as_json: bool) -> None:
    """Print a report as JSON, or as lines: its own, if it has no other text."""
    if as_json:
        print_json(report.to_dict() if hasattr(report, "to_dict") else asdict(report))
    else:
        print_text(text or str(report))


def tell(text: str, label: str = "", style: str = "yellow") -> None:
    """Write a message to standard error."""
    messages.print(Text.assemble((label, style), " " if label and text else "", shown(text)))


def tell_freshness(freshness: Freshness) -> None:
    """Write how far the index is behind its folder, where it is."""
    if note := str(freshness):
        tell(note, "note:")


def skipped_line(index: ContextualIndex, *, names: bool) -> str:
    """How many files of a folder are not read, by their kinds, or as a vault's templates; "" for none.

    Args:
        index: Of the folder.
        names: Whether each of them is written, and what the text of other files lacks.
    """
    from llama_index_contextual.app.folder.walk import summary_of_skipped

    found = index.found()
    paths, not_notes = found.skipped, found.not_notes
    for path in sorted([*paths, *not_notes]) if names else ():
        tell(path, "not read:")
    for path, parts in sorted(index.left_out().items()) if names else ():
        tell(f"{path}: {parts}", "left out:")
    vault = f"{counted(len(not_notes), 'template')} or drawings of an Obsidian vault not read"
    line = "; ".join(filter(None, (summary_of_skipped(paths), vault if not_notes else "")))
    return line + ("" if names or not line else "; --list-skipped names them")


def tell_error(error: Exception) -> None:
    """Write an error as one message. It names settings as the command line does."""
    text = error.shown(as_option) if isinstance(error, SettingError) else str(error)
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename}: {error.strerror}. Cure: name a place that exists and that you may use."
    tell(text, "error:", "red")


def tell_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Show our own warnings as one line. A user cannot mend those of libraries, so they are not shown."""
    if issubclass(category, ContextualWarning):
        tell(str(message), "warning:")


class _Once(logging.Handler):
    """Writes the warnings that parts of this package log, each once: a damaged file is met by several of them."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._written: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text not in self._written:
            self._written.add(text)
            tell(text, "warning:")


def write_log() -> None:
    """Write what this package logs in the same way as its warnings."""
    logger = logging.getLogger("llama_index_contextual")
    logger.handlers[:] = [_Once()]
    logger.propagate = False


# The option, or else the key of the configuration, by the name of a setting in Python.
_OPTIONS: Final = {
    **{name: f"--{name}" for name in ("storage", "since", "until", "port")},
    **{setting.name: setting.key for setting in SETTINGS.values()},
    **{setting.name: setting.option for setting in SETTINGS.values() if setting.option},
}


def as_option(name: str, value: str) -> str:
    """A setting as the command line names it, with its value as a shell would have it."""
    bare = value[1:-1] if value[:1] == "'" and not any(map(str.isspace, value)) else value
    return f"{_OPTIONS.get(name, name)}={bare}"


def write_page(file: Path, text: str) -> None:
    """Write a page to a file and say so.

    Raises:
        SettingError: The file cannot be written.
    """
    try:
        file.write_text(text, "utf-8", errors="replace")
    except OSError as error:
        raise SettingError(
            f"{file} cannot be written ({error.strerror}). Cure: name a file in a folder that exists."
        ) from error
    tell(f"Written: {file}")

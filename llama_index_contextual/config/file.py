"""One configuration file, read as data: its values by dotted key, the line of each, and who owns it.

It is read whole and with bounds, because it may be a stranger's: at most 1 MB, 2,000 values and 8 levels. The bounds
are checked before the parser meets the text, whose time grows with the square of a dotted key's parts.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual.errors import SettingError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

FILE: Final = "contextual.toml"
PROJECT: Final = "pyproject.toml"
TABLE: Final = ("tool", "llama-index-contextual")
MAX_BYTES: Final = 1_000_000
MAX_VALUES: Final = 2_000
MAX_DEPTH: Final = 8
_MAX_NUMBER: Final = 10**18
_SHOWN: Final = 200  # characters of what the parser says
_WHOLE: Final = ("descriptions", "collections")  # tables with names of the user's own, each one value
_CURE: Final = "Cure: say less in it."
_MARK: Final = re.compile(r'"""|\'\'\'|["\'#.=,\[\]{}\n]')
_IN_STRING: Final = {'"': re.compile(r'[\\"\n]'), '"""': re.compile(r'\\|"""')}


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """What one file says, or another place that says settings.

    Attributes:
        path: The file; None where there is none.
        values: By dotted key; ``descriptions`` is one value.
        origins: ``FILE:LINE`` of each key, or the variable or option that says it.
        owner: The number of the user whom the file belongs to.
    """

    path: Path | None = None
    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    owner: int = 0


def read_settings(path: Path) -> ConfigFile:
    """Read a file: all of it, or of a ``pyproject.toml`` our table.

    Raises:
        SettingError: It cannot be read, is no TOML, or is beyond the bounds.
    """
    text, owner = _text_of(path)
    ours = TABLE if path.name == PROJECT else ()
    if ours and f"[{'.'.join(TABLE)}" not in text:
        return ConfigFile()
    _check_shape(path, text)
    try:
        table: Any = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits
        line = re.search(r"line (\d+)", str(error))
        place = f"{path}:{line[1]}" if line else str(path)
        raise SettingError(f"{place} is not TOML: {str(error)[:_SHOWN]}. Cure: correct that line.") from error
    for part in ours:
        table = table.get(part, {}) if isinstance(table, dict) else {}
    values = dict(flat(table)) if isinstance(table, dict) else {}
    lines = _lines(text)
    origins = {key: f"{path}:{_line(lines, '.'.join((*ours, key)))}" for key in values}
    count = sum(len(value) if isinstance(value, list | dict) else 1 for value in values.values())
    if count > MAX_VALUES:
        raise SettingError(f"{path} has {count:,} values, and {MAX_VALUES:,} are read at most. {_CURE}")
    for key, value in values.items():
        numbers = value if isinstance(value, list) else [value]
        if any(isinstance(number, int) and abs(number) > _MAX_NUMBER for number in numbers):
            raise SettingError(f"{origins[key]}: {key} is a number beyond all limits. Cure: a smaller one.")
    return ConfigFile(path, values, origins, owner)


def read_text(path: Path) -> str:
    """Return the text of a small file that a setting names.

    Raises:
        SettingError: It cannot be read, or is larger than 1 MB.
    """
    return _text_of(path)[0]


def _text_of(path: Path) -> tuple[str, int]:
    try:
        if not path.is_file():
            raise SettingError(f"{path} cannot be read: it is no file. Cure: name one, or give the text itself.")
        with path.open("rb") as file:
            content, owner = file.read(MAX_BYTES + 1), os.fstat(file.fileno()).st_uid
        text = content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"{path} cannot be read: {error}. Cure: make it a readable file in UTF-8.") from error
    if len(content) > MAX_BYTES:
        raise SettingError(f"{path} is larger than {MAX_BYTES:,} bytes, which are read at most. {_CURE}")
    return text, owner


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and values; a table with names of the user's own is one value."""
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and key not in _WHOLE:
            yield from flat(value, f"{key}.")
        elif value != {}:
            yield key, value


def _check_shape(path: Path, text: str) -> None:
    """Refuse what is too deep or too much, by a look at what stands outside of strings and comments."""
    keys = depth = dots = place = 0
    while match := _MARK.search(text, place):
        mark, place = match[0], match.end()
        if mark[0] in "\"'":
            place = _end_of_string(text, mark, place)
        elif mark == "#":
            place = end if (end := text.find("\n", place)) >= 0 else len(text)
        elif mark == ".":
            dots += 1
        else:
            dots = 0
            keys += mark == "="
            depth += (mark in "[{") - (mark in "]}")
        if dots > MAX_DEPTH or depth > MAX_DEPTH:
            line = text.count("\n", 0, place) + 1
            raise SettingError(f"{path}:{line} is deeper than {MAX_DEPTH} levels. {_CURE}")
    if keys > MAX_VALUES:
        raise SettingError(f"{path} has {keys:,} keys, and {MAX_VALUES:,} are read at most. {_CURE}")


def _end_of_string(text: str, mark: str, place: int) -> int:
    """Return where a string ends; the end of the text where it does not, as no parser gets beyond it."""
    if mark not in _IN_STRING:  # no character is escaped in it
        end = text.find(mark, place)
        return end + len(mark) if end >= 0 else len(text)
    while match := _IN_STRING[mark].search(text, place):
        place = match.end()
        if match[0] == mark:
            return place
        if match[0] == "\n":
            break
        place += 1
    return len(text)


def _lines(text: str) -> dict[str, int]:
    """Return the line of each key and of each table, as far as a look at the beginning of lines tells it."""
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.split("\n"), 1):
        bare = line.strip()
        if bare.startswith("["):
            table = _unquoted(bare.partition("]")[0].strip("[ "))
            lines.setdefault(table, number)
            table += "."
        elif "=" in bare:
            lines.setdefault(table + _unquoted(bare.partition("=")[0]), number)
    return lines


def _line(lines: Mapping[str, int], key: str) -> int:
    """Return the line of a key, else of the table that it is in, else the first."""
    parts = key.split(".")
    return next((lines[name] for end in range(len(parts), 0, -1) if (name := ".".join(parts[:end])) in lines), 1)


def _unquoted(name: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in name.split("."))

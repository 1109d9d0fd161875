"""Where values come from: the user's own file, the folder's, environment variables, options. An error names the place.

The folder's file is data of whoever made the folder: only what :func:`is_safe` allows counts, and a warning names the
rest. It is read with bounds: at most 1 MB, 2,000 values and 8
levels. These are checked before the parser meets the text, whose time grows with the square of a dotted key's parts.
"""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydantic import ValidationError

from llama_index_contextual.app.config.keys import SETTINGS, Configuration
from llama_index_contextual.app.config.trust import is_safe, user_folder
from llama_index_contextual.errors import ContextualWarning, SettingError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FILE: Final = "contextual.toml"
PROJECT: Final = "pyproject.toml"
TABLE: Final = ("tool", "llama-index-contextual")
MAX_BYTES: Final = 1_000_000
MAX_VALUES: Final = 2_000
MAX_DEPTH: Final = 8
_MAX_NUMBER: Final = 10**18
_FOLDERS: Final = "folders"  # of the user's own file
_WHOLE: Final = ("descriptions", "collections", _FOLDERS)  # tables with names of the user's own, each one value
_CURE: Final = "Cure: say less in it."
# Strings and comments. Each part goes to the end where nothing closes it, so that none is looked at twice.
_HIDDEN: Final = re.compile(
    r'''"""(?:\\.?|[^\\])*?(?:"""|\Z)|"(?:\\[^\n]|[^"\\\n])*"?|#[^\n]*'''
    r"""|'''.*?(?:'''|\Z)|'[^'\n]*'?""",
    re.DOTALL,
)
_START: Final = re.compile(r"\s*(?:\[+\s*(?P<table>[\w.-]+)|(?P<key>[\w.-]+)\s*=)")
_PART: Final = re.compile(r"[\[{\]}]|[^\[{\]}=,]+")
PREFIX: Final = "LLAMA_INDEX_CONTEXTUAL_"
USER_FILE: Final = "config.toml"  # in the user's own folder of settings
CURE: Final = "llama-index-contextual config --init"
_PROMPT: Final = "context_options.prompt"
_INDEX: Final = "index"
_NAMED: Final = 8  # settings and mistakes in one message
_SHOWN: Final = 100  # characters of a wrong value, or of what the parser says


class Entry(NamedTuple):
    """A value of a setting, and who says it: ``FILE:LINE``, a variable, an option, or the index."""

    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """What one file says, or another place that says settings.

    Attributes:
        path: The file; None where there is none.
        values: By dotted key; ``descriptions`` is one value.
    """

    path: Path | None = None
    values: dict[str, Entry] = field(default_factory=dict)


def load_configuration(
    folder: str | Path,
    *,
    file: str | Path | None = None,
    over: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
) -> Configuration:
    """Read the configuration of a folder.

    Args:
        folder: The documents. ``contextual.toml`` is looked for in it, then a table of its ``pyproject.toml``.
            Settings that are not harmless are left out, with a warning.
        file: Another file to read instead of those. Who names it trusts it.
        over: A further file of the same form. What it says comes before the first file and the environment.
        options: Values that come before all others, by key (``"chunks.chunk_size"``). None counts as not said.

    Raises:
        SettingError: A file cannot be read, or a value of any place cannot work. The message names file and line, or
            the option, or the environment variable.
    """
    root = Path(folder).expanduser()
    user = _of_user(root)
    main = _of_folder(root) if file is None else _named(file)
    further = ConfigFile() if over is None else _named(over)
    first = {
        key: Entry(value, SETTINGS[key].option or key) for key, value in (options or {}).items() if value is not None
    }
    values = {**user.values, **main.values, **_environment(), **further.values, **first}
    prompt, origin = values.get(_PROMPT, ("", ""))
    if isinstance(prompt, str) and prompt and "{" not in prompt:  # a file, beside the one that says so
        files = (place.path for place in (user, main, further) if place.path)
        beside = (path.parent for path in files if origin.startswith(f"{path}:"))
        values[_PROMPT] = Entry(read_text(next(beside, Path()) / prompt), origin)
    return checked(values, main.path)


def completed(configuration: Configuration, remembered: Mapping[str, Any]) -> Configuration:
    """Return a configuration with what an index remembers, by key, where nobody says anything else.

    Raises:
        SettingError: A value cannot work.
    """
    settings = {key: Entry(value, _INDEX) for key, value in remembered.items() if key in SETTINGS}
    if unknown := [key for key in remembered if key not in settings and not key.startswith("context_options.")]:
        warnings.warn(
            f"The index remembers {', '.join(unknown)}, which is no setting of this version and does not count. Cure: "
            "say what it meant again, and index.",
            ContextualWarning,
            stacklevel=3,
        )
    more = {key: Entry(value, configuration.origins.get(key, key)) for key, value in configuration.said().items()}
    return checked({**settings, **more}, configuration.file)


def _of_folder(folder: Path) -> ConfigFile:
    """The harmless settings of a folder's own file; a warning names the others."""
    path = next((path for name in (FILE, PROJECT) if (path := folder / name).is_file()), None)
    file = ConfigFile() if path is None else read_settings(path)
    keys = [key for key, entry in file.values.items() if not is_safe(key, entry.value)]
    if not keys:
        return file
    checked(file.values)  # a slip is an error, also in what does not count
    names = ", ".join(keys[:_NAMED]) + (f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else "")
    own = f'[folders."{folder.resolve()}"] in {user_folder() / USER_FILE}'
    warnings.warn(
        f"{file.path}: {names} not obeyed: a folder may not set this by itself. Cure: options, variables, or {own}.",
        ContextualWarning,
        stacklevel=3,
    )
    return replace(file, values={key: entry for key, entry in file.values.items() if key not in keys})


def _of_user(folder: Path) -> ConfigFile:
    """The settings of the user's own file; its table of the folder counts before the rest."""
    path = user_folder() / USER_FILE
    if not path.is_file():
        return ConfigFile()
    file = read_settings(path)
    folders = file.values.pop(_FOLDERS, Entry({}, ""))
    if not isinstance(folders.value, dict) or not all(isinstance(one, dict) for one in folders.value.values()):
        raise SettingError(f'{folders.origin}: folders cannot work. Cure: tables, [folders."/path"].')
    for name, table in folders.value.items():
        if Path(name).expanduser().resolve() == folder.resolve():
            file.values.update({key: Entry(value, folders.origin) for key, value in flat(table)})
    return file


def _named(file: str | Path) -> ConfigFile:
    path = Path(file).expanduser()
    if not path.is_file():
        raise SettingError(f"{path} is no file. Cure: name a configuration file, or write one: {CURE}")
    return read_settings(path)


def _environment() -> dict[str, Entry]:
    """Return what environment variables say."""
    values: dict[str, Entry] = {}
    for variable, text in os.environ.items():
        key = variable.upper().removeprefix(PREFIX).lower().replace("__", ".")
        if variable.upper().startswith(PREFIX) and ("." in key or key in Configuration.model_fields):
            values |= {name: Entry(value, variable) for name, value in flat({key: _plain(text)})}
    return values


def _plain(text: str) -> Any:
    """Return a list or a table that is written as JSON; any other text as it is."""
    try:
        return json.loads(text) if text[:1] in ("[", "{") else text
    except ValueError:
        return text


def checked(values: Mapping[str, Entry], file: Path | None = None) -> Configuration:
    """Return the configuration of some values by key.

    Raises:
        SettingError: One is not known or cannot work; the message names where each was said.
    """
    tree: dict[str, Any] = {}
    mistakes = []
    for key, (value, origin) in values.items():
        try:
            if key not in SETTINGS:
                mistakes.append(f"{_shown(origin, key)}{_unknown(key, value)}")
            else:
                table, _, name = key.rpartition(".")
                (tree.setdefault(table, {}) if table else tree)[name] = SETTINGS[key].adapter.validate_python(value)
        except ValidationError as error:  # noqa: PERF203  every mistake is named
            fault = error.errors(include_url=False)[0]
            cure = "leave it out, or correct its name" if fault["type"] == "extra_forbidden" else fault["msg"]
            cure = cure.removeprefix("Value error, ")
            inside = "".join(f".{part}" for part in fault["loc"]) if SETTINGS[key].is_table else ""
            setting_text = f"{_shown(origin, key)}{inside}={_shortened(repr(fault['input']))}"
            mistakes.append(f"{setting_text} cannot work. Cure: {cure[:1].lower()}{cure[1:]}.")
    if mistakes:
        more = f" And {len(mistakes) - _NAMED} more." if len(mistakes) > _NAMED else ""
        raise SettingError(" ".join(mistakes[:_NAMED]) + more)
    configuration = Configuration(**tree)
    origins = {key: entry.origin for key, entry in values.items()}
    configuration._origins, configuration._file = origins, file  # noqa: SLF001  our own
    return configuration


def _shown(origin: str, key: str) -> str:
    if origin == _INDEX or ":" in origin:
        return f"{origin}: {_shortened(key)}"
    return origin  # options and variables name the key


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _unknown(key: str, value: Any) -> str:
    """Say that a key is not known, and which are; it may be a table, or in the wrong one."""
    if any(longer.startswith(f"{key}.") for longer in SETTINGS):
        return f"={_shortened(repr(value))} cannot work. Cure: make it a table, [{key}]."
    table, _, name = key.rpartition(".")
    for setting in SETTINGS.values():
        if setting.name == name:
            return f" is not known. Cure: use {setting.key}{'' if '.' in setting.key else ', above all tables'}."
    names = [setting.name for setting in SETTINGS.values() if table and setting.table == table]
    names = names or list(dict.fromkeys(key.partition(".")[0] for key in SETTINGS))
    return f" is not known. Cure: use one of {', '.join(names)}."


# One file


def read_settings(path: Path) -> ConfigFile:
    """Read a file: all of it, or of a ``pyproject.toml`` our table.

    Raises:
        SettingError: It cannot be read, is no TOML, or is beyond the bounds.
    """
    text = read_text(path)
    ours = TABLE if path.name == PROJECT else ()
    if ours and f"[{'.'.join(TABLE)}" not in text:
        return ConfigFile()
    lines = _scanned(path, text)
    try:
        table: Any = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits
        line = re.search(r"line (\d+)", str(error))
        place = f"{path}:{line[1]}" if line else str(path)
        raise SettingError(f"{place} is not TOML: {str(error)[: 2 * _SHOWN]}. Cure: correct that line.") from error
    for part in ours:
        table = table.get(part, {}) if isinstance(table, dict) else {}
    pairs = [*flat(table)] if isinstance(table, dict) else []
    values = {key: Entry(value, f"{path}:{_line(lines, '.'.join((*ours, key)))}") for key, value in pairs}
    count = sum(len(value) if isinstance(value, list | dict) else 1 for _, value in pairs)
    if count > MAX_VALUES:
        raise SettingError(f"{path} has {count:,} values, and {MAX_VALUES:,} are read at most. {_CURE}")
    for key, (value, origin) in values.items():
        numbers = value if isinstance(value, list) else [value]
        if any(isinstance(number, int) and abs(number) > _MAX_NUMBER for number in numbers):
            raise SettingError(f"{origin}: {key} is a number beyond all limits. Cure: a smaller one.")
    return ConfigFile(path, values)


def read_text(path: Path) -> str:
    """Return the text of a small file that a setting names.

    Raises:
        SettingError: It cannot be read, or is larger than 1 MB.
    """
    try:
        if not path.is_file():
            raise SettingError(f"{path} cannot be read: it is no file. Cure: name one, or give the text itself.")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        text = content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"{path} cannot be read: {error}. Cure: make it a readable file in UTF-8.") from error
    if len(content) > MAX_BYTES:
        raise SettingError(f"{path} is larger than {MAX_BYTES:,} bytes, which are read at most. {_CURE}")
    return text


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and values; a table with names of the user's own is one value."""
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and key not in _WHOLE:
            yield from flat(value, f"{key}.")
        elif value != {}:
            yield key, value


def _scanned(path: Path, text: str) -> dict[str, int]:
    """Return the line of each table and key whose name is not quoted.

    Raises:
        SettingError: The text is too deep, or has too many keys.
    """
    bare = _HIDDEN.sub(lambda match: '""' + "\n" * match[0].count("\n"), text)
    if (keys := bare.count("=")) > MAX_VALUES:
        raise SettingError(f"{path} has {keys:,} keys, and {MAX_VALUES:,} are read at most. {_CURE}")
    lines: dict[str, int] = {}
    table, depth = "", 0
    for number, line in enumerate(bare.split("\n"), 1):
        if not depth and (start := _START.match(line)):
            table = f"{start['table']}." if start["table"] else table
            lines.setdefault(start["table"] or table + start["key"], number)
        for part in _PART.findall(line):
            depth += (part in {"[", "{"}) - (part in {"]", "}"})
            if depth > MAX_DEPTH or part.count(".") > MAX_DEPTH:
                raise SettingError(f"{path}:{number} is deeper than {MAX_DEPTH} levels. {_CURE}")
    return lines


def _line(lines: Mapping[str, int], key: str) -> int:
    """Return the line of a key, else of the table that it is in, else the first."""
    parts = key.split(".")
    return next((lines[name] for end in range(len(parts), 0, -1) if (name := ".".join(parts[:end])) in lines), 1)

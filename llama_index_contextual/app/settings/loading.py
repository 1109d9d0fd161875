"""Load settings from options, environment variables, the folder's file and the user's own file.

The file of a folder may come from somebody else, so only its harmless settings are used, and a
warning names the other ones. Options, variables and the user's own file may contain any setting.
The user's file may have a table ``[folders."/path"]``. Files have at most 100,000 bytes, and 4,000
characters per line, because the time to parse a dotted key grows with the square of its parts.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from platformdirs import user_config_path
from pydantic import ValidationError

from llama_index_contextual.app.folder.files import read_file
from llama_index_contextual.app.settings.registry import (
    FOLDER_FILE,
    SETTINGS,
    TABLES,
    Configuration,
    Options,
    Setting,
)
from llama_index_contextual.utils.errors import (
    ContextualWarning,
    DocumentError,
    SettingError,
    requirement,
    without_credentials,
)
from llama_index_contextual.utils.metadata import shortened
from llama_index_contextual.utils.text import absolute_path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


USER_FILE = "config.toml"  # in the user's settings folder
PREFIX = "LLAMA_INDEX_CONTEXTUAL_"
MAX_BYTES = 100_000
MAX_LINE = 4_000
APPLICATION = "llama-index-contextual"
_FOLDER_NAME = re.compile(r"\w[\w.-]{0,99}")
# Variables that are not settings. Kubernetes sets some for a service with the name of this package.
# The index, tests and benchmarks have others.
_OTHER_VARIABLES = re.compile(
    r"(?:^|_)(?:service_host|service_port|port)(?:_|$)|^(?:data|cache|corpus|storage)$"
)
_FOLDERS = "folders"  # a table of the user's own file
_TABLES_OF_NAMES = ("descriptions", _FOLDERS)  # tables whose keys the user chooses


class Entry(NamedTuple):
    """The value of a setting and its origin: a file, a variable, an option or the index."""

    value: Any
    origin: str


def user_folder() -> Path:
    """Return the user's settings folder, for example ``~/.config/llama-index-contextual``."""
    return user_config_path(APPLICATION, appauthor=False)


def load_configuration(
    folder: str | Path,
    config: Mapping[str, Any] | None = None,
    *,
    arguments: Mapping[str, Any] | None = None,
    remembered: Mapping[str, Any] | None = None,
    replaced: Collection[str] = (),
) -> Configuration:
    """Load the configuration of a folder.

    Args:
        folder: The folder of the documents, which may contain ``contextual.toml``.
        config: Values by key (``"chunks.chunk_size"``) that override files and variables. None
            means not set.
        arguments: Values that override everything else.
        remembered: Values of an index, which everything else overrides. Only harmless ones are
            used.
        replaced: Settings and tables that an object replaces. For these, only ``arguments`` are
            used.

    Raises:
        SettingError: A file cannot be read or a value is not valid. The message names the file,
            option or variable.
    """
    root = absolute_path(folder)

    # Later sources override earlier ones.
    entries: dict[str, Entry] = {}
    for key, value in (remembered or {}).items():
        if is_harmless(key, value):
            entries[key] = Entry(value, "index")
    entries |= _user_entries(root)
    entries |= _folder_entries(root)
    entries |= _environment_entries()
    entries |= _mapping_entries(config or {})
    for key in list(entries):
        if key in replaced or key.partition(".")[0] in replaced:
            del entries[key]
    for key, value in (arguments or {}).items():
        entries[key] = Entry(value, key)
    return _checked(entries)


def is_harmless(key: str, value: Any) -> bool:
    """Return whether a folder's own file may set this value: it is known, valid and harmless."""
    setting = SETTINGS.get(key)
    if setting is None:
        return False
    try:
        return setting.is_harmless(setting.adapter.validate_python(value))
    except ValidationError:
        return False


# Sources


def _user_entries(folder: Path) -> dict[str, Entry]:
    """Return the settings of the user's own file. Its table for the folder overrides the rest."""
    path = user_folder() / USER_FILE
    if not os.path.lexists(path):
        return {}
    entries = _file_entries(path)
    tables = entries.pop(_FOLDERS, Entry({}, "")).value
    if not isinstance(tables, dict) or not all(
        isinstance(table, dict) for table in tables.values()
    ):
        raise SettingError(
            f'{path}: `{_FOLDERS}` must contain tables, such as [{_FOLDERS}."/path"].'
        )
    for name, table in tables.items():
        if absolute_path(name) == folder:
            for key, value in _flat(table):
                entries[key] = Entry(value, str(path))
    return entries


def _folder_entries(root: Path) -> dict[str, Entry]:
    """Return the harmless settings of the folder's file, and warn of refused ones."""
    path = root / FOLDER_FILE
    if not os.path.lexists(path):
        return {}
    entries = _file_entries(path, root)
    refused = [
        key
        for key, entry in entries.items()
        if key in SETTINGS and not SETTINGS[key].is_harmless(entry.value)
    ]
    if refused:
        _checked(entries)  # report mistakes in refused settings, too
        warnings.warn(
            f"{path}: {shortened(', '.join(refused))} ignored, because a folder's own file may not "
            f'set it. Use an option, a variable, or [{_FOLDERS}."{root}"] in '
            f"{user_folder() / USER_FILE}.",
            ContextualWarning,
            stacklevel=3,
        )
    return {key: entry for key, entry in entries.items() if key not in refused}


def _environment_entries() -> dict[str, Entry]:
    """Return the settings of environment variables."""
    entries: dict[str, Entry] = {}
    for variable, text in os.environ.items():
        if not variable.upper().startswith(PREFIX):
            continue
        key = variable.upper().removeprefix(PREFIX).lower().replace("__", ".")
        if not _OTHER_VARIABLES.search(key):
            entries[key] = Entry(text, variable)
    return entries


def _mapping_entries(config: Mapping[str, Any]) -> dict[str, Entry]:
    """Return the settings of a mapping, in which None means not set."""
    entries: dict[str, Entry] = {}
    for key, value in _flat(config):
        if value is not None:
            origin = SETTINGS[key].option if isinstance(config, Options) else key
            entries[key] = Entry(value, origin)
    return entries


def _file_entries(path: Path, root: Path | None = None) -> dict[str, Entry]:
    """Return the settings of a TOML file by dotted key.

    Args:
        path: The file.
        root: The folder that the file must be in; None for any.

    Raises:
        SettingError: The file cannot be read, is not TOML, or exceeds the bounds.
    """
    try:
        text = read_file(path, MAX_BYTES, root=root).decode("utf-8-sig")
        if any(len(line) > MAX_LINE for line in text.splitlines()):
            raise ValueError(f"a line has more than {MAX_LINE:,} characters")  # noqa: TRY301
        return {key: Entry(value, str(path)) for key, value in _flat(tomllib.loads(text))}
    except DocumentError as error:
        raise SettingError(f"{path}: {error}") from error
    except (ValueError, RecursionError) as error:
        reason = shortened(str(error))
        raise SettingError(f"{path} cannot be read as TOML in UTF-8: {reason}.") from error


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys with their values. A table with keys chosen by the user is one value."""
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and key not in _TABLES_OF_NAMES:
            yield from _flat(value, f"{key}.")
        elif value != {}:
            yield key, value


# Checks


def _checked(entries: Mapping[str, Entry]) -> Configuration:
    """Return the configuration of some values by key.

    Raises:
        SettingError: A key is unknown or a value is not valid; the message names its origin.
    """
    values: dict[str, Any] = {}
    for key, (value, origin) in entries.items():
        is_file = origin.endswith(".toml") or origin == "index"
        place = f"{origin}: {shortened(key)}" if is_file else origin
        setting = SETTINGS.get(key)
        if setting is None:
            raise SettingError(f"{place} {_unknown_key(key)}")
        values[key] = _valid(setting, value, place)
    return Configuration(values, {key: entry.origin for key, entry in entries.items()})


def _valid(setting: Setting, value: Any, place: str) -> Any:
    """Return a validated value. An error names the place, and the key within a table."""
    try:
        return setting.adapter.validate_python(value)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        part = "".join(f".{name}" for name in fault["loc"]) if setting.is_table else ""
        got = shortened(without_credentials(repr(fault["input"])))
        message = f"{place}{shortened(part)} {requirement(fault)} (got {got})."
        raise SettingError(message) from error


def _unknown_key(key: str) -> str:
    """Return the end of a message about an unknown key."""
    if key in TABLES:
        return f"must be a table: [{key}]."
    tables = dict.fromkeys(key.partition(".")[0] for key in SETTINGS)
    suggestions = get_close_matches(key, SETTINGS) or tables
    return f"is not a known setting. Use {', '.join(suggestions)}."


# Several folders


def folders_by_name(folders: Mapping[str, str | Path]) -> dict[str, Path]:
    """Return the absolute paths of several folders by name.

    Raises:
        SettingError: A name is not valid, a path is empty, or one folder is inside another.
    """
    checked: dict[str, Path] = {}
    for name, path in folders.items():
        if not _FOLDER_NAME.fullmatch(name):
            raise SettingError(
                f"{name!r} cannot name a folder. Use letters, digits, '_', '-' and '.', "
                "as in notes=PATH."
            )
        if not path or not isinstance(path, str | Path):
            raise SettingError(f"the folder {name!r} needs a path (got {path!r}).")
        folder = absolute_path(path)
        for other_folder in checked.values():
            _refuse_nested(folder, other_folder)
        checked[name] = folder
    return checked


def _refuse_nested(first: Path, second: Path) -> None:
    """Raise a SettingError if one of two folders is inside the other."""
    if first.is_relative_to(second) or second.is_relative_to(first):
        raise SettingError(
            f"{first} and {second} contain the same files, which would be indexed twice. "
            "Name one of them, or the outer one with exclude=."
        )


def named_folders(arguments: Iterable[str]) -> dict[str, str]:
    """Return folders by name from command line arguments: ``PATH`` or ``NAME=PATH``.

    A ``PATH`` is named by its last part.

    Raises:
        SettingError: Two folders have the same name, or a folder does not exist.
    """
    folders: dict[str, str] = {}
    for argument in arguments:
        name, equals, path = argument.partition("=")
        is_named = equals and _FOLDER_NAME.fullmatch(name) and not Path(argument).exists()
        if not is_named:
            name = absolute_path(argument).name
            path = argument
        if not absolute_path(path).is_dir():
            raise SettingError(f"{path} is not a folder. Name a folder that exists.")
        if name in folders:
            raise SettingError(
                f"{folders[name]} and {path} are both named {name!r}. "
                f"Choose another name, as in {name}2={path}."
            )
        folders[name] = path
    return folders

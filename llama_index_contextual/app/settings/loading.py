"""Where settings come from: options, variables, the folder's file, the user's own file. An error names the place.

The folder's file is data of whoever made the folder: only harmless keys of it count, and a warning names the others.
All else counts from options, variables and the user's own file, which may have a table ``[folders."/path"]``. A file
has at most 100,000 bytes and 4,000 characters a line: the parser's time grows with the square of a dotted key's parts.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NamedTuple

from platformdirs import user_config_path
from pydantic import TypeAdapter, ValidationError

from llama_index_contextual.app.folder import read_file
from llama_index_contextual.app.settings import (
    CONFIGURATION,
    SETTINGS,
    TABLES,
    Configuration,
    Options,
)
from llama_index_contextual.app.settings import Collection as OneOfSeveral
from llama_index_contextual.utils.errors import (
    ContextualWarning,
    DocumentError,
    SettingError,
    requirement,
)
from llama_index_contextual.utils.metadata import shortened
from llama_index_contextual.utils.text import absolute_path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


USER_FILE: Final = "config.toml"  # in the user's own folder of settings
PREFIX: Final = "LLAMA_INDEX_CONTEXTUAL_"
MAX_BYTES: Final = 100_000
MAX_LINE: Final = 4_000
_NAME: Final = "llama-index-contextual"
_COLLECTION: Final = re.compile(r"\w[\w.-]{0,99}")
# Variables of Kubernetes' services that are called as this package is, and of its tests and benchmarks.
_FOREIGN: Final = re.compile(
    r"(?:^|_)(?:service_host|service_port|port)(?:_|$)|^(?:data|cache|corpus)$"
)
_PROMPT: Final = "context_options.prompt"
_FOLDERS: Final = "folders"  # of the user's own file
_WHOLE: Final = ("descriptions", _FOLDERS)  # tables with names of the user's own, each one value


class Entry(NamedTuple):
    """A value of a setting, and the place that sets it."""

    value: Any
    origin: str


def user_folder() -> Path:
    """The folder of this user's own settings: ``~/.config/llama-index-contextual`` or what the system has for it."""
    return user_config_path(_NAME, appauthor=False)


def load_configuration(
    folder: str | Path,
    config: str | Path | Mapping[str, Any] | None = None,
    *,
    arguments: Mapping[str, Any] | None = None,
    remembered: Mapping[str, Any] | None = None,
    replaced: Collection[str] = (),
) -> Configuration:
    """The configuration of a folder.

    Args:
        folder: The documents. ``contextual.toml`` is read in it.
        config: Another file to read instead, of which all keys count; or values that come before all files and
            variables, by key (``"chunks.chunk_size"``). None counts as not set.
        arguments: Values that come before all others.
        remembered: Values of an index, which come after all others; only harmless ones count.
        replaced: Settings and tables that an object stands for: only arguments of these names count.

    Raises:
        SettingError: A file cannot be read, or a value cannot work. The message names file, option or variable.
    """
    root = absolute_path(folder)
    entries = {
        key: Entry(value, "index")
        for key, value in (remembered or {}).items()
        if is_harmless(key, value)
    }
    entries |= _of_user(root)
    entries |= (
        _entries(Path(config).expanduser()) if isinstance(config, str | Path) else _of_folder(root)
    )
    entries |= _environment()
    for key, value in _flat(config) if isinstance(config, Mapping) else ():
        if value is not None:
            entries[key] = Entry(
                value, SETTINGS[key].option if isinstance(config, Options) else key
            )
    prompt, origin = entries.get(_PROMPT, ("", ""))
    if (
        isinstance(prompt, str) and prompt and "{" not in prompt
    ):  # a file, beside the one that names it
        beside = Path(origin).parent if origin.endswith(".toml") else Path()
        entries[_PROMPT] = Entry(_text_of(beside / prompt), origin)
    entries = {
        key: one for key, one in entries.items() if not {key, key.partition(".")[0]} & {*replaced}
    }
    return _checked(entries | {key: Entry(value, key) for key, value in (arguments or {}).items()})


def is_harmless(key: str, value: Any) -> bool:
    """Whether data of a folder, such as its file or its index, may set a value: it is known, valid and harmless."""
    try:
        return key in SETTINGS and SETTINGS[key].is_harmless(
            SETTINGS[key].adapter.validate_python(value)
        )
    except ValidationError:
        return False


def _of_user(folder: Path) -> dict[str, Entry]:
    """The settings of the user's own file; its table of the folder counts before the rest."""
    path = user_folder() / USER_FILE
    if not os.path.lexists(path):
        return {}
    entries = _entries(path)
    folders = entries.pop(_FOLDERS, Entry({}, "")).value
    if not isinstance(folders, dict) or not all(isinstance(one, dict) for one in folders.values()):
        raise SettingError(f'{path}: {_FOLDERS} cannot work. Cure: tables, [{_FOLDERS}."/path"].')
    for name, table in folders.items():
        if absolute_path(name) == folder:
            entries |= {key: Entry(value, str(path)) for key, value in _flat(table)}
    return entries


def _of_folder(root: Path) -> dict[str, Entry]:
    """The harmless settings of a folder's own file; a warning names the others."""
    path = root / CONFIGURATION
    entries = _entries(path, root) if os.path.lexists(path) else {}
    keys = [
        key
        for key, entry in entries.items()
        if key in SETTINGS and not SETTINGS[key].is_harmless(entry.value)
    ]
    if keys:
        _checked(entries)  # a mistake is an error, also in what does not count
        place = f'[{_FOLDERS}."{root}"] in {user_folder() / USER_FILE}'
        warnings.warn(
            f"{path}: {shortened(', '.join(keys))} not obeyed: a folder may not set this by itself. "
            f"Cure: options, variables, or {place}.",
            ContextualWarning,
            stacklevel=3,
        )
    return {key: entry for key, entry in entries.items() if key not in keys}


def _environment() -> dict[str, Entry]:
    """The settings of environment variables."""
    entries: dict[str, Entry] = {}
    for variable, text in os.environ.items():
        key = variable.upper().removeprefix(PREFIX).lower().replace("__", ".")
        if variable.upper().startswith(PREFIX) and not _FOREIGN.search(key):
            entries[key] = Entry(text, variable)
    return entries


def _checked(entries: Mapping[str, Entry]) -> Configuration:
    """The configuration of some values by key.

    Raises:
        SettingError: One is not known or cannot work; the message names its place.
    """
    values: dict[str, Any] = {}
    for key, (value, origin) in entries.items():
        place = (
            f"{origin}: {shortened(key)}"
            if origin.endswith(".toml") or origin == "index"
            else origin
        )
        if key not in SETTINGS:
            raise SettingError(f"{place} {_unknown(key)}")
        values[key] = _valid(SETTINGS[key].adapter, value, place, is_table=SETTINGS[key].is_table)
    return Configuration(values, {key: entry.origin for key, entry in entries.items()})


def _valid(adapter: TypeAdapter[Any], value: Any, place: str, *, is_table: bool) -> Any:
    """A value as its type has it; an error names the place and, of a table, the part."""
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        inside = "".join(f".{part}" for part in fault["loc"]) if is_table else ""
        shown = f"{place}{shortened(inside)}={shortened(repr(fault['input']))}"
        raise SettingError(f"{shown} {requirement(fault)}.") from error


def _unknown(key: str) -> str:
    """The end of a message about a key that is not known: it may be a table, misspelt, or in the wrong table."""
    if key in TABLES:
        return f"cannot work. Cure: make it a table, [{key}]."
    tables = dict.fromkeys(key.partition(".")[0] for key in SETTINGS)
    return f"is not known. Cure: use {', '.join(get_close_matches(key, SETTINGS) or tables)}."


def _entries(path: Path, root: Path | None = None) -> dict[str, Entry]:
    """The values of a file, by dotted key.

    Args:
        path: The file.
        root: The folder that it must lie in; None for any.

    Raises:
        SettingError: It cannot be read, is no TOML, or is beyond the bounds.
    """
    text = _text_of(path, root)
    if max(map(len, text.splitlines()), default=0) > MAX_LINE:
        raise SettingError(
            f"{path}: it has a line of more than {MAX_LINE:,} characters. Cure: several lines."
        )
    try:
        pairs = [*_flat(tomllib.loads(text))]
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits
        fault = f"{path} is not TOML: {shortened(str(error))}"
        raise SettingError(f"{fault}. Cure: correct that line, in UTF-8.") from error
    return {key: Entry(value, str(path)) for key, value in pairs}


def _text_of(path: Path, root: Path | None = None) -> str:
    try:
        return read_file(path, MAX_BYTES, root=root).decode("utf-8-sig")
    except (DocumentError, UnicodeDecodeError) as error:
        cure = "" if "Cure: " in str(error) else ". Cure: name another file, in UTF-8."
        raise SettingError(
            f"{path}: {str(error).removesuffix('.') if cure else error}{cure}"
        ) from error


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and values; a table with names of the user's own is one value."""
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and key not in _WHOLE:
            yield from _flat(value, f"{key}.")
        elif value != {}:
            yield key, value


def collections_of(folders: Mapping[str, Any]) -> dict[str, OneOfSeveral]:
    """Several folders by name, checked.

    Args:
        folders: By name: a path, or a mapping with ``path`` and the other attributes of :class:`Collection`.

    Raises:
        SettingError: A name cannot work, there are or a folder is in another.
    """
    collections: dict[str, OneOfSeveral] = {}
    for name, value in folders.items():
        if not _COLLECTION.fullmatch(name):
            cure = "letters, digits, '_', '-' and '.', such as notes=PATH"
            raise SettingError(f"{name!r} is no name of a folder. Cure: {cure}")
        table = dict(value) if isinstance(value, Mapping) else {"path": value}
        collection = _valid(TypeAdapter(OneOfSeveral), table, f"folder.{name}", is_table=True)
        for other in collections.values():
            if collection.path.is_relative_to(other.path) or other.path.is_relative_to(
                collection.path
            ):
                both = f"{collection.path} and {other.path} hold the same files, which would be indexed twice"
                raise SettingError(
                    f"{both}. Cure: one of them, or exclude= and the outer one alone"
                )
        collections[name] = collection
    return collections


def named_folders(arguments: Iterable[str]) -> dict[str, str]:
    """Folders by name, as a command line gives them: ``PATH``, called by its last part, or ``NAME=PATH``.

    Raises:
        SettingError: Two have the same name, or one is no folder.
    """
    folders: dict[str, str] = {}
    for argument in arguments:
        name, equals, path = argument.partition("=")
        if not equals or not _COLLECTION.fullmatch(name) or Path(argument).exists():
            name, path = absolute_path(argument).name, argument
        if not absolute_path(path).is_dir():
            raise SettingError(f"{path} is no folder. Cure: name one that exists")
        if name in folders:
            both = f"{folders[name]} and {path} are both called {name!r}"
            raise SettingError(f"{both}. Cure: a name, as in {name}2={path}")
        folders[name] = path
    return folders

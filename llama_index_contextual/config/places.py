"""Where values come from: the user's own file, the folder's, environment variables, options. An error names the place.

The folder's file is data of whoever made the folder. It counts as a whole where the user trusts it; otherwise only what
:func:`is_safe` lets it say does, and a warning names the rest.
"""

from __future__ import annotations

import json
import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydantic import ValidationError

from llama_index_contextual.config.file import FILE, PROJECT, ConfigFile, flat, read_settings, read_text
from llama_index_contextual.config.keys import SETTINGS, Configuration
from llama_index_contextual.config.trust import digest_of, is_safe, is_strange, is_trusted, user_folder
from llama_index_contextual.errors import ContextualWarning, SettingError

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX: Final = "LLAMA_INDEX_CONTEXTUAL_"
USER_FILE: Final = "config.toml"  # in the user's own folder of settings
CURE: Final = "llama-index-contextual config --init"
_PROMPT: Final = "context_options.prompt"
_INDEX: Final = "index"
_NAMED: Final = 8  # settings and mistakes in one message
_SHOWN: Final = 100  # characters of a wrong value


class FolderConfig(NamedTuple):
    """What the file of a folder says, and what of it needs the user's trust.

    Attributes:
        file: The file; an empty one where the folder has none.
        keys: What counts only from the user; all of it where the file or the folder belongs to another user.
        strange: Whether it does.
        digest: Of all that it says.
    """

    file: ConfigFile
    keys: tuple[str, ...]
    strange: bool
    digest: str


def load_configuration(
    folder: str | Path,
    *,
    file: str | Path | None = None,
    over: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
) -> Configuration:
    """Read the configuration of a folder.

    Args:
        folder: The documents. ``contextual.toml`` is looked for in it, then a table of its ``pyproject.toml``. Of a
            folder that the user does not trust, settings that are not safe are left out, with a warning.
        file: Another file to read instead of those. Who names it trusts it.
        over: A further file of the same form. What it says comes before the first file and the environment.
        options: Values that come before all others, by key (``"chunks.chunk_size"``). None counts as not said.

    Raises:
        SettingError: A file cannot be read, or a value of any place cannot work. The message names file and line, or
            the option, or the environment variable.
    """
    user_file = user_folder() / USER_FILE
    user = read_settings(user_file) if user_file.is_file() else ConfigFile()
    main = _of_folder(Path(folder).expanduser()) if file is None else _named(file)
    further = ConfigFile() if over is None else _named(over)
    arguments = {key: value for key, value in (options or {}).items() if value is not None}
    first = ConfigFile(values=arguments, origins={key: SETTINGS[key].option or key for key in arguments})
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for place in (user, main, _environment(), further, first):
        values.update(place.values)
        origins.update(place.origins)
    prompt = values.get(_PROMPT)
    if isinstance(prompt, str) and prompt and "{" not in prompt:  # a file, beside the one that says so
        files = (place.path for place in (user, main, further) if place.path)
        beside = (path.parent for path in files if origins[_PROMPT].startswith(f"{path}:"))
        values[_PROMPT] = read_text(next(beside, Path()) / prompt)
    return checked(values, origins, main.path)


def completed(configuration: Configuration, remembered: Mapping[str, Any]) -> Configuration:
    """Return a configuration with what an index remembers, by key, where nobody says anything else.

    Raises:
        SettingError: A value cannot work.
    """
    settings = {key: value for key, value in remembered.items() if key in SETTINGS}
    if unknown := [key for key in remembered if key not in settings and not key.startswith("context_options.")]:
        warnings.warn(
            f"The index remembers {', '.join(unknown)}, which is no setting of this version and does not count. Cure: "
            "say what it meant again, and index.",
            ContextualWarning,
            stacklevel=3,
        )
    origins = {**dict.fromkeys(settings, _INDEX), **configuration.origins}
    return checked({**settings, **configuration.said()}, origins, configuration.file)


def folder_config(folder: Path) -> FolderConfig:
    """Return what the file of a folder says, and what of it needs trust.

    Raises:
        SettingError: The file cannot be read.
    """
    path = next((path for name in (FILE, PROJECT) if (path := folder / name).is_file()), None)
    file = ConfigFile() if path is None else read_settings(path)
    strange = file.path is not None and (is_strange(file.owner) or is_strange(folder.stat().st_uid))
    keys = tuple(key for key, value in file.values.items() if strange or not is_safe(key, value))
    return FolderConfig(file, keys, strange, digest_of(file.values))


def _of_folder(folder: Path) -> ConfigFile:
    """Return what a folder's own file may say."""
    file, keys, strange, digest = folder_config(folder)
    if not keys or is_trusted(folder, digest):
        return file
    checked(file.values, file.origins)  # a slip is an error, also in what does not count
    names = ", ".join(keys[:_NAMED]) + (f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else "")
    why = "it belongs to another user" if strange else "a folder may not say this by itself"
    warnings.warn(
        f"{file.path}: {names} not obeyed: {why}. Cure: read the file, then llama-index-contextual trust {folder}; or "
        "say it by options, in the environment, or in your own settings.",
        ContextualWarning,
        stacklevel=3,
    )
    values = {key: value for key, value in file.values.items() if key not in keys}
    return replace(file, values=values, origins={key: file.origins[key] for key in values})


def _named(file: str | Path) -> ConfigFile:
    path = Path(file).expanduser()
    if not path.is_file():
        raise SettingError(f"{path} is no file. Cure: name a configuration file, or write one: {CURE}")
    return read_settings(path)


def _environment() -> ConfigFile:
    """Return what environment variables say; the origin of each value is its variable."""
    place = ConfigFile()
    for variable, text in os.environ.items():
        key = variable.upper().removeprefix(PREFIX).lower().replace("__", ".")
        if variable.upper().startswith(PREFIX) and ("." in key or key in Configuration.model_fields):
            for name, value in flat({key: _plain(text)}):
                place.values[name], place.origins[name] = value, variable
    return place


def _plain(text: str) -> Any:
    """Return a list or a table that is written as JSON; any other text as it is."""
    try:
        return json.loads(text) if text[:1] in ("[", "{") else text
    except ValueError:
        return text


def checked(values: Mapping[str, Any], origins: Mapping[str, str], file: Path | None = None) -> Configuration:
    """Return the configuration of some values by key.

    Raises:
        SettingError: One is not known or cannot work; the message names where each was said.
    """
    tree: dict[str, Any] = {}
    mistakes = []
    for key, value in values.items():
        try:
            if key not in SETTINGS:
                mistakes.append(f"{_shown(origins.get(key, key), key)}{_unknown(key, value)}")
            else:
                table, _, name = key.rpartition(".")
                (tree.setdefault(table, {}) if table else tree)[name] = SETTINGS[key].adapter.validate_python(value)
        except ValidationError as error:  # noqa: PERF203  every mistake is named
            fault = error.errors(include_url=False)[0]
            cure = "leave it out, or correct its name" if fault["type"] == "extra_forbidden" else fault["msg"]
            cure = cure.removeprefix("Value error, ")
            inside = "".join(f".{part}" for part in fault["loc"]) if SETTINGS[key].is_table else ""
            setting_text = f"{_shown(origins.get(key, key), key)}{inside}={_shortened(repr(fault['input']))}"
            mistakes.append(f"{setting_text} cannot work. Cure: {cure[:1].lower()}{cure[1:]}.")
    if mistakes:
        more = f" And {len(mistakes) - _NAMED} more." if len(mistakes) > _NAMED else ""
        raise SettingError(" ".join(mistakes[:_NAMED]) + more)
    configuration = Configuration(**tree)
    configuration._origins, configuration._file = {**origins}, file  # noqa: SLF001  our own
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

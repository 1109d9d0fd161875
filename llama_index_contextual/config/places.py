"""Where values come from: the file, environment variables, options. An error names the place that said the value."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from llama_index_contextual.config.keys import Configuration, fields_of, shown_of
from llama_index_contextual.errors import SettingError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FILE: Final = "contextual.toml"
TABLE: Final = ("tool", "llama-index-contextual")
PREFIX: Final = "LLAMA_INDEX_CONTEXTUAL_"
CURE: Final = "llama-index-contextual config --init"
_OLDER_VARIABLES: Final = {f"{PREFIX}EMBED_MODEL": "embedding.model"}


class _Variables(Configuration, BaseSettings):
    """The same keys as environment variables."""

    model_config = SettingsConfigDict(extra="forbid", env_prefix=PREFIX, env_nested_delimiter="__")


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
        file: Another file to read instead of those.
        over: A further file of the same form. What it says comes before the first file and the environment.
        options: Values that come before all others, by key (``"chunks.size"``). None counts as not said.

    Raises:
        SettingError: The file cannot be read, or a value of any place cannot work. The message names file and line, or
            the option, or the environment variable.
    """
    path = _find(Path(folder).expanduser(), file)
    places = [
        _said_in(path),
        _environment(),
        _said_in(None if over is None else _find(Path(folder), over)),
        ({key: value for key, value in (options or {}).items() if value is not None}, None),
    ]
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for values, names in places:
        flat = dict(_flat(values))
        merged.update(flat)
        origins.update({key: names[key] if names is not None else _option(key) for key in flat})
    try:
        configuration = Configuration(**_nested(merged))
    except ValidationError as error:
        raise SettingError(" ".join(_explanation(found, origins) for found in error.errors())) from error
    configuration = _with_prompt(configuration, origins, path)
    configuration._origins, configuration._file = origins, path  # noqa: SLF001  our own
    return configuration


def _said_in(path: Path | None) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what a file says, and file and line of each key."""
    text, table = _read(path)
    return table, {key: _line(path, text, key) for key, _ in _flat(table)} if path else {}


def _find(folder: Path, file: str | Path | None) -> Path | None:
    if file is not None:
        path = Path(file).expanduser()
        if not path.is_file():
            raise SettingError(f"{path} is no file. Cure: name a configuration file, or write one: {CURE}")
        return path
    if (folder / FILE).is_file():
        return folder / FILE
    project = folder / "pyproject.toml"
    return project if project.is_file() and f"[{'.'.join(TABLE)}" in _text(project) else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"{path} cannot be read: {error}. Cure: make it a readable file in UTF-8.") from error


def _read(path: Path | None) -> tuple[str, dict[str, Any]]:
    if path is None:
        return "", {}
    text = _text(path)
    try:
        table: Any = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits, and thousands of brackets
        line = re.search(r"line (\d+)", str(error))
        place = f"{path}:{line[1]}" if line else str(path)
        raise SettingError(f"{place} is not TOML: {error}. Cure: correct that line.") from error
    for part in TABLE if path.name == "pyproject.toml" else ():
        table = table.get(part, {}) if isinstance(table, dict) else {}
    return text, table if isinstance(table, dict) else {}


def _environment() -> tuple[dict[str, Any], dict[str, str]]:
    """Return what environment variables say, and the variable of each key."""
    values = dict(_flat(EnvSettingsSource(_Variables)()))
    variables = {key: PREFIX + key.replace(".", "__").upper() for key in values}
    for variable, key in _OLDER_VARIABLES.items():
        if os.environ.get(variable) and key not in values:
            values[key], variables[key] = os.environ[variable], variable
    return values, variables


def _with_prompt(configuration: Configuration, origins: Mapping[str, str], path: Path | None) -> Configuration:
    """Read the prompt where its value names a file, relative to the configuration file that says so."""
    prompt = configuration.context.llm.prompt
    if prompt is None or "{" in prompt:
        return configuration
    said_in_file = path is not None and origins["context.llm.prompt"].startswith(f"{path}:")
    file = (path.parent if path and said_in_file else Path()) / prompt
    llm = configuration.context.llm.model_copy(update={"prompt": _text(file)})
    return configuration.model_copy(update={"context": configuration.context.model_copy(update={"llm": llm})})


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and values; ``descriptions`` is one value."""
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and key != "descriptions":
            yield from _flat(value, f"{key}.")
        elif value != {}:
            yield key, value


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        *parents, last = key.split(".")
        table = nested
        for parent in parents:
            table = table.setdefault(parent, {}) if isinstance(table.get(parent, {}), dict) else {}
        table[last] = value
    return nested


def _line(path: Path, text: str, key: str) -> str:
    """Return ``file:line`` of a key, as far as a look at tables and keys tells it."""
    table, found = "", 1
    wanted = ".".join((*(TABLE if path.name == "pyproject.toml" else ()), key))
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[([^\[\]]+)\]", line):
            table = _unquoted(header[1]) + "."
            found = number if wanted.startswith(table) or wanted + "." == table else found
        elif (said := re.match(r"\s*([\w.\"'/ -]+?)\s*=", line)) and wanted == table + _unquoted(said[1]):
            return f"{path}:{number}"
    return f"{path}:{found}"


def _unquoted(name: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in name.split("."))


def _option(key: str) -> str:
    return next((shown_of(info)["option"] for name, info in fields_of() if name == key), "") or key


def _explanation(error: Any, origins: Mapping[str, str]) -> str:
    parts = [str(part) for part in error["loc"] if not isinstance(part, int)]
    key = next((".".join(parts[:count]) for count in range(len(parts), 0, -1) if _known(parts[:count], origins)), "")
    place = next((where for name, where in origins.items() if name == key or name.startswith(f"{key}.")), "")
    named = key if ":" in place else ""  # a file and its line; an option or a variable names the key itself
    shown = f"{place}: {named}" if named else place
    if error["type"] == "extra_forbidden":
        *section, _ = parts
        known = [name.removeprefix(".".join((*section, ""))) for name, _ in fields_of() if _is_in(name, section)]
        sections = list(dict.fromkeys(name.split(".")[0] for name in known)) or list(Configuration.model_fields)
        return f"{shown} is not known. Cure: use one of {', '.join(sections)}."
    message = error["msg"].removeprefix("Value error, ")
    return f"{shown}={error['input']!r} cannot work. Cure: {message[:1].lower()}{message[1:]}."


def _known(parts: list[str], origins: Mapping[str, str]) -> bool:
    key = ".".join(parts)
    return any(name == key or name.startswith(f"{key}.") for name in origins)


def _is_in(key: str, section: list[str]) -> bool:
    return key.split(".")[: len(section)] == section

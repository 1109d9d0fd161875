"""Where values come from: the user's own file, the folder's, environment variables, options. An error names the place.

The folder's file is data of whoever made the folder. It counts as a whole where the user trusts it; otherwise only what
:func:`is_safe` lets it say does, and a warning names the rest.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydantic import ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from llama_index_contextual.config.declaring import shown_of
from llama_index_contextual.config.file import FILE, PROJECT, Said, flat, read_settings, read_text
from llama_index_contextual.config.keys import Configuration, fields_of
from llama_index_contextual.config.trust import digest_of, is_safe, is_strange, is_trusted, user_folder
from llama_index_contextual.errors import ContextualWarning, SettingError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PREFIX: Final = "LLAMA_INDEX_CONTEXTUAL_"
USER_FILE: Final = "config.toml"  # in the user's own folder of settings
CURE: Final = "llama-index-contextual config --init"
_OLDER_VARIABLES: Final = {f"{PREFIX}EMBED_MODEL": "embedding.model"}
_NAMED: Final = 8  # settings and mistakes in one message
_SHOWN: Final = 100  # characters of a wrong value


class _Variables(Configuration, BaseSettings):
    """The same keys as environment variables."""

    model_config = SettingsConfigDict(extra="forbid", env_prefix=PREFIX, env_nested_delimiter="__")


class Asked(NamedTuple):
    """What the file of a folder says, and what of it needs the user's trust.

    Attributes:
        said: The file; an empty one where the folder has none.
        keys: What counts only from the user; all of it where the file or the folder belongs to another user.
        strange: Whether it does.
        digest: Of all that it says.
    """

    said: Said
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
        options: Values that come before all others, by key (``"chunks.size"``). None counts as not said.

    Raises:
        SettingError: A file cannot be read, or a value of any place cannot work. The message names file and line, or
            the option, or the environment variable.
    """
    own = user_folder() / USER_FILE
    users = read_settings(own) if own.is_file() else Said()
    said = _of_folder(Path(folder).expanduser()) if file is None else _named(file)
    given = {key: value for key, value in (options or {}).items() if value is not None}
    files = [users, said, Said() if over is None else _named(over)]
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for values, names in (
        (users.values, users.origins),
        (said.values, said.origins),
        _environment(),
        (files[2].values, files[2].origins),
        (given, {key: _option(key) for key in given}),
    ):
        merged.update(values)
        origins.update(names)
    configuration = _with_prompt(_checked(merged, origins), origins, files)
    configuration._origins, configuration._file = origins, said.path  # noqa: SLF001  our own
    return configuration


def asked_of(folder: Path) -> Asked:
    """Return what the file of a folder says, and what of it needs trust.

    Raises:
        SettingError: The file cannot be read.
    """
    path = next((path for name in (FILE, PROJECT) if (path := folder / name).is_file()), None)
    said = Said() if path is None else read_settings(path)
    strange = said.path is not None and (is_strange(said.owner) or is_strange(folder.stat().st_uid))
    keys = tuple(key for key, value in said.values.items() if strange or not is_safe(key, value))
    return Asked(said, keys, strange, digest_of(said.values))


def _of_folder(folder: Path) -> Said:
    """Return what a folder's own file may say."""
    asked = asked_of(folder)
    said, keys = asked.said, asked.keys
    if not keys or is_trusted(folder, asked.digest):
        return said
    _checked(said.values, said.origins)  # a slip is an error, also in what does not count
    names = ", ".join(keys[:_NAMED]) + (f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else "")
    why = "it belongs to another user" if asked.strange else "a folder may not say this by itself"
    warnings.warn(
        f"{said.path}: {names} not obeyed: {why}. Cure: read the file, then llama-index-contextual trust {folder}; or "
        "say it by options, in the environment, or in your own settings.",
        ContextualWarning,
        stacklevel=3,
    )
    left = {key: value for key, value in said.values.items() if key not in keys}
    return replace(said, values=left, origins={key: said.origins[key] for key in left})


def _checked(values: Mapping[str, Any], origins: Mapping[str, str]) -> Configuration:
    try:
        return Configuration(**_nested(values))
    except ValidationError as error:
        raise SettingError(_explanations(error, origins)) from error


def _named(file: str | Path) -> Said:
    path = Path(file).expanduser()
    if not path.is_file():
        raise SettingError(f"{path} is no file. Cure: name a configuration file, or write one: {CURE}")
    return read_settings(path)


def _environment() -> tuple[dict[str, Any], dict[str, str]]:
    """Return what environment variables say, and the variable of each key."""
    values = dict(flat(EnvSettingsSource(_Variables)()))
    variables = {key: PREFIX + key.replace(".", "__").upper() for key in values}
    for variable, key in _OLDER_VARIABLES.items():
        if os.environ.get(variable) and key not in values:
            values[key], variables[key] = os.environ[variable], variable
    return values, variables


def _with_prompt(configuration: Configuration, origins: Mapping[str, str], files: Iterable[Said]) -> Configuration:
    """Read the prompt where its value names a file, relative to the configuration file that says so."""
    prompt = configuration.context.llm.prompt
    if prompt is None or "{" in prompt:
        return configuration
    where = origins["context.llm.prompt"]
    folder = next((said.path.parent for said in files if said.path and where.startswith(f"{said.path}:")), Path())
    llm = configuration.context.llm.model_copy(update={"prompt": read_text(folder / prompt)})
    return configuration.model_copy(update={"context": configuration.context.model_copy(update={"llm": llm})})


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        *parents, last = key.split(".")
        table = nested
        for parent in parents:
            table = table.setdefault(parent, {}) if isinstance(table.get(parent, {}), dict) else {}
        table[last] = value
    return nested


def _option(key: str) -> str:
    return next((shown_of(info)["option"] for name, info in fields_of() if name == key), "") or key


def _explanations(error: ValidationError, origins: Mapping[str, str]) -> str:
    found = error.errors(include_url=False)
    more = f" And {len(found) - _NAMED} more." if len(found) > _NAMED else ""
    return " ".join(_explanation(one, origins) for one in found[:_NAMED]) + more


def _explanation(error: Any, origins: Mapping[str, str]) -> str:
    parts = [str(part) for part in error["loc"] if not isinstance(part, int)]
    key = next((".".join(parts[:count]) for count in range(len(parts), 0, -1) if _known(parts[:count], origins)), "")
    place = next((where for name, where in origins.items() if name == key or name.startswith(f"{key}.")), "")
    named = _shortened(key) if ":" in place else ""  # a file and its line; an option or a variable names the key itself
    shown = f"{place}: {named}" if named else place
    if error["type"] == "extra_forbidden":
        *section, _ = parts
        known = [name.removeprefix(".".join((*section, ""))) for name, _ in fields_of() if _is_in(name, section)]
        sections = list(dict.fromkeys(name.split(".")[0] for name in known)) or list(Configuration.model_fields)
        return f"{shown} is not known. Cure: use one of {', '.join(sections)}."
    message = error["msg"].removeprefix("Value error, ")
    value = _shortened(repr(error["input"]))
    return f"{shown}={value} cannot work. Cure: {message[:1].lower()}{message[1:]}."


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _known(parts: list[str], origins: Mapping[str, str]) -> bool:
    key = ".".join(parts)
    return any(name == key or name.startswith(f"{key}.") for name in origins)


def _is_in(key: str, section: list[str]) -> bool:
    return key.split(".")[: len(section)] == section

"""``config``: the settings in force, where each comes from, and the commented file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from llama_index_contextual.app.cli.common import All, AsJson, NamedTarget, print_json, print_text, tell, with_options
from llama_index_contextual.app.settings.loading import FILE, USER_FILE, user_folder
from llama_index_contextual.app.settings.schema import SETTINGS
from llama_index_contextual.errors import SettingError

if TYPE_CHECKING:
    from llama_index_contextual.app.settings.schema import Configuration

_WIDTH: Final = 60  # characters of a value; --json shows all


@with_options()
def config(
    target: NamedTarget,
    *,
    all_: All = False,
    init: Annotated[bool, typer.Option("--init", help=f"Write a commented {FILE} into the folder.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the settings that somebody chose, and where each comes from."""
    if init:
        path = (target.named or Path()) / FILE
        write_first(path)
        print_text(f"{path}: every setting with its default, commented out")
        return
    with target.open(reindex="ignore") as index:
        rows = in_force(index.settings.configuration)
    if as_json:
        print_json({key: {"value": value, "from": origin} for key, value, origin in rows})
        return
    shown = rows if all_ else [row for row in rows if row[2] != "default"]
    if len(shown) < len(rows):
        tell(f"{len(rows) - len(shown)} of {len(rows)} settings have their default; --all shows them")
    width = max((len(key) for key, _, _ in shown), default=0)
    lines = [(f"{key:{width}}  {_shown(value)}", origin) for key, value, origin in shown]
    column = min(max((len(line) for line, _ in lines), default=0), 70)
    if lines:
        print_text("\n".join(f"{line:{column}}  {origin}" for line, origin in lines))


def in_force(configuration: Configuration) -> list[tuple[str, Any, str]]:
    """Key, value and origin of every setting; a default that is computed is in words."""
    rows: list[tuple[str, Any, str]] = []
    for key, setting in SETTINGS.items():
        if key in configuration.values:
            rows.append((key, setting.plain(configuration[key]), configuration.origins[key]))
        else:
            rows.append(
                (key, f"({setting.computed})" if setting.computed else setting.plain(setting.default), "default")
            )
    return rows


def _shown(value: Any) -> str:
    if isinstance(value, str) and value.startswith("("):
        return value
    text = "-" if value is None or value == {} else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


def write_first(path: Path) -> None:
    """Write the commented file, whole or not at all: half of it would end in a table's name that is no TOML.

    Raises:
        SettingError: There is one, or a link to one.
        StorageError: It cannot be written.
    """
    from llama_index_contextual.durable import write_atomically  # slow

    def refuse() -> None:
        if os.path.lexists(path):
            raise SettingError(f"{path} is there already. Cure: edit it, or remove it first.")

    refuse()
    write_atomically(path, commented_file().encode(), check=refuse)


def commented_file() -> str:
    """The file that ``config --init`` writes: every key with its meaning and its default, commented out."""
    lines = [
        "# Settings of llama-index-contextual for this folder. Remove a # to change one.",
        "# An argument in Python, an option of the command line and an environment variable come before this file.",
        f"# What names a server, a model on one or a path counts only in {user_folder() / USER_FILE}.",
    ]
    table = None
    for key, setting in SETTINGS.items():
        inside = key if setting.is_table else setting.table
        if inside != table:
            table = inside
            lines += ["", *([f"[{table}]"] if table else [])]
        note = f" Default: {setting.computed}." if setting.computed else ""
        lines.append(f"# {setting.meaning}{note}")
        value = setting.default if setting.example is None else setting.example
        values = {json.dumps(path): text for path, text in value.items()} if setting.is_table else {setting.name: value}
        lines += [f"# {name} = {_toml(value)}" for name, value in values.items()]
    return "\n".join([*lines, ""])


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)

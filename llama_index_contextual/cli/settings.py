"""``config`` and ``trust``: the settings in force and where each comes from, the commented file, and whom to obey."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from llama_index_contextual.cli.common import AsJson, Config, Indexed, Storage, open_index, print_json, print_text
from llama_index_contextual.config import (
    FILE,
    Configuration,
    asked_of,
    fields_of,
    shown_of,
)
from llama_index_contextual.config.trust import distrust, is_trusted, trusted_folders
from llama_index_contextual.config.trust import trust as trust_folder
from llama_index_contextual.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llama_index_contextual.index.settings import IndexSettings
    from llama_index_contextual.index.state import IndexState

_WIDTH: Final = 60  # characters of a value; --json shows all
_REMEMBERED: Final = {
    "embedding.model": "embed_model",
    "store.place": "vector_store",
    "context.mode": "context",
    "context.show_to_llm": "show_context_to_llm",
}


def config(
    folder: Indexed = None,
    storage: Storage = None,
    config: Config = None,
    init: Annotated[bool, typer.Option("--init", help=f"Write a commented {FILE} into the folder.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the settings in force and where each comes from."""
    if init:
        path = (folder or Path()) / FILE
        write_first(path)
        print_text(f"{path}: every setting with its default, commented out")
        return
    with open_index(folder, storage, config, reindex="ignore") as index:
        rows = in_force(index.settings, index.settings.state())
    if as_json:
        print_json({key: {"value": value, "from": origin} for key, value, origin in rows})
        return
    width = max(len(key) for key, _, _ in rows)
    lines = [(f"{key:{width}}  {_shown(value)}", origin) for key, value, origin in rows]
    column = min(max(len(line) for line, _ in lines), 70)
    print_text("\n".join(f"{line:{column}}  {origin}" for line, origin in lines))


def write_first(path: Path) -> None:
    """Write the commented file, whole or not at all: half of it would end in a table's name that is no TOML.

    Raises:
        SettingError: There is one, or a link to one.
        StorageError: It cannot be written.
    """
    from llama_index_contextual.atomic import write_atomically  # slow

    def refuse() -> None:
        if os.path.lexists(path):
            raise SettingError(f"{path} is there already. Cure: edit it, or remove it first.")

    refuse()
    write_atomically(path, commented_file().encode(), check=refuse)


def trust(
    folder: Annotated[Path | None, typer.Argument(help="A folder of documents that you have looked at.")] = None,
    storage: Storage = None,
    list_: Annotated[bool, typer.Option("--list", help="Print the folders that you trust.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Trust the folder no longer.")] = False,
) -> None:
    """Obey what a folder's settings and its index say of servers, models, stores and paths, until they change."""
    from llama_index_contextual.index.recipe import digest_of_choices, trusted_choices  # slow
    from llama_index_contextual.index.resolve import stored_state

    if list_:
        print_text("\n".join(map(_trusted, trusted_folders())) or "none")
        return
    root = (folder or Path()).expanduser().resolve()
    if remove:
        print_text(f"{root}: trusted no longer" if distrust(root) else f"{root} was not trusted")
        return
    if not root.is_dir():
        raise SettingError(f"{root} is no folder. Cure: name one that exists.")
    request, state = asked_of(root), stored_state(root, storage)
    of_index = trusted_choices(state, root)[1]
    choices = [(request.said.origins[key], key, request.said.values[key]) for key in request.keys]
    digests = [request.digest]
    if state.choices:
        choices += [("its index", name, dict(state.choices).get(name, "an object")) for name in of_index]
        digests.append(digest_of_choices(state))
    lines = [f"{where}: {key} = {json.dumps(value, ensure_ascii=False, default=str)}" for where, key, value in choices]
    if not lines:
        print_text(f"{root} says nothing that needs trust")
        return
    trust_folder(root, digests)
    print_text("\n".join([f"{root} is trusted until this changes:", *lines]))


def _trusted(folder: str) -> str:
    """Return a folder that the user trusts, with a word on what it says now where that is not what was trusted."""
    try:
        holds = is_trusted(folder, asked_of(Path(folder)).digest)
    except (SettingError, OSError):  # it is gone, or what it says cannot be read
        holds = False
    return folder if holds else f"{folder}: its configuration says something else now, and is not obeyed"


def in_force(settings: IndexSettings, state: IndexState) -> list[tuple[str, Any, str]]:
    """Return key, value and origin of every setting: what was said, else what the index has, else the default.

    Args:
        settings: Of an open index.
        state: What the index remembers.
    """
    configuration, choices, rows = settings.configuration, state.choices, []
    for key, info in fields_of():
        value: Any = configuration
        for part in key.split("."):
            value = getattr(value, part)
        if key in configuration.origins:
            rows.append((key, value, configuration.origins[key]))
            continue
        default = shown_of(info)["default"]
        real = _real(settings, key)
        origin = "index" if _is_remembered(key, choices) else "default"
        rows.append((key, default if real is None else real, origin))
    return rows


def _python(key: str) -> str:
    return next(shown_of(info)["python"] for known, info in fields_of() if known == key) or key.rpartition(".")[2]


def _is_remembered(key: str, choices: Mapping[str, Any]) -> bool:
    section = {"files": "files", "chunks": "chunks", "context.llm": "context_options"}.get(key.rpartition(".")[0], "")
    if section == "chunks" and "parser" in choices:
        return True
    return _REMEMBERED.get(key) in choices or _python(key) in choices.get(section, {})


def _real(settings: IndexSettings, key: str) -> Any:
    """Return what an open index uses, for the keys that shape it; None for the others."""
    section, python = key.rpartition(".")[0], _python(key)
    contexts = settings.pipeline.contexts
    generator = getattr(contexts.generator, "first", contexts.generator)
    if key == "embedding.model":
        return settings.remembered.choices.get("embed_model")
    if key == "store.place":
        return settings.store.name or None
    if key == "context.mode":
        return contexts.context
    if key == "context.llm.model":
        return settings.remembered.choices.get("context_options", {}).get("llm")
    source = {"files": settings.files, "chunks": settings.pipeline.parser, "context": contexts}.get(section)
    if section == "context.llm" and contexts.context == "llm" and key != "context.llm.prompt":
        source = generator
    return getattr(source, python, None)


def _shown(value: Any) -> str:
    if isinstance(value, str) and value.startswith("("):
        return value
    text = "-" if value is None or value == {} else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


def commented_file() -> str:
    """Return the file that ``config --init`` writes: every key with its meaning and its default, commented out."""
    lines = [
        "# Settings of llama-index-contextual for this folder. Remove a # to change one.",
        "# An argument in Python, an option of the command line and an environment variable come before this file.",
        "# What names a server, a model on one, a store or a path counts after: llama-index-contextual trust FOLDER",
    ]
    section = None
    for key, info in fields_of():
        if key == "descriptions":
            continue
        table, _, name = key.rpartition(".")
        if table != section:
            section = table
            lines += ["", f"[{table}]"]
        shown = shown_of(info)
        default = shown["default"]
        is_said = not isinstance(default, str) or not default.startswith("(")
        note = "" if is_said else f" Default: {default[1:-1]}."
        example = shown["example"] if not is_said or default in ((), None) else default
        lines += [f"# {info.description}{note}", f"# {name} = {json.dumps(example, ensure_ascii=False)}"]
    lines += ["", "[descriptions]", f"# {Configuration.model_fields['descriptions'].description}"]
    return "\n".join([*lines, '# "api/" = "REST reference of the billing service"', ""])

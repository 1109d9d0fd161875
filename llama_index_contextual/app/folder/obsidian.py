"""What an Obsidian vault holds besides notes: settings, deleted notes, templates and drawings."""

from __future__ import annotations

import codecs
import json
import os
import re
from pathlib import Path
from typing import Final

from llama_index_contextual.app.folder.files import read_file
from llama_index_contextual.errors import DocumentError

VAULT: Final = ".obsidian"  # a folder in a vault
_NEVER_NOTES: Final = (f"{VAULT}/", ".trash/")
_DRAWING: Final = ".excalidraw.md"
_NOTE: Final = ".md"  # what may hold a drawing under another name: the plugin goes by a key of the front matter
_DRAWING_KEY: Final = re.compile(rb"""^["']?excalidraw-plugin["']?[ \t]*:""", re.MULTILINE)
_FRONT_MATTER_END: Final = re.compile(rb"^(?:---|\.\.\.)[ \t]*\r?$", re.MULTILINE)
_MOST_FRONT_MATTER: Final = 100_000  # bytes
# Where the settings of a vault name the folder of its templates: Obsidian's own, and the plugin Templater's.
_TEMPLATES: Final = (("templates.json", "folder"), ("plugins/templater-obsidian/data.json", "templates_folder"))
_MOST_SETTINGS: Final = 1_000_000  # bytes


def vault_of(place: Path, top: Path) -> Path | None:
    """The vault that a file is in; None where it is in none, or in one that begins above ``top``."""
    folders = (folder for folder in place.parents if folder == top or top in folder.parents)
    return next((folder for folder in folders if (folder / VAULT).is_dir()), None)


def no_notes(folder: Path, base: str, root: Path) -> tuple[str, ...]:
    """How the paths begin that hold no notes in a vault. Its settings are foreign: odd ones are passed over.

    Args:
        folder: The vault.
        base: Its path in the index, with a slash, or "".
        root: The folder of the index.
    """
    prefixes = [base + name for name in _NEVER_NOTES]
    for name, key in _TEMPLATES:
        try:
            value = json.loads(read_file(folder / VAULT / name, _MOST_SETTINGS, root=root))[key]
        except (DocumentError, RecursionError, ValueError, LookupError, TypeError):
            continue
        if isinstance(value, str) and (templates := value.strip("/ ")):
            prefixes.append(f"{base}{templates}/")
    return tuple(prefixes)


def is_drawing(file: str) -> bool:
    """Whether a note is a drawing of Excalidraw, by its name or by its front matter."""
    name = file.lower()
    if name.endswith(_DRAWING) or not name.endswith(_NOTE) or not os.path.isfile(file):  # noqa: PTH113
        return name.endswith(_DRAWING)
    try:
        with open(file, "rb") as stream:  # noqa: PTH123  a walk does this for each note of a vault
            fence = stream.readline(10).removeprefix(codecs.BOM_UTF8)
            if fence.rstrip() != b"---":
                return False
            head = stream.read(_MOST_FRONT_MATTER)
    except OSError:  # whoever reads the note names it
        return False
    end = _FRONT_MATTER_END.search(head)
    return end is not None and _DRAWING_KEY.search(head, 0, end.start()) is not None

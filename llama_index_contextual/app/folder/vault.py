"""What is special to an Obsidian vault.

Its settings, the folders that hold no notes, and comments in notes.
"""

from __future__ import annotations

import contextlib
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Final

from llama_index_contextual.app.folder.files import read_file
from llama_index_contextual.utils.text import without_code

VAULT: Final = ".obsidian"  # a folder in a vault
MOST_SETTINGS: Final = 1_000_000  # bytes of settings, or of an ignore file
_COMMENT: Final = re.compile("%%")
# Where the settings of a vault name the folder of its templates: Obsidian's own, and the plugin
# Templater's.
_TEMPLATES: Final = {
    "templates.json": "folder",
    "plugins/templater-obsidian/data.json": "templates_folder",
}


def folders_without_notes(vault: Path, base: str, root: Path) -> tuple[str, ...]:
    """Return how paths begin that hold no notes: settings, deleted notes and templates.

    Args:
        vault: The folder of the vault.
        base: Its path in the index, with a slash at its end, or "".
        root: The folder that settings must lie in after links are followed.
    """
    names = [VAULT, ".trash"]
    for file, key in _TEMPLATES.items():
        with contextlib.suppress(Exception):  # foreign settings: odd ones are passed over
            settings = json.loads(read_file(vault / VAULT / file, MOST_SETTINGS, root=root))
            names.append(settings[key].strip("/ "))
    return tuple(f"{base}{name}/" for name in names if name)


def without_comments(text: str) -> tuple[str, int]:
    """Return a text in which comments, ``%% … %%``, are blank, and how many there were.

    Lines and offsets stay. Code holds no comments. A comment that does not end stays as it is.
    """
    if not _COMMENT.search(text):
        return text, 0
    marks = list(_COMMENT.finditer(without_code(text)))
    count = len(marks) // 2
    edges = [0]
    for number, mark in enumerate(marks[: 2 * count]):
        edges.append(mark.end() if number % 2 else mark.start())
    edges.append(len(text))
    pieces = [text[start:end] for start, end in pairwise(edges)]
    for number in range(1, len(pieces), 2):
        pieces[number] = re.sub(r"\S", " ", pieces[number])
    return "".join(pieces), count

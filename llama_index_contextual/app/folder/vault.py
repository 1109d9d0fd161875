"""Support for Obsidian vaults: folders without notes, and comments in notes."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path

from llama_index_contextual.app.folder.files import read_file
from llama_index_contextual.utils.text import without_code

VAULT = ".obsidian"  # the folder that makes its parent a vault
MAX_SETTINGS = 1_000_000  # bytes of a settings file or an ignore file
_COMMENT_MARK = re.compile("%%")
# The settings files that name the folder of templates, with the key in each: Obsidian's own, and
# that of the Templater plugin.
_TEMPLATES = {
    "templates.json": "folder",
    "plugins/templater-obsidian/data.json": "templates_folder",
}


def folders_without_notes(vault: Path, base: str, root: Path) -> tuple[str, ...]:
    """Return the prefixes of paths that are not notes: settings, deleted notes and templates.

    Args:
        vault: The folder of the vault.
        base: Its path in the index with a final slash, or "".
        root: The folder that must contain the settings after links are followed.
    """
    names = [VAULT, ".trash"]
    for file, key in _TEMPLATES.items():
        with contextlib.suppress(Exception):  # settings of any form; skip invalid ones
            settings = json.loads(read_file(vault / VAULT / file, MAX_SETTINGS, root=root))
            names.append(settings[key].strip("/ "))
    return tuple(f"{base}{name}/" for name in names if name)


def without_comments(text: str) -> tuple[str, int]:
    """Return a text in which comments (``%% … %%``) are blank, and the number of comments.

    Lines and offsets do not change. Comments in code and unclosed comments are kept.
    """
    if not _COMMENT_MARK.search(text):
        return text, 0
    marks = list(_COMMENT_MARK.finditer(without_code(text)))
    pieces = []
    position = 0
    pairs = list(zip(marks[::2], marks[1::2], strict=False))  # without an unclosed comment
    for opening, closing in pairs:
        pieces.append(text[position : opening.start()])
        pieces.append(re.sub(r"\S", " ", text[opening.start() : closing.end()]))
        position = closing.end()
    pieces.append(text[position:])
    return "".join(pieces), len(pairs)

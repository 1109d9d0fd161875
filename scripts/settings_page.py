"""Write docs/reference/settings.md from the declarations of the settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from llama_index_contextual.app.settings.loading import PREFIX, USER_FILE
from llama_index_contextual.app.settings.registry import FOLDER_FILE, SETTINGS
from llama_index_contextual.context import registry as contexts

if TYPE_CHECKING:
    from llama_index_contextual.app.settings.registry import Setting

PAGE: Final = Path(__file__).parents[1] / "docs" / "reference" / "settings.md"
_INTRODUCTION: Final = f"""\
# Settings

Python, the command line and the MCP server read the same settings. The first of these that sets a value counts:

1. an argument or an option
2. an environment variable, as in `{PREFIX}CHUNKS__CHUNK_SIZE`
3. `{FOLDER_FILE}` in the folder
4. your own `{USER_FILE}` in `~/.config/llama-index-contextual`, or where your system keeps such files
5. what the index was made with
6. the default

A file has tables: `chunks.chunk_size` is `chunk_size` in `[chunks]`. Your own file may also have a table for
one folder, `[folders."/path/to/notes"]`.

The file of a folder may set only what the column "Folder" allows, because it may come from somebody else
([Security](../concepts/security.md)). `scripts/settings_page.py` writes this page.

| Setting | Meaning | Default | Folder |
|---|---|---|---|
"""  # noqa: E501
_CONTEXTS: Final = ", ".join(f"`{name}`" for name in contexts.names())


def row(setting: Setting) -> str:
    """Return the table row of a setting."""
    default = setting.computed or f"`{json.dumps(setting.default, ensure_ascii=False)}`"
    allowed = setting.harmless
    if callable(allowed):
        folder = "those that cost nothing"
    elif isinstance(allowed, bool):
        folder = "yes" if allowed else ""
    else:
        folder = ", ".join(f"`{value}`" for value in allowed)
    meaning = setting.meaning.replace(_CONTEXTS, "see [Contexts](../guides/contexts.md)")
    return f"| `{setting.key}` | {meaning} | {default} | {folder} |\n"


def reference() -> str:
    """Return the page."""
    return _INTRODUCTION + "".join(row(setting) for setting in SETTINGS.values())


if __name__ == "__main__":
    PAGE.write_text(reference(), "utf-8")

"""Write the end of docs/command-line.md, the settings, from the declarations of the configuration, which are obeyed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from llama_index_contextual.app.settings.loading import PREFIX, USER_FILE
from llama_index_contextual.app.settings.registry import FOLDER_FILE as FILE
from llama_index_contextual.app.settings.registry import SETTINGS
from llama_index_contextual.context import registry

_HEADING: Final = "## Settings\n"
PAGE: Final = Path(__file__).parents[1] / "docs" / "command-line.md"
_INTRODUCTION: Final = f"""
`{FILE}` in the folder of the documents is read by Python, the command line and the MCP server alike, by tables:
`[chunks]` has `chunk_size`. The first place that sets a value counts: an argument or option; a variable, as in
`{PREFIX}CHUNKS__CHUNK_SIZE`; the folder's file; your own file, `{USER_FILE}` in
`~/.config/llama-index-contextual`, or where your system keeps such files; the index; the default.

**A folder is data**: its own file sets what the column *folder* says ([Security](security.md)).
`scripts/settings_page.py` makes this section.

| key | meaning | default | folder |
|---|---|---|---|"""


def reference() -> str:
    """Return the page with the section made anew; what stands above it stays."""
    lines = [PAGE.read_text("utf-8").partition(_HEADING)[0] + _HEADING + _INTRODUCTION]
    for key, setting in SETTINGS.items():
        default = setting.computed or f"`{json.dumps(setting.default, ensure_ascii=False)}`"
        safe = setting.harmless
        if callable(safe):
            safe = tuple(filter(safe, registry.names()))
        folder = (
            ("yes" if safe else "")
            if isinstance(safe, bool)
            else ", ".join(f"`{one}`" for one in safe)
        )
        lines.append(f"| `{key}` | {setting.meaning} | {default} | {folder} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    PAGE.write_text(reference(), "utf-8")

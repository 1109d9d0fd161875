"""Write the end of docs/command-line.md, the settings, from the declarations of the configuration, which are obeyed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from llama_index_contextual.app.settings.loading import FILE, PREFIX, USER_FILE
from llama_index_contextual.app.settings.schema import SETTINGS

_HEADING: Final = "## Settings\n"
PAGE: Final = Path(__file__).parents[1] / "docs" / "command-line.md"
_INTRODUCTION: Final = f"""

One file, `{FILE}` in the folder of the documents, is read by Python, the command line and the MCP server alike.
`llama-index-contextual config --init` writes it with every setting commented out.
`llama-index-contextual config` prints the settings in force and where each comes from.
A value is taken from the first place that sets it:

1. an argument in Python, or an option of the command line
2. an environment variable: `{PREFIX}CHUNKS__CHUNK_SIZE` for `chunks.chunk_size`; a list is separated by commas
3. the folder's file
4. your own file, `{USER_FILE}` in `~/.config/llama-index-contextual` (or where your system keeps such files)
5. the index, which remembers the harmless settings that made it
6. the default

A setting has one name, in the file, in variables and in Python. Those above all tables and those of `[context_options]`
are arguments of `ContextualIndex.open`, those of `[files]` of `FileRules`, those of `[chunks]` of
`HeadingAwareMarkdownNodeParser`, and those of `[memory]` of `MemoryContext`.

**A folder is data.** The column *folder* says what a folder's own file may set: yes, or these values. All
else counts only from the other places; your own file may have a table `[folders."/path"]`. What is not obeyed is named
in a warning, and the rest holds ([Security](security.md)). A file has at most 1 MB, 2,000 values and 8 levels.

`scripts/settings_page.py` makes this section."""


def reference() -> str:
    """Return the page with the section made anew; what stands above it stays."""
    above = PAGE.read_text("utf-8").partition(_HEADING)[0]
    lines = [above + _HEADING + _INTRODUCTION.rstrip()]
    section = None
    for key, setting in SETTINGS.items():
        table, name = setting.table, setting.name
        meaning = setting.meaning
        if setting.is_table:
            lines += ["", f"### `[{key}]`", "", meaning + (" A folder may set it." if setting.harmless else "")]
            continue
        if table != section:
            section = table
            lines += [
                "",
                f"### `[{table}]`" if table else "### Above all tables",
                "",
                "| key | meaning | default | option | folder |",
                "|---|---|---|---|---|",
            ]
        default = setting.computed or f"`{json.dumps(setting.default, ensure_ascii=False)}`"
        option = f"`{setting.option}`" if setting.option else ""
        safe = setting.harmless
        folder = ("yes" if safe else "") if isinstance(safe, bool) else ", ".join(f"`{one}`" for one in safe)
        lines.append(f"| `{name}` | {meaning} | {default} | {option} | {folder} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    PAGE.write_text(reference(), "utf-8")

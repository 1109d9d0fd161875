"""What MCP costs an agent: characters of the descriptions of the tools, and of one answer of each as text and as data.

    python benchmarks/mcp_sizes.py

The notes are `examples/notes`. Tokens are cl100k's.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mcp
from common import machine, markdown_table
from llama_index.core.utils import get_tokenizer

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.serve.mcp_server import NotesServer

NOTES = Path(__file__).parents[1] / "examples" / "notes"
CALLS: dict[str, dict[str, Any]] = {
    "memory_context": {"message": "what did we decide about retries?"},
    "search": {"query": "default timeout of the gateway"},
    "read": {"path": "docs/gateway.md#L12-L16"},
    "list": {},
}


def count(text: str) -> int:
    """Tokens of a text."""
    return len(get_tokenizer()(text))


async def rows(folder: Path) -> list[list[str]]:
    """A row for each tool, and their sum."""
    found = []
    with ContextualIndex.open(folder) as index:
        index.refresh()
        async with mcp.Client(NotesServer(index, refresh="never")) as client:
            for tool in (await client.list_tools()).tools:
                answer = await client.call_tool(tool.name, CALLS[tool.name])
                text, data = answer.content[0].text, json.dumps(answer.structured_content)
                described = f"{tool.description}{json.dumps(tool.input_schema)}"
                found.append([tool.name, len(described), count(described), len(text), count(text), len(data)])
    found.append(["all", *(sum(row[column] for row in found) for column in range(1, 6))])
    return [[str(cell) for cell in row] for row in found]


def main() -> None:
    """Print a table."""
    with TemporaryDirectory() as folder:
        shutil.copytree(NOTES, Path(folder) / "notes", ignore=shutil.ignore_patterns(".contextual"))
        header = ["tool", "described, characters", "tokens", "an answer's text", "tokens", "its data"]
        print(f"{machine()}.\n")
        print(markdown_table(header, asyncio.run(rows(Path(folder) / "notes"))))


if __name__ == "__main__":
    main()

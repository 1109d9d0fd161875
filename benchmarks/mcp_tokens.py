"""What the tools of the MCP server cost an agent: their descriptions and an answer of each, in characters and tokens.

python benchmarks/mcp_tokens.py
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
HEADER = ["tool", "described, characters", "tokens", "an answer's text", "tokens", "its data"]


async def sizes(folder: Path) -> list[list[Any]]:
    """Characters and cl100k tokens of each tool's description and of an answer, and their sums."""
    found, count = [], get_tokenizer()
    with ContextualIndex.open(folder) as index:
        index.refresh()
        async with mcp.Client(NotesServer(index, refresh="never")) as client:
            for tool in (await client.list_tools()).tools:
                answer = await client.call_tool(tool.name, CALLS[tool.name])
                text, data = answer.content[0].text, json.dumps(answer.structured_content)
                described = f"{tool.description}{json.dumps(tool.input_schema)}"
                found.append([tool.name, len(described), len(count(described)), len(text), len(count(text)), len(data)])
    return [*found, ["all", *(sum(row[column] for row in found) for column in range(1, 6))]]


def main() -> None:
    """Print a table."""
    with TemporaryDirectory() as folder:
        shutil.copytree(NOTES, Path(folder) / "notes", ignore=shutil.ignore_patterns(".contextual"))
        print(f"{machine()}.\n\n{markdown_table(HEADER, asyncio.run(sizes(Path(folder) / 'notes')))}")


if __name__ == "__main__":
    main()

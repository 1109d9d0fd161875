"""What the MCP server's tools cost an agent, and whether a small model chooses the right one.

    python benchmarks/tool_choice.py --sizes  # descriptions and answers: characters and tokens
    python benchmarks/tool_choice.py          # by a small model

Twenty-four tasks, as a user puts them to an agent, each with the tools that do it. The model sees
the tools as the server lists them, and may answer with nothing but one of their names. A small
model prefers what stands at certain places of a list, so each task is asked with the list turned
round three ways. The same is asked with the names alone, which shows what the descriptions add. The
model is SmolLM2-135M on llama.cpp's server; ``tests/servers.py`` starts it.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import httpx
import mcp
from common import command_line, machine, markdown_table
from llama_index.core.utils import get_tokenizer

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.serve.mcp_server import NotesServer

if TYPE_CHECKING:
    from collections.abc import Sequence

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import servers

TASKS = [
    ("A new turn begins. The user wrote: what did we say about the gateway?", {"memory_context"}),
    (
        "The user's message is: hello again, I am back from Lima. See what the notes say about it.",
        {"memory_context"},
    ),
    (
        "Before you answer this message, look what is known: does JC like ginger?",
        {"memory_context"},
    ),
    ("Find the exact sentence about the freeze date in October.", {"retrieve"}),
    ("Search the notes of last week for the word invoice.", {"retrieve", "grep"}),
    ("Which notes with the tag health mention running?", {"retrieve"}),
    ("Search for three wordings at once: timeout, time limit, deadline.", {"retrieve"}),
    ("Open memory/2026-04-09.md.", {"read"}),
    ("Show me lines 3 to 9 of people/ana.md.", {"read"}),
    ("A hit cited report.pdf#page=4. Read that page.", {"read"}),
    ("Read the note of 9 April: memory/2026-04-09.md.", {"read"}),
    ("Give me the text of people/ana.md.", {"read"}),
    ("What notes are there in the folder projects?", {"list"}),
    ("Which files does the memory have?", {"list"}),
    ("Is the index up to date? How many documents does it hold?", {"list"}),
    ("Which tags can a search be narrowed by?", {"list"}),
    ("Search notes whose status is open for the word dredging.", {"retrieve"}),
    ("Find who repaired the boat.", {"retrieve"}),
    ("Find every line with the error code E4042.", {"grep"}),
    ("List all notes that mention Marta Ruiz by name.", {"grep"}),
    ("Which lines match the regular expression TODO|FIXME?", {"grep"}),
    ("Where exactly does the identifier max_retries occur?", {"grep"}),
    ("Show the section Timeout of [[Gateway]].", {"read"}),
    (
        (
            "The user wrote: thanks, and what about the roof? Look what the notes say before "
            "you answer."
        ),
        {"memory_context"},
    ),
]
TURNS = 3
NOTES = Path(__file__).parents[1] / "examples" / "notes"
CALLS: dict[str, dict[str, Any]] = {
    "memory_context": {"message": "what did we decide about retries?"},
    "retrieve": {"query": "default timeout of the gateway"},
    "read": {"path": "docs/gateway.md#L12-L16"},
    "grep": {"pattern": "timeout"},
    "list": {},
}


def tools() -> dict[str, str]:
    """Return the tools as the server lists them: descriptions by name."""

    async def listed(index: ContextualIndex) -> dict[str, str]:
        async with mcp.Client(NotesServer(index, refresh="never")) as client:
            return {tool.name: tool.description or "" for tool in (await client.list_tools()).tools}

    with TemporaryDirectory() as folder, ContextualIndex.open(folder, embed_model="none") as index:
        return asyncio.run(listed(index))


def chosen(url: str, descriptions: Sequence[tuple[str, str]], task: str, *, described: bool) -> str:
    """Return the tool that the model names for a task."""
    lines = [f"- {name}: {text}" if described else f"- {name}" for name, text in descriptions]
    names = [name for name, _ in descriptions]
    schema = {"type": "object", "properties": {"tool": {"enum": names}}, "required": ["tool"]}
    body = {
        "model": servers.MODEL, "temperature": 0, "max_tokens": 40,
        "messages": [
            {"role": "system",
            "content": "Choose the tool that does the task.\n\nTools:\n" + "\n".join(lines)},
            {"role": "user", "content": f"{task}\n\nWhich tool?"},
        ],
        "response_format": {"type": "json_schema", "json_schema": {"name": "choice",
        "schema": schema}},
    }  # fmt: skip
    answer = (
        httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300).raise_for_status().json()
    )
    return str(json.loads(answer["choices"][0]["message"]["content"])["tool"])


def count(text: str) -> int:
    """Count the tokens of a text."""
    return len(get_tokenizer()(text))


async def sizes(folder: Path) -> list[list[str]]:
    """Return characters and cl100k tokens of each tool's description and answer, and their sums."""
    rows = []
    with ContextualIndex.open(folder) as index:
        index.refresh()
        async with mcp.Client(NotesServer(index, refresh="never")) as client:
            for tool in (await client.list_tools()).tools:
                answer = await client.call_tool(tool.name, CALLS[tool.name])
                text, data = answer.content[0].text, json.dumps(answer.structured_content)
                described = f"{tool.description}{json.dumps(tool.input_schema)}"
                rows.append(
                    [tool.name, len(described), count(described), len(text), count(text), len(data)]
                )
    rows.append(["all", *(sum(row[column] for row in rows) for column in range(1, 6))])
    return [[str(cell) for cell in row] for row in rows]


def main() -> None:
    """Ask, and print a table."""
    if command_line(__doc__, sizes=False).sizes:
        with TemporaryDirectory() as folder:
            shutil.copytree(NOTES, Path(folder) / "notes")
            header = [
                "tool",
                "described, characters",
                "tokens",
                "an answer's text",
                "tokens",
                "its data",
            ]
            print(
                f"{machine()}.\n\n"
                f"{markdown_table(header, asyncio.run(sizes(Path(folder) / 'notes')))}"
            )
        return
    if reason := servers.missing():
        sys.exit(reason)
    listed, rows = list(tools().items()), []
    with servers.llama_cpp() as url:
        for described in (True, False):
            right, wrong = 0, set[tuple[str, str]]()
            for turn in range(TURNS):
                start = turn * len(listed) // TURNS
                for task, expected in TASKS:
                    tool = chosen(url, listed[start:] + listed[:start], task, described=described)
                    right += tool in expected
                    wrong |= set() if tool in expected else {(tool, task)}
            name = "names and descriptions" if described else "names alone"
            rows.append([name, f"{right / len(TASKS) / TURNS:.0%}"])
            print(*sorted(wrong), sep="\n", file=sys.stderr)
    chance = sum(len(expected) for _, expected in TASKS) / len(TASKS) / len(listed)
    print(
        f"{machine()}. Model: {servers.MODEL}. {len(listed)} tools, {len(TASKS)} tasks, "
        f"{TURNS} orders.\n"
    )
    print(markdown_table(["the model sees", "right"], [*rows, ["chance", f"{chance:.0%}"]]))


if __name__ == "__main__":
    main()

"""Measure the length of the MCP server's tools, and whether a small model chooses the right one.

    python benchmarks/tool_choice.py --sizes  # length of descriptions and answers
    python benchmarks/tool_choice.py          # choice by a small model

The model gets twenty-four tasks as users give them to an agent, with the tools as the server lists
them, and can only answer with the name of a tool. A small model prefers certain places in a list,
so each task is repeated with three orders of the list. All of this is repeated with the names
alone, which shows what the descriptions add. The model is SmolLM2-135M on llama.cpp's server, which
``tests/servers.py`` starts.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

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

# Each task with the tools that can do it.
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
ORDERS = 3  # of the list of tools
NOTES = Path(__file__).parents[1] / "examples" / "notes"
CALLS: dict[str, dict[str, Any]] = {
    "memory_context": {"message": "what did we decide about retries?"},
    "retrieve": {"query": "default timeout of the gateway"},
    "read": {"path": "docs/gateway.md#L12-L16"},
    "grep": {"pattern": "timeout"},
    "list": {},
}


def tools() -> dict[str, str]:
    """Return the descriptions of the tools by name, in the order of the server."""

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
    instructions = "Choose the tool that does the task.\n\nTools:\n" + "\n".join(lines)
    body = {
        "model": servers.MODEL,
        "temperature": 0,
        "max_tokens": 40,
        "messages": [
            {"role": "system", "content": instructions},
            {"role": "user", "content": f"{task}\n\nWhich tool?"},
        ],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "choice", "schema": schema},
        },
    }
    response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300)
    message = response.raise_for_status().json()["choices"][0]["message"]
    return str(json.loads(message["content"])["tool"])


def count(text: str) -> int:
    """Count the tokens of a text."""
    return len(get_tokenizer()(text))


async def sizes(folder: Path) -> list[list[int | str]]:
    """Return a row for each tool, and one with the sums.

    It has the characters and cl100k tokens of its description and of an answer, and the characters
    of the answer's data.
    """
    rows: list[list[Any]] = []
    with ContextualIndex.open(folder) as index:
        index.refresh()
        async with mcp.Client(NotesServer(index, refresh="never")) as client:
            for tool in (await client.list_tools()).tools:
                answer = await client.call_tool(tool.name, CALLS[tool.name])
                text = answer.content[0].text
                data = json.dumps(answer.structured_content)
                description = f"{tool.description}{json.dumps(tool.input_schema)}"
                lengths = [len(description), count(description), len(text), count(text), len(data)]
                rows.append([tool.name, *lengths])
    _, *columns = zip(*rows, strict=True)
    rows.append(["all", *map(sum, columns)])
    return rows


class Choices(NamedTuple):
    """The share of right choices, and the wrong ones with their tasks."""

    right_share: float
    wrong: set[tuple[str, str]]


def choices(url: str, listed: Sequence[tuple[str, str]], *, described: bool) -> Choices:
    """Return what the model chooses for all tasks, with each order of the tools.

    Args:
        url: The address of the server.
        listed: The tools with their descriptions.
        described: Whether the model sees the descriptions.
    """
    right = 0
    wrong = set[tuple[str, str]]()
    for order in range(ORDERS):
        start = order * len(listed) // ORDERS
        reordered = [*listed[start:], *listed[:start]]
        for task, expected in TASKS:
            tool = chosen(url, reordered, task, described=described)
            if tool in expected:
                right += 1
            else:
                wrong.add((tool, task))
    return Choices(right / len(TASKS) / ORDERS, wrong)


def print_sizes() -> None:
    """Print the table of lengths."""
    with TemporaryDirectory() as folder:
        notes = Path(folder) / "notes"
        shutil.copytree(NOTES, notes)
        rows = asyncio.run(sizes(notes))
    header = ["tool", "described, characters", "tokens", "an answer's text", "tokens", "its data"]
    print(f"{machine()}.\n\n{markdown_table(header, rows)}")


def print_choices() -> None:
    """Print the table of right choices, and the wrong ones to standard error."""
    missing = servers.missing()
    if missing:
        sys.exit(missing)
    listed = list(tools().items())
    rows = []
    with servers.llama_cpp() as url:
        for name, described in (("names and descriptions", True), ("names alone", False)):
            right_share, wrong = choices(url, listed, described=described)
            rows.append([name, f"{right_share:.0%}"])
            print(*sorted(wrong), sep="\n", file=sys.stderr)
    expected_tools = sum(len(expected) for _, expected in TASKS)
    rows.append(["chance", f"{expected_tools / len(TASKS) / len(listed):.0%}"])
    sizes = f"{len(listed)} tools, {len(TASKS)} tasks, {ORDERS} orders"
    print(f"{machine()}. Model: {servers.MODEL}. {sizes}.\n")
    print(markdown_table(["the model sees", "right"], rows))


def main() -> None:
    """Print lengths or choices."""
    if command_line(__doc__, sizes=False).sizes:
        print_sizes()
    else:
        print_choices()


if __name__ == "__main__":
    main()

"""How long an agent waits for an MCP answer while a folder is first indexed, over stdio, with the SDK's own client.

A folder of notes is indexed for the first time with contexts by a model that takes a second for each answer. Meanwhile
the client asks small talk and real questions in turn.

    python benchmarks/mcp_latency.py
    python benchmarks/mcp_latency.py --no-llm
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import mcp
from common import machine, markdown_table
from mcp.client.stdio import stdio_client

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from fake_model import FakeModel, Reply  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

PEOPLE = ["Marta", "Tomas", "Ines", "Bruno", "Carla", "Pablo", "Nadia", "Oscar", "Lena", "Viktor"]
VERBS = ["painted", "repaired", "sold", "borrowed", "planted", "photographed", "cleaned", "bought", "lost", "found"]
THINGS = [
    "the boat",
    "a red bicycle",
    "the kitchen shelf",
    "ginger plants",
    "the old radio",
    "a lemon tree",
    "the roof",
    "two chairs",
]


def write_notes(folder: Path, files: int) -> None:
    """Write dated notes, each of three sections."""
    numbers = random.Random(0)  # noqa: S311
    (folder / "memory").mkdir()
    for number in range(files):
        day = date(2024, 1, 1) + timedelta(days=number)
        lines = [f"# {day:%A}"]
        for title in ("Morning", "Work", "Evening"):
            facts = [
                f"{numbers.choice(PEOPLE)} {numbers.choice(VERBS)} {numbers.choice(THINGS)}, and it took "
                f"{numbers.randint(2, 90)} minutes."
                for _ in range(8)
            ]
            lines += ["", f"## {title}", "", " ".join(facts)]
        (folder / "memory" / f"{day}.md").write_text("\n".join(lines), "utf-8")


async def ask(client: mcp.Client, message: str) -> tuple[float, str]:
    """Seconds and answer."""
    start = time.perf_counter()
    result = await client.call_tool("memory_context", {"message": message})
    return time.perf_counter() - start, result.content[0].text


async def measure(folder: Path, llm: str | None, repeats: int) -> list[list[str]]:
    """Rows of the table."""
    options = f"context='llm', llm={llm!r}" if llm else "context='headings'"
    code = f"from llama_index_contextual.app.mcp_server import serve\nserve({str(folder)!r}, {options})"
    server = mcp.StdioServerParameters(command=sys.executable, args=["-c", code], env={"PYTHONPATH": str(ROOT)})
    times: dict[str, list[float]] = {"memory_context('hola')": [], "a real question": []}
    answered, refreshing = 0, 0
    async with mcp.Client(stdio_client(server)) as client:
        for number in range(repeats):
            questions = ("hola", f"what did {PEOPLE[number % 10]} do with {THINGS[number % 7]}?")
            for name, question in zip(times, questions, strict=True):
                seconds, answer = await ask(client, question)
                times[name].append(seconds)
            answered += "- [memory/" in answer
            refreshing += "being indexed" in answer
            await asyncio.sleep(0.05)
        held = json.loads((await client.call_tool("status", {})).content[0].text)
        print(
            f"{repeats} of each; {refreshing} while indexing, {answered} with hits; "
            f"indexed at the end: {held['documents']} files\n"
        )
    return [[name, *percentiles(found)] for name, found in times.items()]


def percentiles(seconds: Sequence[float]) -> list[str]:
    """Median, 99th percentile and longest, in milliseconds."""
    ordered = sorted(seconds)
    return [
        f"{1000 * value:.0f}" for value in (statistics.median(ordered), ordered[int(0.99 * len(ordered))], ordered[-1])
    ]


def main() -> None:
    """Run and print the Markdown of results/mcp.md."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--files", type=int, default=500)
    options.add_argument("--repeats", type=int, default=200)
    options.add_argument("--delay", type=float, default=1.0, help="seconds that the fake model takes")
    options.add_argument("--no-llm", action="store_true", help="contexts from headings: the time goes into embedding")
    given = options.parse_args()
    model = FakeModel().start()
    model.reply = lambda *_: Reply(delay=given.delay)
    print("# MCP answers while a folder is first indexed\n")
    print(machine(), "\n")
    with tempfile.TemporaryDirectory() as folder:
        write_notes(Path(folder), given.files)
        rows = asyncio.run(measure(Path(folder), None if given.no_llm else model.llm, given.repeats))
    print(markdown_table([f"ms, {given.files} files", "p50", "p99", "longest"], rows))
    model.stop()


if __name__ == "__main__":
    main()

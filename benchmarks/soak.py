"""Thousands of mixed MCP calls to one server while its notes change: what grows, what is left, how long answers take.

A server of its own process has a folder of dated notes. One client of the SDK calls its tools over
stdio, as fast as answers come. Every few calls notes are written, edited, renamed and deleted, so that the server
refreshes nearly all the time. Memory, descriptors and threads of the server are read from /proc (Linux only).

    python benchmarks/soak.py --calls 1000
    python benchmarks/soak.py                       # 10,000 calls
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mcp
from common import machine, markdown_table
from mcp.client.stdio import stdio_client

from llama_index_contextual.app.index import ContextualIndex

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parents[1]
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


def percentiles(seconds: Sequence[float]) -> list[str]:
    """Median, 99th percentile and longest, in milliseconds."""
    ordered = sorted(seconds)
    return [
        f"{1000 * value:.0f}" for value in (statistics.median(ordered), ordered[int(0.99 * len(ordered))], ordered[-1])
    ]


SERVER = """
import os, sys
from pathlib import Path
from llama_index_contextual.app.serve.mcp_server import serve
Path(sys.argv[2]).write_text(str(os.getpid()))
serve(sys.argv[1])
"""
MIX = {  # how often each tool is called
    "memory_context": 30,
    "search": 30,
    "read": 20,
    "list": 7,
}
CHANGE_EVERY = 20  # calls
SAMPLE_EVERY = 100
WARM = 1000  # calls after which nothing should grow


@dataclass(frozen=True, slots=True)
class Sample:
    """What a process holds."""

    calls: int
    megabytes: float
    descriptors: int
    threads: int


@dataclass(slots=True)
class Soak:
    """A run over one folder."""

    folder: Path
    numbers: random.Random
    seconds: dict[str, list[float]] = field(default_factory=lambda: {tool: [] for tool in MIX})
    samples: list[Sample] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)

    def notes(self) -> list[str]:
        """Paths of the notes, in order."""
        return sorted(path.relative_to(self.folder).as_posix() for path in self.folder.glob("memory/*.md"))

    def fact(self) -> str:
        """A sentence."""
        choose = self.numbers.choice
        return f"{choose(PEOPLE)} {choose(VERBS)} {choose(THINGS)} for {self.numbers.randrange(10**6)} pesos."

    def arguments(self, tool: str) -> dict[str, Any]:
        """What a tool is called with."""
        question = f"what did {self.numbers.choice(PEOPLE)} do with {self.numbers.choice(THINGS)}?"
        if tool == "memory_context":
            return {"message": self.numbers.choice(["hola", question, question, question])}
        if tool == "search":
            return {"query": question} | self.numbers.choice([{}, {"since": "2024-03-01"}, {"path": "memory/"}])
        plain: Mapping[str, dict[str, Any]] = {
            "read": {"path": self.numbers.choice(self.notes())},
        }
        return plain.get(tool, {})

    def change(self) -> None:
        """Write, edit, rename or delete a note; there are about as many afterwards."""
        dated = [path for path in self.notes() if path.startswith("memory/2024")]
        note = self.folder / self.numbers.choice(dated)
        kind = self.numbers.choice(["edit", "edit", "rename", "replace"])
        if kind == "edit":
            lines = note.read_text("utf-8").splitlines()
            lines[self.numbers.randrange(1, len(lines))] = self.fact()
            note.write_text("\n".join(lines), "utf-8")
            return
        day = f"2024-{self.numbers.randrange(1, 13):02}-{self.numbers.randrange(1, 29):02}"
        other = note.with_name(f"{day}-{self.numbers.randrange(10**4)}.md")
        if kind == "rename":
            note.rename(other)
        else:
            note.unlink()
            other.write_text(f"# {day}\n\n" + " ".join(self.fact() for _ in range(20)), "utf-8")

    async def call(self, client: mcp.Client, tool: str) -> None:
        """Call a tool once."""
        arguments = self.arguments(tool)
        started = time.perf_counter()
        result = await client.call_tool(tool, arguments)
        self.seconds[tool].append(time.perf_counter() - started)
        if result.is_error:
            self.errors[f"{tool}: {result.content[0].text[:200]}"] += 1

    async def run(self, calls: int) -> int:
        """Do so many calls; return the id of the server's process, which has ended."""
        pid_file = self.folder.parent / "pid"
        server = mcp.StdioServerParameters(
            command=sys.executable,
            args=["-c", SERVER, str(self.folder), str(pid_file)],
            env={"PYTHONPATH": str(ROOT)},
        )
        tools = self.numbers.choices(list(MIX), weights=list(MIX.values()), k=calls)
        async with mcp.Client(stdio_client(server)) as client:
            pid = int(pid_file.read_text())
            for number, tool in enumerate(tools):
                if number % SAMPLE_EVERY == 0:
                    self.samples.append(sample(pid, number))
                if number % CHANGE_EVERY == 0:
                    self.change()
                await self.call(client, tool)
            await settled(client)
            self.samples.append(sample(pid, calls))
        return pid

    def problems(self, pid: int) -> list[str]:
        """What should not be: errors, a process that is left, an index that is not whole."""
        found = [f"{count} x {error}" for error, count in self.errors.items()]
        if Path(f"/proc/{pid}").exists():
            found.append(f"process {pid} is left")
        left = [path.name for path in self.folder.glob("memory/.*")]
        found += [f"left in the folder: {name}" for name in left]
        with ContextualIndex.open(self.folder) as index:
            index.refresh()
            found += index.status(check=True).problems
        return found


async def settled(client: mcp.Client) -> None:
    """Wait until no refresh runs."""
    for _ in range(120):
        if "being indexed" not in (await client.call_tool("list", {})).content[0].text:
            return
        await asyncio.sleep(0.5)


def sample(pid: int, calls: int) -> Sample:
    """Read what a process holds now."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return Sample(calls, int(status["VmRSS"].split()[0]) / 1024, descriptors, int(status["Threads"]))


def held(samples: list[Sample], first: int, last: int) -> list[object]:
    """Return medians of what a process held between two numbers of calls."""
    among = [one for one in samples if first <= one.calls <= last]
    return [
        f"{first:,} to {last:,}",
        statistics.median(one.megabytes for one in among),
        statistics.median(one.descriptors for one in among),
        statistics.median(one.threads for one in among),
    ]


def main() -> None:
    """Run and print the Markdown of results/mcp.md."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--calls", type=int, default=10_000)
    options.add_argument("--files", type=int, default=300)
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    print(machine(), "\n")
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "notes"
        folder.mkdir()
        write_notes(folder, given.files)
        with ContextualIndex.open(folder) as index:
            index.refresh()
        soak = Soak(folder, random.Random(given.seed))  # noqa: S311  reproducible, not secret
        started = time.perf_counter()
        pid = asyncio.run(soak.run(given.calls))
        minutes = (time.perf_counter() - started) / 60
        problems = soak.problems(pid)
        print(f"problems: {problems or 'none'}\n")
    print(f"{given.calls:,} calls in {minutes:.1f} min, load {before:.1f} before and {os.getloadavg()[0]:.1f} after")
    rows = [[tool, len(found), *percentiles(found)] for tool, found in soak.seconds.items() if found]
    every = [one for found in soak.seconds.values() for one in found]
    print(markdown_table(["ms", "calls", "p50", "p99", "longest"], [*rows, ["all", len(every), *percentiles(every)]]))
    step = min(WARM, given.calls // 2)
    parts = [held(soak.samples, first, first + step) for first in range(step, given.calls, step)]
    print("\n" + markdown_table(["calls", "memory, MiB", "descriptors", "threads"], parts))
    last = soak.samples[-1]
    print(f"\nat the end, idle: {last.megabytes:.1f} MiB, {last.descriptors} descriptors, {last.threads} threads")


if __name__ == "__main__":
    main()

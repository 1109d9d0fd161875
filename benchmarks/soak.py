"""Make thousands of MCP calls and page requests while notes change.

Measure what grows, what is left over, and how long answers take.

The MCP server over stdio and the page each have a process, over the same folder of dated notes.
Every few calls a note is edited, renamed or replaced, so that the MCP server refreshes nearly all
the time. Memory, descriptors and threads are read from /proc (Linux only).

    python benchmarks/soak.py --calls 1000
    python benchmarks/soak.py                       # 10,000 calls
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from datetime import date, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import mcp
from common import command_line, machine, markdown_table
from mcp.client.stdio import stdio_client

from llama_index_contextual.app import ContextualIndex

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
PEOPLE = ["Marta", "Tomas", "Ines", "Bruno", "Carla", "Pablo", "Nadia", "Oscar", "Lena", "Viktor"]
VERBS = ["painted", "repaired", "sold", "borrowed", "planted", "cleaned", "bought", "lost", "found"]
THINGS = ["boat", "red bicycle", "kitchen shelf", "ginger plant", "old radio", "lemon tree", "roof"]
SERVER = """
import os, sys
from pathlib import Path
from llama_index_contextual.app.serve.mcp_server import serve
Path(sys.argv[2]).write_text(str(os.getpid()))
serve(sys.argv[1])
"""
# How often each tool is called, and each address of the page.
FREQUENCIES = {
    "memory_context": 25,
    "retrieve": 20,
    "grep": 5,
    "read": 15,
    "list": 5,
    "/api/search": 20,
    "/api/document": 5,
    "/api/state": 5,
}
NOTES = 300
CALLS_PER_CHANGE = 20
CALLS_PER_SAMPLE = 100
WARM_UP_CALLS = 1000  # after them, nothing should grow
DICE = random.Random(0)  # noqa: S311  reproducible, not secret


class Usage(NamedTuple):
    """What a process uses.

    Attributes:
        memory: Megabytes.
        descriptors: The number of open files.
        threads: The number of threads.
    """

    memory: float
    descriptors: int
    threads: int


class Sample(NamedTuple):
    """The usage of both processes after a number of calls."""

    calls: int
    server: Usage
    page: Usage


class Record(NamedTuple):
    """The record of a run.

    Attributes:
        seconds: The durations of the calls, by tool or address.
        samples: The usage in the course of the run.
        problems: The problems of calls, with their numbers.
    """

    seconds: dict[str, list[float]]
    samples: list[Sample]
    problems: Counter[str]


def fact() -> str:
    """Return a sentence."""
    person, verb, thing = map(DICE.choice, (PEOPLE, VERBS, THINGS))
    return f"{person} {verb} the {thing} for {DICE.randrange(10**6)} pesos."


def write_note(path: Path) -> None:
    """Write a dated note of three sections."""
    text = f"# {path.stem}\n"
    for heading in ("Morning", "Work", "Evening"):
        facts = " ".join(fact() for _ in range(8))
        text += f"\n## {heading}\n\n{facts}\n"
    path.write_text(text, "utf-8")


def change(folder: Path) -> None:
    """Edit, rename or replace a note. The number of notes stays the same."""
    note = DICE.choice(sorted(folder.glob("*.md")))
    kind = DICE.choice(["edit", "edit", "rename", "replace"])
    if kind == "edit":
        lines = note.read_text("utf-8").splitlines()
        lines[DICE.randrange(1, len(lines))] = fact()
        note.write_text("\n".join(lines), "utf-8")
    else:
        month = DICE.randrange(1, 13)
        new_note = note.with_name(f"2024-{month:02}-01-{DICE.randrange(10**6)}.md")
        note.rename(new_note)
        if kind == "replace":
            write_note(new_note)


def arguments(name: str, folder: Path) -> dict[str, Any]:
    """Return random arguments for a tool or an address of the page."""
    question = f"what did {DICE.choice(PEOPLE)} do with the {DICE.choice(THINGS)}?"
    path = DICE.choice(sorted(folder.glob("*.md"))).relative_to(folder.parent).as_posix()
    filters = DICE.choice([{}, {"since": "2024-03-01"}, {"path": "memory/"}])
    arguments_by_name: dict[str, dict[str, Any]] = {
        "memory_context": {"message": DICE.choice(["hola", question, question])},
        "retrieve": {"query": question, **filters},
        "grep": {"pattern": DICE.choice(THINGS)},
        "read": {"path": path},
        "/api/search": {"q": question},
        "/api/document": {"path": path, "q": question},
    }
    return arguments_by_name.get(name, {})


def usage_of(pid: int) -> Usage:
    """Return what a process uses now."""
    status = {}
    for line in Path(f"/proc/{pid}/status").read_text("utf-8").splitlines():
        key, _, value = line.partition(":")
        status[key] = value
    descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return Usage(int(status["VmRSS"].split()[0]) / 1024, descriptors, int(status["Threads"]))


async def call_tool(client: mcp.Client, name: str, values: dict[str, Any]) -> str:
    """Call a tool of the MCP server, and return its problem; "" for none."""
    result = await client.call_tool(name, values)
    return text_of(result) if result.is_error else ""


async def request_page(browser: httpx.AsyncClient, address: str, values: dict[str, Any]) -> str:
    """Request an address of the page, and return its problem; "" for none."""
    answer = await browser.get(address, params=values, timeout=60)
    was_renamed = "no document" in answer.text
    return "" if answer.is_success or was_renamed else answer.text


def text_of(result: Any) -> str:
    """Return the text of a tool's answer."""
    return str(result.content[0].text)


async def run(folder: Path, calls: int, address: str, page_pid: int) -> Record:
    """Make a number of calls while notes change.

    Args:
        folder: The folder with the notes.
        calls: The number of calls.
        address: The address of the page, with its token.
        page_pid: The id of the process that serves the page.
    """
    record = Record(defaultdict(list), [], Counter())
    pid_file = folder.parent.parent / "pid"
    server = mcp.StdioServerParameters(
        command=sys.executable,
        args=["-c", SERVER, str(folder.parent), str(pid_file)],
        env=ENVIRONMENT,
    )
    base, token = address.split("/#token=")
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        mcp.Client(stdio_client(server)) as client,
        httpx.AsyncClient(base_url=base, headers=headers) as browser,
    ):
        server_pid = int(pid_file.read_text("utf-8"))

        def sample(number: int) -> None:
            record.samples.append(Sample(number, usage_of(server_pid), usage_of(page_pid)))

        names = DICE.choices(list(FREQUENCIES), weights=list(FREQUENCIES.values()), k=calls)
        for number, name in enumerate(names):
            if number % CALLS_PER_SAMPLE == 0:
                sample(number)
            if number % CALLS_PER_CHANGE == 0:
                change(folder)
            values = arguments(name, folder)
            started = time.perf_counter()
            if name.startswith("/"):
                problem = await request_page(browser, name, values)
            else:
                problem = await call_tool(client, name, values)
            record.seconds[name].append(time.perf_counter() - started)
            if problem:
                record.problems[f"{name}: {problem[:200]}"] += 1

        # Wait for the last refresh.
        for _ in range(120):
            if "being indexed" not in text_of(await client.call_tool("list", {})):
                break
            await asyncio.sleep(0.5)
        sample(calls)
    return record


def percentiles(seconds: list[float]) -> list[str]:
    """Return number, median, 99th percentile and longest, in milliseconds."""
    ordered = sorted(seconds)
    values = [statistics.median(ordered), ordered[int(0.99 * len(ordered))], ordered[-1]]
    return [f"{len(ordered):,}", *(f"{1000 * value:.0f}" for value in values)]


def growth(first: Usage, last: Usage) -> str:
    """Return in words how much more a process uses at the end."""
    descriptors = last.descriptors - first.descriptors
    threads = last.threads - first.threads
    memory = last.memory / first.memory
    return f"memory × {memory:.2f}, descriptors {descriptors:+}, threads {threads:+}"


def run_with_page(root: Path, folder: Path, calls: int) -> Record:
    """Serve the page of a folder, and make the calls."""
    serve = ["-m", "llama_index_contextual", "serve", str(folder.parent), "--port", "0"]
    with subprocess.Popen(  # noqa: S603
        [sys.executable, *serve], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
    ) as page:
        address = (page.stderr or sys.stdin).readline().split()[-1]
        record = asyncio.run(run(folder, calls, address, page.pid))
        server_pid = (root / "pid").read_text("utf-8")
        if Path("/proc", server_pid).exists():
            record.problems[f"process {server_pid} is left"] += 1
        page.terminate()
    return record


def main() -> None:
    """Make the calls, and print durations, problems and growth."""
    calls = command_line(__doc__, calls=10_000).calls
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root, "notes", "memory")
        folder.mkdir(parents=True)
        for number in range(NOTES):
            write_note(folder / f"{date(2024, 1, 1) + timedelta(days=number)}.md")
        with ContextualIndex.open(folder.parent) as index:
            index.refresh()
        load = os.getloadavg()[0]
        started = time.perf_counter()
        record = run_with_page(Path(root), folder, calls)
        minutes = (time.perf_counter() - started) / 60
        with ContextualIndex.open(folder.parent) as index:
            index.refresh()
            record.problems.update(index.status(check=True).problems or ())
    print(f"{machine()}\n\n{calls:,} calls in {minutes:.1f} min, load {load:.1f} before")
    print(f"problems: {record.problems or 'none'}\n")

    rows = [[name, *percentiles(durations)] for name, durations in record.seconds.items()]
    all_durations = [duration for durations in record.seconds.values() for duration in durations]
    rows.append(["all", *percentiles(all_durations)])
    print(markdown_table(["ms", "calls", "p50", "p99", "longest"], rows), "\n")

    warm_up = min(WARM_UP_CALLS, calls // 2)
    first = next(sample for sample in record.samples if sample.calls >= warm_up)
    last = record.samples[-1]
    print(f"MCP, after the first {warm_up:,}: {growth(first.server, last.server)}")
    print(f"page, after the first {warm_up:,}: {growth(first.page, last.page)}")


if __name__ == "__main__":
    main()

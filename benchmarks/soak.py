"""Thousands of mixed MCP calls and page requests while notes change.

What grows, what is left, how long answers take.

The MCP server over stdio and the page each have a process of their own, over one folder of dated
notes. Every few calls a note is edited, renamed or replaced, so that the MCP server refreshes
nearly all the time. Memory, descriptors and threads are read from /proc (Linux only).

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
from typing import Any

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
MIX = {
    "memory_context": 25,
    "retrieve": 20,
    "grep": 5,
    "read": 15,
    "list": 5,
}  # how often each is called
MIX |= {"/api/search": 20, "/api/document": 5, "/api/state": 5}  # of the page
NOTES = 300
CHANGE_EVERY, SAMPLE_EVERY, WARM = 20, 100, 1000  # calls; after the last nothing should grow
NUMBERS = random.Random(0)  # noqa: S311  reproducible, not secret


def fact() -> str:
    """Return a sentence."""
    person, verb, thing = map(NUMBERS.choice, (PEOPLE, VERBS, THINGS))
    return f"{person} {verb} the {thing} for {NUMBERS.randrange(10**6)} pesos."


def write_note(path: Path) -> None:
    """Write a dated note of three sections."""
    sections = "".join(
        f"\n## {part}\n\n{' '.join(fact() for _ in range(8))}\n"
        for part in ("Morning", "Work", "Evening")
    )
    path.write_text(f"# {path.stem}\n{sections}", "utf-8")


def change(folder: Path) -> None:
    """Edit, rename or replace a note; there are as many afterwards."""
    note = NUMBERS.choice(sorted(folder.glob("*.md")))
    kind = NUMBERS.choice(["edit", "edit", "rename", "replace"])
    if kind == "edit":
        lines = note.read_text("utf-8").splitlines()
        lines[NUMBERS.randrange(1, len(lines))] = fact()
        note.write_text("\n".join(lines), "utf-8")
    else:
        other = note.with_name(
            f"2024-{NUMBERS.randrange(1, 13):02}-01-{NUMBERS.randrange(10**6)}.md"
        )
        note.rename(other)
        if kind == "replace":
            write_note(other)


def arguments(name: str, folder: Path) -> dict[str, Any]:
    """Return what a tool or an address of the page is called with."""
    question = f"what did {NUMBERS.choice(PEOPLE)} do with the {NUMBERS.choice(THINGS)}?"
    path = NUMBERS.choice(sorted(folder.glob("*.md"))).relative_to(folder.parent).as_posix()
    kinds: dict[str, dict[str, Any]] = {
        "memory_context": {"message": NUMBERS.choice(["hola", question, question])},
        "retrieve": {"query": question}
        | NUMBERS.choice([{}, {"since": "2024-03-01"}, {"path": "memory/"}]),
        "grep": {"pattern": NUMBERS.choice(THINGS)},
        "read": {"path": path},
        "/api/search": {"q": question},
        "/api/document": {"path": path, "q": question},
    }
    return kinds.get(name, {})


def held(pid: int) -> tuple[float, int, int]:
    """Return the megabytes, descriptors and threads of a process."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
    )
    descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return int(status["VmRSS"].split()[0]) / 1024, descriptors, int(status["Threads"])


async def run(
    folder: Path, calls: int, address: str, page: int
) -> tuple[dict[str, list[float]], list[Any], Counter[str]]:
    """Make a number of calls.

    Return the seconds by name, samples of both processes, and errors.
    """
    seconds, samples, errors = defaultdict[str, list[float]](list), [], Counter[str]()
    pid_file, (base, token) = folder.parent.parent / "pid", address.split("/#token=")
    server = mcp.StdioServerParameters(
        command=sys.executable,
        args=["-c", SERVER, str(folder.parent), str(pid_file)],
        env=ENVIRONMENT,
    )
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        mcp.Client(stdio_client(server)) as client,
        httpx.AsyncClient(base_url=base, headers=headers) as browser,
    ):
        pids = int(pid_file.read_text("utf-8")), page
        for number, name in enumerate(
            NUMBERS.choices(list(MIX), weights=list(MIX.values()), k=calls)
        ):
            if number % SAMPLE_EVERY == 0:
                samples.append((number, *map(held, pids)))
            if number % CHANGE_EVERY == 0:
                change(folder)
            how, started = arguments(name, folder), time.perf_counter()
            if name.startswith("/"):
                answer = await browser.get(name, params=how, timeout=60)
                is_right = answer.is_success or "no document" in answer.text  # it was just renamed
                problem = "" if is_right else answer.text
            else:
                result = await client.call_tool(name, how)
                problem = result.content[0].text if result.is_error else ""
            seconds[name].append(time.perf_counter() - started)
            errors.update([f"{name}: {problem[:200]}"] if problem else [])
        for _ in range(120):
            if "being indexed" not in (await client.call_tool("list", {})).content[0].text:
                break
            await asyncio.sleep(0.5)
        samples.append((calls, *map(held, pids)))
    return seconds, samples, errors


def percentiles(seconds: list[float]) -> list[str]:
    """Return number, median, 99th percentile and longest, in milliseconds."""
    ordered = sorted(seconds)
    values = statistics.median(ordered), ordered[int(0.99 * len(ordered))], ordered[-1]
    return [f"{len(ordered):,}", *(f"{1000 * value:.0f}" for value in values)]


def main() -> None:
    """Run and print tables, and what grew after the first calls."""
    calls = command_line(__doc__, calls=10_000).calls
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root, "notes", "memory")
        folder.mkdir(parents=True)
        for number in range(NOTES):
            write_note(folder / f"{date(2024, 1, 1) + timedelta(days=number)}.md")
        with ContextualIndex.open(folder.parent) as index:
            index.refresh()
        command = [
            sys.executable,
            "-m",
            "llama_index_contextual",
            "serve",
            str(folder.parent),
            "--port",
            "0",
        ]
        load, started = os.getloadavg()[0], time.perf_counter()
        with subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as page:  # noqa: S603
            address = (page.stderr or sys.stdin).readline().split()[-1]
            seconds, samples, errors = asyncio.run(run(folder, calls, address, page.pid))
            pid = Path(root, "pid").read_text("utf-8")
            errors.update([f"process {pid} is left"] if Path("/proc", pid).exists() else [])
            page.terminate()
        minutes = (time.perf_counter() - started) / 60
        with ContextualIndex.open(folder.parent) as index:
            index.refresh()
            errors.update(index.status(check=True).problems)
    print(f"{machine()}\n\n{calls:,} calls in {minutes:.1f} min, load {load:.1f} before")
    print(f"problems: {errors or 'none'}\n")
    every = [duration for durations in seconds.values() for duration in durations]
    rows = [
        [name, *percentiles(durations)] for name, durations in [*seconds.items(), ("all", every)]
    ]
    print(markdown_table(["ms", "calls", "p50", "p99", "longest"], rows), "\n")
    step = min(WARM, calls // 2)
    warm = next(usage for done, *usage in samples if done >= step)
    for name, first, last in zip(("MCP", "page"), warm, samples[-1][1:], strict=True):
        more = [after - before for before, after in zip(first[1:], last[1:], strict=True)]
        growth = f"memory × {last[0] / first[0]:.2f}, descriptors {more[0]:+}, threads {more[1]:+}"
        print(f"{name}, after the first {step:,}: {growth}")


if __name__ == "__main__":
    main()

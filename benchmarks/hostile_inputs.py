"""Markdown meant to hurt a splitter, and a child process to try it in, which alone a hang or a crash then ends.

As a script it indexes each text as the one file of a folder, by keywords alone, because embedding takes its own time.
It prints CPU seconds for a size and for half of it, and the most memory that the process ever had (Linux only).

    python benchmarks/hostile_inputs.py --megabytes 1 [--only "link references" …]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from common import machine, markdown_table

from llama_index_contextual.app.index import ContextualIndex

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from chunkers import Splitter

LIMIT = 600.0  # seconds for one document
# What fills a text to its size: a unit that is repeated between a beginning and an end.
UNITS = {
    "prose": ("", "The gateway waits a minute, and then it asks another server. " * 5 + "\n\n", ""),
    "words on one line": ("", "word ", ""),
    "sentences on one line": ("", "This is a sentence. ", ""),
    "CJK on one line": ("", "漢字かな。", ""),
    "no space at all": ("", "abcdefghij", ""),
    "opening brackets": ("", "[", ""),
    "punctuation": ("", "!?.,;:", ""),
    "lists in lists on one line": ("", "- ", "x"),
    "numbered lists on one line": ("", "1. ", "x"),
    "quotes and lists on one line": ("", "> - ", "x"),
    "headings only": ("", "# h\n", ""),
    "backticks": ("", "`", ""),
    "unclosed fence": ("```python\n", "x = 1\n", ""),
    "unclosed comments": ("", "<!-- a ", ""),
    "unclosed links": ("", "[a](", ""),
    "unclosed emphasis": ("", "*a **a ", ""),
    "20k-row table": ("| a | b |\n|---|---|\n", "| cell | cell of a row with words |\n", ""),
    "2k-column table": (f"|{'c|' * 2000}\n|{'-|' * 2000}\n", f"|{'x|' * 2000}\n", ""),
    "blank lines": ("", "\n", "x"),
    "spaces": ("", " ", "x"),
    "NUL and lone CR": ("", "a\0b\rc d\r\r", ""),
    "deep list items": ("", "* a\n", ""),
    "link references": ("", "[a]: /b\n\n", ""),
    "emoji": ("", "😀", ""),
}


def pathological(megabytes: float = 1) -> dict[str, str]:
    """Texts of about so many megabytes; those of one unit, and some of many."""
    n, dice = int(megabytes * 1_000_000), random.Random(0)  # noqa: S311  reproducible
    return {
        **{name: start + unit * (n // len(unit.encode())) + end for name, (start, unit, end) in UNITS.items()},
        "random letters in one line": "".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=n)),
        "random punctuation": "".join(dice.choices("!?.,;:-_#*`~()[]{}<>|/\\\"'", k=n)),
        "link references, each another": "".join(f"[{number:06}]: b\n" for number in range(n // 12)),
        "brackets in brackets": "[" * (n // 2) + "]" * (n // 2),
        "nested quotes": "> " * min(10_000, n) + "deep",
        "nested lists": "".join("  " * min(level, 200) + "- x\n" for level in range(n // 404)),
    }


def survive(make: Callable[[], Splitter], text: str, limit: float) -> tuple[float, str]:
    """Split one text in a child process: (seconds, "" or what went wrong)."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)

    def child() -> None:
        splitter = make()
        splitter("# a\n\nwarm up\n")
        began = time.process_time()
        splitter(text)
        send.send(time.process_time() - began)

    process = context.Process(target=child)
    process.start()
    process.join(limit)
    if process.is_alive():
        process.kill()
        process.join()
        return limit, "hang"
    return (receive.recv(), "") if receive.poll() else (0.0, "crash")


def indexed(text: str) -> tuple[str, float, float]:
    """Index one document in a process of its own: how that ended, CPU seconds, and megabytes at most."""
    context = multiprocessing.get_context("spawn")  # a forked one would count the memory of all other texts
    receive, send = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as root:
        notes = Path(root, "notes")
        notes.mkdir()
        (notes / "warm.md").write_text("# A\n\nwarm up\n")
        Path(root, "page.md").write_text(text)
        process = context.Process(target=index_page, args=(notes, send))
        process.start()
        answer = receive.recv() if receive.poll(LIMIT) else ("no end", LIMIT, 0.0)
        process.kill()
        process.join()
    return answer


def index_page(notes: Path, send: Connection) -> None:
    """Index a folder, then the page beside it, and send what that took."""
    with ContextualIndex.open(notes, embed_model="none") as index:
        index.refresh()
        (notes.parent / "page.md").rename(notes / "page.md")
        began = time.process_time()
        report = index.refresh()
        seconds = time.process_time() - began
        page = index.documents().get("page.md")
        ended = "; ".join(map(str, report.failed)) or (f"{page.nodes:,} chunks" if page else "a problem")
        peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
        send.send((ended, seconds, int(peak.split()[1]) / 1024))


def main() -> None:
    """Run and print the Markdown of results/fuzz.md."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--megabytes", type=float, default=1.0)
    options.add_argument("--only", nargs="*", help="documents whose names begin so")
    given = options.parse_args()
    print(f"{machine()}, load {os.getloadavg()[0]:.1f}\n")
    rows = []
    for name, text in pathological(given.megabytes).items():
        if not given.only or name.startswith(tuple(given.only)):
            half, (ended, seconds, peak) = indexed(text[: len(text) // 2]), indexed(text)
            rows.append([name, f"{len(text.encode()) / 1e6:.1f}", half[1], seconds, f"{peak:.0f}", ended])
            print(rows[-1], file=sys.stderr)
    print(markdown_table(["document", "MB", "half of it, CPU s", "CPU s", "peak MiB", "ended"], rows))


if __name__ == "__main__":
    main()

"""What a refresh costs: seconds and texts embedded, as a share of indexing everything.

Real pages (the Kubernetes documentation, 1,568 of them), the real local embedding, real Chroma.

    python benchmarks/refresh.py                # all pages: a quarter of an hour on two cores
    python benchmarks/refresh.py --pages 200    # a part
    python benchmarks/refresh.py --tiny 100000  # as many tiny files, with vectors from a hash instead of a model's

Of tiny files each row is a process of its own, as a command is: what a user waits for who changed nothing, or who asks.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from common import machine, markdown_table
from scale import store_of

from llama_index_contextual.app.embeddings import LocalEmbedding
from llama_index_contextual.app.index import ContextualIndex, RefreshReport

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

DATA = Path(os.environ.get("LLAMA_INDEX_CONTEXTUAL_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
LONG = 20_000  # characters: a page with many sections


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the table."""

    what: str
    report: RefreshReport
    seconds: float


def longest(docs: Path) -> Path:
    """The longest page under 100 kB."""
    return max(
        (file for file in sorted(docs.rglob("*.md")) if file.stat().st_size < 5 * LONG), key=lambda f: f.stat().st_size
    )


def edit_sentence(docs: Path) -> None:
    """Insert a sentence in the middle of a long page, in the body of a section."""
    file = longest(docs)
    paragraphs = file.read_text().split("\n\n")
    middle = next(number for number in range(len(paragraphs) // 2, len(paragraphs)) if paragraphs[number][:1].isalpha())
    paragraphs[middle] = f"This sentence is new. {paragraphs[middle]}"
    file.write_text("\n\n".join(paragraphs))


def insert_section(docs: Path) -> None:
    """Insert a section at the top of a long page, after its front matter."""
    file = longest(docs)
    before, after = _split_front_matter(file.read_text())
    file.write_text(
        f"{before}## A new section\n\nIt says something that no other page says, at some length.\n\n{after}"
    )


def insert_line(docs: Path) -> None:
    """Insert a line in front matter: every chunk of a long page moves, no text changes."""
    file = longest(docs)
    text = file.read_text()
    file.write_text(text.replace("---\n", "---\nreviewed: yes\n", 1) if text.startswith("---\n") else f"\n{text}")


def edit_page(docs: Path) -> None:
    """Replace a whole page of middling length."""
    files = sorted(docs.rglob("*.md"), key=lambda file: (file.stat().st_size, file))
    file = files[len(files) // 2]
    words = file.read_text().split(" ")
    file.write_text(" ".join(f"{word}x" if number % 9 == 5 else word for number, word in enumerate(words)))


def rename_tenth(docs: Path) -> None:
    """Give every tenth page another name."""
    for file in sorted(docs.rglob("*.md"))[::10]:
        file.rename(file.with_name(f"renamed-{file.name}"))


def _split_front_matter(text: str) -> tuple[str, str]:
    if not text.startswith("---\n"):
        return "", text
    end = text.index("\n---\n", 4) + len("\n---\n")
    return text[:end] + "\n", text[end:].lstrip("\n")


STEPS: dict[str, Callable[[Path], None]] = {
    "nothing changed": lambda _docs: None,
    "a line inserted above all chunks of a long page": insert_line,
    "a sentence inserted in a long page": edit_sentence,
    "a section inserted at the top of a long page": insert_section,
    "one page edited throughout": edit_page,
    "10 % of the pages renamed": rename_tenth,
}


def measure(index: ContextualIndex, what: str) -> Line:
    """One refresh, on the clock."""
    started = time.perf_counter()
    report = index.refresh(show_progress=sys.stderr.isatty())
    line = Line(what, report, time.perf_counter() - started)
    print(f"{what}: {report}", file=sys.stderr)
    return line


def run(source: Path, folder: Path, context: str, pages: int | None) -> list[Line]:
    """Index a copy of the pages, and refresh it after each change."""
    docs = folder / f"docs-{context}"
    shutil.rmtree(docs, ignore_errors=True)
    for file in sorted(source.rglob("*.md"))[:pages]:
        target = docs / file.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    with ContextualIndex.open(docs, context=context) as index:
        lines = [measure(index, "everything, for the first time")]
        for what, change in STEPS.items():
            change(docs)
            lines.append(measure(index, what))
        verification = index.verify()
        assert verification.ok, str(verification)
    return lines


def table(lines: list[Line]) -> str:
    """The figures, in Markdown."""
    full = lines[0]
    rows = [
        "| | seconds | share | embedded | share | vectors reused | only lines changed |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for line in lines:
        report = line.report
        rows.append(
            f"| {line.what} | {line.seconds:.2f} | {line.seconds / full.seconds:.2%} | {report.embedded:,} "
            f"| {report.embedded / max(full.report.embedded, 1):.2%} | {report.reused:,} | {report.relocated:,} |"
        )
    return "\n".join(rows)


class HashedEmbedding(LocalEmbedding):
    """Vectors from a hash of a text's word pieces, as long as the local model's: for what a model would not change."""

    def _run(self, windows: list[list[int]]) -> NDArray[np.float32]:
        vectors = [np.random.default_rng(window).normal(size=384) for window in windows]
        return np.array([vector / np.linalg.norm(vector) for vector in vectors], np.float32)


def write_tiny(docs: Path, count: int) -> None:
    """Write files of a heading and a sentence, a hundred in a folder."""
    for number in range(count):
        file = docs / f"{number // 100:04}" / f"{number:06}.md"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"# Note {number}\n\nThe lease of shard {number % 997} moved to node {number % 89}.\n")


TINY: dict[str, Callable[[ContextualIndex], object]] = {
    "everything, for the first time": lambda index: index.refresh(),
    "nothing changed": lambda index: index.refresh(),
    "a first question": lambda index: index.as_retriever(5).retrieve("Which node holds the lease of shard 12?"),
}


def tiny_row(docs: Path, what: str, store: str) -> dict[str, float]:
    """Do one thing in this process, and say what it took."""
    busy, started = time.process_time(), time.perf_counter()
    with ContextualIndex.open(docs, embed_model=HashedEmbedding(), vector_store=store) as index:
        TINY[what](index)  # perhaps no hits: by vectors that mean nothing, nothing is relevant
    seconds, cpu = time.perf_counter() - started, time.process_time() - busy
    return {"seconds": seconds, "cpu": cpu, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def tiny_table(docs: Path, count: int, store: str) -> str:
    """Do each thing in a process of its own; what ran before does not help."""
    rows = []
    write_tiny(docs, count)
    for what in TINY:
        command = [sys.executable, __file__, "--row", what, "--folder", str(docs), "--store", store]
        run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603
        took = json.loads(run.stdout.splitlines()[-1])
        print(f"{what}: {took}", file=sys.stderr, flush=True)
        rows.append([what, f"{took['seconds']:.1f}", f"{took['cpu']:.1f}", f"{took['peak']:.0f}"])
    return markdown_table(["", "seconds", "CPU seconds", "peak MiB"], rows)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=None, help="only so many")
    parser.add_argument("--context", nargs="+", default=["headings"], help="headings, off")
    parser.add_argument("--tiny", type=int, metavar="FILES", help="so many tiny files instead")
    parser.add_argument("--store", default="chroma", help="of the tiny files, as scale.py has it")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--row", choices=list(TINY), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        print(json.dumps(tiny_row(options.folder, options.row, options.store)))
        return
    if options.tiny:
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as data:
            docs = options.folder or Path(folder)
            with store_of(options.store, Path(data)) as store:
                found = tiny_table(docs, options.tiny, store)
            print(f"{machine()}\n\n{options.tiny:,} tiny files, {options.store}\n\n{found}")
        return
    source = DATA / "kubernetes-docs" / "corpus"
    if not source.is_dir():
        sys.exit(f"{source} is absent: set LLAMA_INDEX_CONTEXTUAL_DATA")
    print(machine())
    for context in options.context:
        with tempfile.TemporaryDirectory() as folder:
            lines = run(source, Path(folder), context, options.pages)
        first = lines[0].report
        print(f"\ncontext={context!r}: {len(first.added):,} pages, {first.chunks:,} chunks\n\n{table(lines)}")


if __name__ == "__main__":
    main()

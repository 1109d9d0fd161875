"""How chunkers treat real Markdown: what they split, lose, overflow, how fast they are, and what hurts them.

    python benchmarks/chunking.py [--only NAME ...] [--quick]

Every splitter gets 400 cl100k tokens and no overlap, on ``markdown`` and ``kubernetes-docs`` of the data folder.
Compare ratios within one run: absolute speeds move with the machine. Fences and tables are markdown-it-py's, not ours.
The peers come with ``pip install chonkie langchain-text-splitters semantic-text-splitter``.

split %: fences and tables of at most 400 tokens whose lines are in no single chunk. over %: chunks of more than 400
tokens. offsets %: ``text[start:end] == chunk``. lost %: words that are in no chunk (front matter aside). orphan %:
chunks, but a file's last, that end in a heading. tiny %: under 40 tokens. The last column has the inputs of
``hostile_inputs.py``, one megabyte each, that a splitter did not survive for 20 seconds.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chunkers import SPLITTERS, count
from common import machine, markdown_table
from hostile_inputs import pathological, survive
from markdown_it import MarkdownIt

from llama_index_contextual.chunking import read_front_matter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chunkers import Splitter

SIZE: Final = 400
TINY: Final = 40
SECONDS: Final = 20
DATA: Final = Path(
    os.environ.get("LLAMA_INDEX_CONTEXTUAL_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")
)
PARSER: Final = MarkdownIt("commonmark").enable("table").disable(["inline"])


def speed(texts: Sequence[str], splitter: Splitter) -> float:
    """Megabytes of UTF-8 a CPU second, the better of two passes."""
    best = float("inf")
    for _ in range(2):
        began = time.process_time()
        for text in texts:
            splitter(text)
        best = min(best, time.process_time() - began)
    return sum(len(text.encode()) for text in texts) / 1e6 / best


def blocks(text: str) -> list[str]:
    """The fences and tables that fit into a chunk."""
    lines = text.splitlines(keepends=True)
    tokens = [token for token in PARSER.parse(text) if token.type in {"fence", "table_open"} and token.map]
    found = ["".join(lines[slice(*token.map)]).strip() for token in tokens if token.map]
    return [block for block in found if count(block) <= SIZE]


def defects(texts: Sequence[str], splitter: Splitter) -> Counter[str]:
    """How often something is wrong, by its name, and the number of chunks, blocks and words."""
    total: Counter[str] = Counter()
    for text in texts:
        chunks = [(chunk, start) for chunk, start in splitter(text) if chunk.strip()]
        plain = [" ".join(chunk.split()) for chunk, _ in chunks]
        found = [" ".join(block.split()) for block in blocks(text[read_front_matter(text).end :])]
        words = Counter(text[read_front_matter(text).end :].split())
        lost = words - Counter(" ".join(plain).split())
        last_lines = [chunk.rstrip().rpartition("\n")[2] for chunk, _ in chunks[:-1]]
        total.update(
            chunks=len(chunks),
            blocks=len(found),
            words=words.total(),
            split=sum(not any(block in chunk for chunk in plain) for block in found),
            over=sum(count(chunk) > SIZE for chunk, _ in chunks),
            offsets=sum(start is not None and text.startswith(chunk, start) for chunk, start in chunks),
            lost=lost.total(),
            orphan=sum(line.startswith("#") and " " in line for line in last_lines),
            tiny=sum(count(chunk) < TINY for chunk, _ in chunks),
        )
    return total


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--only", nargs="*", choices=list(SPLITTERS), default=list(SPLITTERS))
    arguments.add_argument("--quick", action="store_true", help="every tenth file, and no inputs meant to hurt")
    given = arguments.parse_args()
    paths = [path for name in ("markdown", "kubernetes-docs") for path in sorted((DATA / name).rglob("*.md"))]
    texts = [path.read_bytes().decode() for path in paths[:: 10 if given.quick else 1]]
    rows = []
    for name in given.only:
        splitter = SPLITTERS[name](SIZE)
        rate, found = speed(texts, splitter), defects(texts, splitter)
        hostile = {} if given.quick else pathological()
        bad = [f"{title} ({wrong})" for title, text in hostile.items()
               if (wrong := survive(lambda name=name: SPLITTERS[name](SIZE), text, SECONDS)[1])]  # fmt: skip
        shares = [("split", "blocks"), ("over", "chunks"), ("offsets", "chunks"), ("lost", "words"),
                  ("orphan", "chunks"), ("tiny", "chunks")]  # fmt: skip
        percent = [f"{100 * found[part] / max(1, found[whole]):.2f}" for part, whole in shares]
        rows.append([name, f"{rate:.1f}", found["chunks"], *percent, ", ".join(bad) or "–"])
    header = ["", "MB/s", "chunks", *(f"{name} %" for name in ("split", "over", "offsets", "lost", "orphan", "tiny"))]
    print(f"{machine()}; {len(texts)} files, {SIZE} cl100k tokens, no overlap.\n")
    print(markdown_table([*header, "hangs, crashes"], rows))


if __name__ == "__main__":
    main()

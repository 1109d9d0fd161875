"""How chunkers treat real Markdown: what they split, lose, overflow, and how fast they are.

    python benchmarks/chunking.py [--only NAME ...] [--output benchmarks/results/chunking.md]

Every splitter gets 400 cl100k tokens and no overlap, on ``markdown`` and ``kubernetes-docs`` of the data folder.
Compare ratios within one run: absolute speeds move with the machine. The atoms (fences, tables), paragraphs and
headings that the metrics speak of are markdown-it-py's, not our own parser's. Needs the ``bench`` extra.

split %: atoms of at most 400 tokens whose letters and digits are in no single chunk. mid-sentence %: chunks that start
strictly inside a paragraph, not after the end of a sentence. over %: chunks of more than 400 tokens. offsets %:
``text[start:end] == chunk``. lost %: words that are in no chunk (front matter aside). orphan %: chunks, but a
file's last, that end in a heading. cross %: chunks with a heading after body text. tiny %: under 40 tokens.
ΔRSS: peak less warm.
"""

from __future__ import annotations

import argparse
import datetime as dt
import multiprocessing
import os
import platform
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from chunk_defects import facts_of, measure
from chunkers import SIZE, SPLITTERS
from hostile_inputs import pathological, survive

from llama_index_contextual.text.tokens import tiktoken_cl100k

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator, Sequence

    from chunkers import Splitter

# Not taken from datasets.py, whose LlamaIndex would lie in the memory of every splitter that is measured here.
DATA: Final = Path(
    os.environ.get("LLAMA_INDEX_CONTEXTUAL_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")
)


def speed(texts: Sequence[str], make: Callable[[], Splitter]) -> tuple[float, float]:
    """MB of UTF-8 a CPU second (the better of two passes), and the growth of the resident set, in MB.

    Each pass has a new splitter, so that none profits from words it remembers.
    """
    splitter = make()
    for text in texts[:20]:
        splitter(text)
    size = sum(len(text.encode()) for text in texts) / 1e6
    warm = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    best = float("inf")
    for _ in range(2):
        splitter = make()
        began = time.process_time()
        for text in texts:
            splitter(text)
        best = min(best, time.process_time() - began)
    return size / best, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - warm) / 1024


def in_child(function: Callable[..., Any], *args: Any) -> Any:
    """Run in a fresh child, so that one splitter's memory is not another's."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=lambda: send.send(function(*args)))
    process.start()
    send.close()  # the child has its own: when that closes too, nothing is left to wait for
    try:
        result = receive.recv()
    except EOFError:
        sys.exit("A splitter failed, as said above. Cure: pip install -e '.[bench]', or leave it out with --only")
    process.join()
    return result


def corpus() -> list[str]:
    """All Markdown of the two data sets."""
    texts = []
    for name in ("markdown", "kubernetes-docs"):
        folder = DATA / name
        if not folder.is_dir():
            sys.exit(f"data set {name!r} is absent: {folder} (set LLAMA_INDEX_CONTEXTUAL_DATA)")
        texts += [path.read_bytes().decode("utf-8") for path in sorted(folder.rglob("*.md"))]
    return texts


def percent(part: float, whole: float) -> str:
    """Two digits, or a dash for none."""
    return f"{100 * part / whole:.2f}" if whole else "–"


def report(names: Sequence[str], *, hostile: bool) -> Iterator[str]:
    """The lines of the report."""
    texts = corpus()
    facts = [facts_of(text) for text in texts]
    size = sum(len(text.encode()) for text in texts) / 1e6
    yield "# Chunkers on real Markdown"
    yield ""
    yield f"{dt.datetime.now(tz=dt.timezone.utc):%Y-%m-%d}, {platform.machine()}, {os.cpu_count()} cores, "
    yield f"CPython {platform.python_version()}; {len(texts)} files, {size:.1f} MB; {SIZE} cl100k tokens, overlap 0."
    yield f"Fences within the budget: {sum(len(f.fences) for f in facts)}, tables: {sum(len(f.tables) for f in facts)}."
    yield "`python benchmarks/chunking.py` prints this. Speeds are the machine's; ratios to the pair are what counts."
    yield ""
    yield (
        "| | MB/s | × pair | ΔRSS MB | fence split % | table split % | mid-sentence % | over % | path | offsets % "
        "| lost % |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    extra = ["", "| | chunks | orphan % | cross % | tiny % | tiny, not whole files % | hangs, crashes of 20 |"]
    extra.append("|---|---|---|---|---|---|---|")
    speeds = {name: in_child(speed, texts, SPLITTERS[name][0]) for name in names}
    pair = speeds.get("LlamaIndex Markdown + Sentence", (float("nan"), 0.0))[0]
    for name in names:
        make, path = SPLITTERS[name]
        rate, memory = speeds[name]
        m: Counter[str] = in_child(measure, facts, make())
        n = m["chunks"]
        yield (
            f"| {name} | {rate:.1f} | {rate / pair:.1f} | {memory:.0f} | {percent(m['fence split'], m['fence'])} | "
            f"{percent(m['table split'], m['table'])} | {percent(m['mid'], n)} | {percent(m['over'], n)} | "
            f"{'yes' if path else 'no'} | {percent(m['offsets'], n)} | {percent(m['lost'], m['words'])} |"
        )
        inputs = pathological() if hostile else {}
        bad = [f"{w} ({title})" for title, t in inputs.items() if (w := survive(make, t, 20)[1])]
        extra.append(
            f"| {name} | {n} | {percent(m['orphan'], n)} | {percent(m['cross'], n)} | {percent(m['tiny'], n)} | "
            f"{percent(m['tiny, of several'], n)} | {len(bad) if hostile else '–'} {'; '.join(bad)} |"
        )
    yield from extra
    if hostile:
        yield from growth()
    yield from ceiling(texts)


def growth() -> Iterator[str]:
    """CPU seconds of ours on the inputs meant to hurt, at 1, 2, 4 and 8 MB."""
    yield ""
    yield "## Ours on inputs meant to hurt: CPU seconds at 1, 2, 4, 8 MB"
    yield ""
    yield "| | 1 | 2 | 4 | 8 |"
    yield "|---|---|---|---|---|"
    make = SPLITTERS["ours, exact tokens"][0]
    inputs = {size: pathological(size) for size in (1, 2, 4, 8)}
    for title in inputs[1]:
        cells = []
        for given in inputs.values():
            seconds, wrong = survive(make, given[title], 60)
            cells.append(wrong or f"{seconds:.2f}")
        yield f"| {title} | {' | '.join(cells)} |"


def ceiling(texts: Sequence[str]) -> Iterator[str]:
    """What tokenizer and parser alone allow."""
    from llama_index_contextual.chunking import markdown

    def rate(make: Callable[[], Callable[[str], object]]) -> tuple[float, float]:
        return in_child(speed, texts, make)  # type: ignore[no-any-return]

    def events(text: str) -> int:
        return sum(1 for _ in markdown._PARSER.events_with_range(text))  # noqa: SLF001

    tokens, _ = rate(lambda: tiktoken_cl100k().encode_ordinary)
    parsed, memory = rate(lambda: events)
    yield ""
    yield "## The ceiling"
    yield ""
    both = 1 / (1 / tokens + 1 / parsed)
    yield f"cl100k alone {tokens:.1f} MB/s by tiktoken; pyromark's events {parsed:.1f} MB/s and ΔRSS {memory:.0f} MB;"
    yield f"one after the other {both:.1f} MB/s."


def main() -> None:
    """Measure, print, and write."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--only", nargs="*", choices=list(SPLITTERS), default=list(SPLITTERS))
    arguments.add_argument("--quick", action="store_true", help="leave out the inputs meant to hurt")
    arguments.add_argument("--output", type=Path)
    given = arguments.parse_args()
    lines = []
    for line in report(given.only, hostile=not given.quick):
        print(line, flush=True)
        lines.append(line)
    if given.output:
        given.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

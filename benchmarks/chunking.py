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
import re
import resource
import sys
import time
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from chunkers import SIZE, SPLITTERS, count
from markdown_it import MarkdownIt

from llama_index_contextual.markdown import read_front_matter
from llama_index_contextual.markdown.byte_pairs import tiktoken_cl100k, with_gigatoken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from chunkers import Splitter

DATA: Final = Path(
    os.environ.get("LLAMA_INDEX_CONTEXTUAL_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")
)
_WORD: Final = re.compile(r"\w+")
_NOT_ALNUM: Final = re.compile(r"[\W_]+")
_SENTENCE_END: Final = re.compile(r"[.!?…。！？:;][\s\"'”’»)\]}*_`~]*$")


# --- what is measured ----------------------------------------------------------------------------------------------


@dataclass
class Facts:
    """What markdown-it-py says of one document, in character offsets."""

    text: str
    fences: list[str] = field(default_factory=list)  # alphanumeric content of those within the budget
    tables: list[str] = field(default_factory=list)
    paragraphs: list[tuple[int, int]] = field(default_factory=list)
    headings: list[tuple[int, int]] = field(default_factory=list)
    words: Counter[str] = field(default_factory=Counter)
    body: int = 0


def facts_of(text: str) -> Facts:
    """Parse one document (front matter blanked out)."""
    body = read_front_matter(text).end
    lines = text.splitlines(keepends=True) if "\r" in text else re.findall(r"[^\n]*\n|[^\n]+", text)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    facts = Facts(text, body=body, words=Counter(_WORD.findall(text[body:])))
    blanked = "\n" * text.count("\n", 0, body) + text[body:]
    parser = MarkdownIt("commonmark").enable("table").disable(["inline"])
    for token in parser.parse(blanked):
        if token.map is None:
            continue
        start, end = starts[token.map[0]], starts[min(token.map[1], len(lines))]
        if token.type in {"fence", "table_open"} and count(text[start:end].strip()) <= SIZE:
            content = _NOT_ALNUM.sub("", text[start:end])
            (facts.fences if token.type == "fence" else facts.tables).append(content)
        elif token.type == "paragraph_open":
            facts.paragraphs.append((start, end))
        elif token.type == "heading_open" and token.level == 0:
            facts.headings.append((start, end))
    return facts


def measure(facts: Sequence[Facts], splitter: Splitter) -> Counter[str]:
    """Add up the defects over all documents."""
    total: Counter[str] = Counter()
    for doc in facts:
        chunks = splitter(doc.text)
        texts = [text for text, _ in chunks]
        total["chunks"] += len(chunks)
        total["over"] += sum(count(text) > SIZE for text in texts)
        total["tiny"] += sum(count(text) < 40 for text in texts)
        total["tiny, of several"] += sum(count(text) < 40 for text in texts) if len(texts) > 1 else 0
        total["offsets"] += sum(at is not None and doc.text[at : at + len(text)] == text for text, at in chunks)
        squeezed = [_NOT_ALNUM.sub("", text) for text in texts]
        for name, atoms in (("fence", doc.fences), ("table", doc.tables)):
            total[name] += len(atoms)
            total[f"{name} split"] += sum(not any(atom in chunk for chunk in squeezed) for atom in atoms)
        words: Counter[str] = Counter()
        for text in texts:
            words.update(_WORD.findall(text))
        total["words"] += sum(doc.words.values())
        total["lost"] += sum((doc.words - words).values())
        _positions(doc, texts, total)
    return total


def _positions(doc: Facts, texts: Sequence[str], total: Counter[str]) -> None:
    paragraph_starts = [start for start, _ in doc.paragraphs]
    heading_starts = [start for start, _ in doc.headings]
    search = 0
    for number, text in enumerate(texts):
        stripped = text.strip()
        start = doc.text.find(stripped, search)
        if start < 0 or not stripped:
            continue  # rewritten text has no position: it cannot be judged
        search, end = start + 1, start + len(stripped)
        inside = bisect_right(paragraph_starts, start) - 1
        if inside >= 0 and doc.paragraphs[inside][0] < start < doc.paragraphs[inside][1]:
            before = doc.text[doc.paragraphs[inside][0] : start]
            total["mid"] += bool(before.strip()) and not _SENTENCE_END.search(before)
        last = bisect_right(heading_starts, end - 1) - 1
        if last >= 0 and doc.headings[last][0] < end <= doc.headings[last][1] and number < len(texts) - 1:
            total["orphan"] += 1
        crossing = [h for h in heading_starts if start < h < end]
        total["cross"] += any(_has_body(doc, start, heading) for heading in crossing)


def _has_body(doc: Facts, start: int, heading: int) -> bool:
    text = doc.text[max(start, doc.body) : heading]
    for low, high in doc.headings:
        if start <= low < heading:
            text = text.replace(doc.text[low:high], "", 1)
    return bool(text.strip())


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


# --- inputs meant to hurt ------------------------------------------------------------------------------------------


def pathological(megabytes: int = 1) -> dict[str, str]:
    """Twenty inputs of about so many megabytes."""
    n = megabytes * 1_000_000
    return {
        "words on one line": "word " * (n // 5),
        "sentences on one line": "This is a sentence. " * (n // 20),
        "CJK on one line": "漢字かな。" * (n // 15),
        "no space at all": "abcdefghij" * (n // 10),
        "nested quotes": "> " * min(10_000, n) + "deep",
        "nested lists": "".join("  " * min(level, 200) + "- x\n" for level in range(n // 404)),
        "headings only": "# h\n" * (n // 4),
        "backticks": "`" * (n // 5),
        "unclosed fence": "```python\n" + "x = 1\n" * (n // 6),
        "unclosed comments": "<!-- a " * (n // 7),
        "unclosed links": "[a](" * (n // 4),
        "unclosed emphasis": "*a **a " * (n // 7),
        "20k-row table": "| a | b |\n|---|---|\n" + "| cell | cell of a row with words |\n" * (n // 36),
        "2k-column table": f"|{'c|' * 2000}\n|{'-|' * 2000}\n" + f"|{'x|' * 2000}\n" * (n // 4002),
        "blank lines": "\n" * n + "x",
        "spaces": " " * n + "x",
        "NUL and lone CR": "a\0b\rc d\r\r" * (n // 10),
        "deep list items": "* a\n" * (n // 4),
        "reference definitions": "[a]: /b\n" * (n // 8),
        "emoji": "😀" * (n // 4),
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


def in_child(function: Callable[..., Any], *args: Any) -> Any:
    """Run in a fresh child, so that one splitter's memory is not another's."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=lambda: send.send(function(*args)))
    process.start()
    result = receive.recv()
    process.join()
    return result


# --- the report ----------------------------------------------------------------------------------------------------


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
    from llama_index_contextual.markdown import blocks

    def seconds(work: Callable[[str], object]) -> float:
        began = time.process_time()
        for text in texts:
            work(text)
        return time.process_time() - began

    size = sum(len(text.encode()) for text in texts) / 1e6
    tokens = seconds(tiktoken_cl100k().encode_ordinary)
    fast = seconds(with_gigatoken()[0])
    events = seconds(lambda text: sum(1 for _ in blocks._PARSER.events_with_range(text)))  # noqa: SLF001
    yield ""
    yield "## The ceiling"
    yield ""
    yield f"cl100k alone {size / tokens:.1f} MB/s by tiktoken, {size / fast:.1f} by gigatoken; pyromark's events alone "
    yield f"{size / events:.1f} MB/s; gigatoken and events one after the other {size / (fast + events):.1f} MB/s."


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

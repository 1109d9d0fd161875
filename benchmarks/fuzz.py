"""Feed made-up hostile input to every reader of this package, and report what breaks a promise.

Nothing should.

Each input is made from the seed and its number alone, so that a finding comes back by naming both.
Markdown documents go through parser and contexts, messages through gate, queries and digest, then
answers of a language model. A text that takes longer than others of its size is read again four
times as long: its time may grow with its length and not with the square.

    python benchmarks/fuzz.py --seconds 30                  # all kinds in turn python
    benchmarks/fuzz.py --documents 1000000           # so many documents, and a share of the others
    python benchmarks/fuzz.py --seed 7 --kinds messages --first 12345 --documents 1     # one of
    them again
"""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import itertools
import logging
import os
import random
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from common import command_line, machine, markdown_table
from llama_index.core import Document
from llama_index.core.schema import MetadataMode, TextNode

from llama_index_contextual import ContextualNodePostprocessor, HeadingAwareMarkdownNodeParser
from llama_index_contextual.context.answers import MAX_CHARS, refusal, split_answers
from llama_index_contextual.memory.digest import QUOTE, MemoryEntry, visible
from llama_index_contextual.memory.gate import MAX_QUERY, clean_message, gate, read_message
from llama_index_contextual.node_parser.front_matter import read_front_matter
from llama_index_contextual.node_parser.packing import ChunkSettings, split_markdown
from llama_index_contextual.retrievers.query import parse_query
from llama_index_contextual.retrievers.query_dates import lexicon
from llama_index_contextual.retrievers.sessions import sentences_of
from llama_index_contextual.utils import metadata
from llama_index_contextual.utils.text import replace_surrogates, short_hash
from llama_index_contextual.utils.tokens import CHARS_PER_TOKEN, make_scale

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import growth  # the tests' own

SLOW = 4  # times the usual time for its length: then growth is measured
LOOK_AT_GROWTH = 5000  # and of every so many
FRAGMENTS = (
    # words, in scripts that have spaces and that have none; marks that combine, join, turn round or
    # hide
    "alpha", "beta.", "Gamma?", "delta", " ", "  ", "\t", "é", "e\u0301", "\u0301\u0316", "漢字。",
    "か？", "คำไทย",
    "မြန်မာ", "العربية", "עברית", "\u202e", "\u2066", "\u200d", "\ufe0f",
    "\U0001f468\u200d\U0001f469", "😀",
    "\u3000", "\xa0", "\u3164", "\u2028", "\x85", "\x0b", "\x0c", "\x1b[31m", "\0", "\ufeff",
    "\ud800",
    "\udfff", "\U000e0041", "ﷺ", "ß", "İ", "ǆ", "1.000,50", "2026-11-22", "2026-02-30", "yesterday",
    "/etc/hosts", "/help", "a@b.c", "https://x.y/z?q=[a](b)", "snake_case", "camelCase", "path:a",
    '"quoted',
    "-not", "Dr. No", "z. B. so", "…", "' OR 1=1", "{{% x %}}", "\\",
    # blocks
    "\n", "\n\n", "\r\n", "\r", "\n \n", "# ", "## Title", "###### six", "####### seven", "\n===\n",
    "\n---\n",
    "***", "___", "- ", "* a\n", "+ ", "1. ", "999999999. ", "- [ ] ", "> ", "> > ", ">", "    ",
    "\t- ", "```",
    "```py\n", "~~~", "````\n", "`", "``a`b``", "$$\n", "$x$", "| a | b |\n|---|---|\n", "|-|",
    "| 1 | 2 |\n",
    "|", "[^1]: ", "[^1]", "[a]: /b\n", "[[w|x]]", "[", "](", "![a](", "<", "<!--", "-->",
    "<details>",
    "</details>\n", "<script>", "<a b='", "<?", "<![CDATA[", "&amp;", "&#0;", "%%", "{/*", "*/}",
    ":::",
    ":::note\n", "^block", "#tag", "**", "*", "__", "~~", "==", "\\\n",
    # front matter, good and bad
    "---\n", "---\ntitle: x\n---\n", "+++\ntitle = 'x'\n+++\n", "title: ", "tags: [a, b",
    "date: 2026-13-45\n",
    "---\na: &x [*x]\n---\n", "date: 2026-04-09\n", "---\ntitle: \ud83d\n---\n", "? ",
    "!!python/object:os.system x\n", "%YAML 1.1\n", "{", "}", ": ",
    # what an agent's digest, or a model's answer, is made of
    "## Relevant prior context\n", "- [a.md#L1] ", "1: ", "2. ", "1:1:1:", "Chunk 1: ",
    '{"context": "',
    "<think>", "</think>", "Here is the context: ", "I'm sorry", "This part of the guide says how",
    "</chunk>",
    "context of chunk 1",
)  # fmt: skip
LONG = (
    "a", " ", "\n", "`", "#", "> ", "- ", "|", "[", "*", "漢", "\u0301", "\u200d", "ab ", "<",
    "a. ",
    "0", "\t", "_",
    "\\",
)  # fmt: skip
TOKENIZERS: tuple[Any, ...] = ("cl100k", "minilm", str.split)
CONTEXTS = ContextualNodePostprocessor("headings")
TODAY = dt.date(2026, 11, 22)


class Kind(NamedTuple):
    """One kind of input: how it is used, once in so many documents, and what is timed of it."""

    use: Callable[[str], None]
    share: int = 1
    timed: Callable[[str], Callable[[str], object]] | None = None


def text(dice: random.Random) -> str:
    """Fragments in a row, now and then any character, and seldom a long run of one."""
    parts = dice.choices(FRAGMENTS, k=dice.randint(1, 20))
    if dice.random() < 0.005:
        parts.insert(dice.randrange(len(parts)), dice.choice(LONG) * dice.choice((100, 1000, 3000)))
    if dice.random() < 0.2:
        parts.insert(dice.randrange(len(parts)), chr(dice.randrange(0x110000)))
    return dice.choice(("", "", " ", "\n")).join(parts)


def settings_of(source: str) -> dict[str, Any]:
    """One of sixty settings, all tokenizers among them, small, so that a short text is cut.

    Drawn from the text.
    """
    choice = int(short_hash(source), 16) % 60
    size = (3, 12, 40, 120, 400)[choice % 5]
    return {
        "chunk_size": size,
        "chunk_overlap": size // (2, 5, 1000)[choice % 3],
        "min_chunk_size": size // 8,
        "min_section_size": (0, size // 8, size // 2, size)[choice % 4],
        "tokenizer": TOKENIZERS[choice % len(TOKENIZERS)],
        "keep_blocks": choice % 7 == 0,
    }


def use_document(source: str) -> None:
    """Cut it, and check the rules about text, lines, budget, ids and views."""
    clean, _ = replace_surrogates(source)
    body = check_spans(clean, ChunkSettings(**settings_of(source)))
    nodes = cut(source)(source)
    check_nodes(clean, nodes, body)
    for node in nodes:
        context = node.metadata.get(metadata.CONTEXT, "")
        context.encode()
        promise(len(context) <= 4 * metadata.MOST_CHARS, "a context is long")
        promise(
            node.get_content(metadata_mode=MetadataMode.NONE) == node.text,
            "a context shows in the text",
        )


def cut(source: str) -> Callable[[str], list[Any]]:
    """Cuts texts, and makes contexts, with the settings of this one."""
    parser = HeadingAwareMarkdownNodeParser(**settings_of(source))
    return lambda text: list(
        CONTEXTS(parser([Document(text=text, metadata={"path": "notes/a.md"})]))
    )


def check_spans(clean: str, settings: ChunkSettings) -> int:
    """Check that spans are slices within the budget that cover the text, with true lines.

    Return where the body begins.
    """
    spans = split_markdown(clean, settings=settings)
    scale = make_scale(clean, settings.tokenizer)
    body = read_front_matter(clean).end
    covered = bytearray(len(clean))
    before, last = -1, 0
    for span in spans:
        chunk = clean[span.start : span.end]
        promise(
            bool(chunk.strip()) and chunk == chunk.rstrip(),
            "a chunk is blank or ends in white space",
        )
        promise(span.start + span.overlap > before, "chunks are not in their order")
        promise(
            not span.overlap or span.start + span.overlap <= last + 200,
            "overlap is not of the chunk before",
        )
        before, last = span.start + span.overlap, span.end
        covered[span.start : span.end] = b"x" * len(chunk)
        promise(span.tokens == scale.exact(span.start, span.end), "tokens are counted wrong")
        promise(
            span.tokens <= max(settings.hard_limit, 4), "a chunk exceeds the cap"
        )  # one letter may be four tokens
        letters = sum(map(len, chunk.split()))
        promise(
            letters <= max(settings.hard_limit, 4) * CHARS_PER_TOKEN, "a chunk has too many letters"
        )
    offset = covered.find(0, body)
    while offset >= 0:
        promise(clean[offset].isspace() or clean[offset] == "\ufeff", "a character is in no chunk")
        offset = covered.find(0, offset + 1)
    return body


def check_nodes(clean: str, nodes: list[Any], body: int) -> None:
    """Check that nodes are chained slices with ids of their own and small metadata."""
    promise(len({node.node_id for node in nodes}) == len(nodes), "two chunks have one id")
    promise(not nodes or nodes[0].prev_node is None, "the first chunk follows another")
    for node, following in zip(nodes, [*nodes, None][1:], strict=True):
        promise(node.text == clean[node.start_char_idx : node.end_char_idx], "a chunk is no slice")
        promise(
            (node.next_node and node.next_node.node_id) == (following and following.node_id),
            "the chain is broken",
        )
        for key, value in node.metadata.items():
            promise(isinstance(value, str | int | float), f"{key} is neither text nor number")
            promise(
                len(str(value).encode()) <= 4 * (1000 if key == metadata.FRONT_MATTER else 300),
                f"{key} is long",
            )
        if day := node.metadata.get(metadata.DATE):
            dt.date.fromisoformat(day)
    promise(bool(nodes) or not clean[body:].replace("\ufeff", "").strip(), "a text has no chunk")


# Messages: gate, queries, digest


def use_message(message: str) -> None:
    """Ask the gate, read it, and quote it in a digest."""
    words = lexicon()
    gate(message, words)
    promise(len(clean_message(message)) <= MAX_QUERY, "a query is long")
    for text in (
        (asked := read_message(message, words, TODAY)).text,
        asked.subject,
        *sentences_of(asked.text),
    ):
        parse_query(text)
    shown = visible(message)
    promise(visible(shown) == shown, "to show twice changes the text")
    promise(
        not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", shown),
        "a control character",
    )
    node = TextNode(
        text="", metadata={"path": message[:40], metadata.START_LINE: 1, metadata.END_LINE: 2}
    )
    block = MemoryEntry(node, 1.0, snippet=shown).block
    block.encode()
    first, *lines = block.splitlines()
    citation = first[2 : first.find("]") + 1]
    promise(first.startswith("- [") and citation.count("[") == 1, "a citation that is not ours")
    promise(citation.endswith("#L1-L2]"), "a citation that ends early")
    promise(
        all(line.startswith(QUOTE.rstrip()) for line in lines), "a line of a note is not marked"
    )
    promise(len(lines) <= shown.count("\n"), "something else ends a line")


# Answers of a language model


def use_answer(answer: str) -> None:
    """Read it for one chunk and for three, and check that what is taken fits on one line."""
    for count in (1, 3):
        for number, context in split_answers(answer, count).items():
            promise(1 <= number <= count, "a number that was not asked for")
            promise(0 < len(context) <= MAX_CHARS, "a context is empty or long")
            context.encode()
            promise(
                len(context.splitlines()) == 1 and "\0" not in context,
                "a context has several lines",
            )
            reason = refusal(
                context,
                "The default is 60.",
                "# Gateway\n\nThe default is 60.",
                "Write one sentence.",
            )
            promise(reason is None or "\n" not in reason, "a refusal has several lines")


def promise(holds: bool, otherwise: str) -> None:
    """Raise an error where a promise does not hold."""
    if not holds:
        raise AssertionError(otherwise)


KINDS = {
    "documents": Kind(use_document, 1, cut),
    "messages": Kind(use_message, 10, lambda _: use_message),
    "answers": Kind(use_answer, 10, lambda _: use_answer),
}


def grows_too_fast(work: Callable[[str], object], source: str) -> bool:
    """Return whether four times the text takes more than nine times as long.

    Quadratic work would take sixteen times as long.
    """
    short = source * max(1, 2000 // len(source))
    work(short)
    return growth.grows_too_fast(work, short, short * growth.FACTOR, noise=0.09)


@dataclass(slots=True)
class Tally:
    """What became of one kind.

    How many inputs, processor time, letters, and an input by what was wrong.
    """

    done: int = 0
    seconds: float = 0.0
    letters: int = 0
    findings: dict[str, tuple[int, str]] = field(default_factory=dict)


def made(seed: int, kind: str, number: int) -> str:
    """Return the input of a seed, a kind and a number."""
    return text(random.Random(f"{seed} {kind} {number}"))  # noqa: S311  reproducible, not secret


def fault(kind: str, given: str) -> str:
    """Return what a use of an input breaks, and where; "" for nothing."""
    try:
        KINDS[kind].use(given)
    except RecursionError as error:
        return f"RecursionError: {error}"
    except Exception as error:  # noqa: BLE001  whatever it is
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if "llama_index_contextual" in frame.filename] or frames
        what = str(error) if isinstance(error, AssertionError) else ""
        file = os.path.basename(ours[-1].filename)  # noqa: PTH119
        return f"{type(error).__name__} {what} in {file}:{ours[-1].name}"
    return ""


def use(kind: str, seed: int, number: int, tally: Tally) -> None:
    """Use one input, and note what it breaks."""
    given = made(seed, kind, number)
    began = time.thread_time()
    problem = fault(kind, given)
    took = time.thread_time() - began
    usual = tally.seconds / max(1, tally.letters)
    tally.done += 1
    tally.seconds += took
    tally.letters += len(given)
    timed = KINDS[kind].timed
    if not problem and timed is not None:
        slow = tally.done > 100 and took > max(
            0.05, SLOW * usual * len(given)
        )  # before that, no time is usual
        if (slow or not number % LOOK_AT_GROWTH) and grows_too_fast(timed(given), given):
            problem = "time grows faster than the text"
    if problem and problem not in tally.findings:
        tally.findings[problem] = number, given
        print(
            f"seed {seed}, {kind} {number}: {problem}\n    {given!r:.400}",
            file=sys.stderr,
            flush=True,
        )


def run(
    kinds: Sequence[str],
    *,
    seed: int,
    first: int = 0,
    documents: int | None = None,
    seconds: float | None = None,
) -> dict[str, Tally]:
    """Use inputs of some kinds in turn.

    Of other kinds than documents their share, and of a single kind so many.
    """
    tallies = {kind: Tally() for kind in kinds}
    until = time.monotonic() + seconds if seconds else float("inf")
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable()
        numbers = (
            itertools.count(first) if documents is None else iter(range(first, first + documents))
        )
        for number in numbers:
            for kind in kinds:
                if len(kinds) == 1 or number % KINDS[kind].share == 0:
                    use(kind, seed, number, tallies[kind])
            if number % 50_000 == 0:
                print(
                    f"{number:,}, "
                    f"{sum(len(tally.findings) for tally in tallies.values())} findings",
                    file=sys.stderr,
                )
            if time.monotonic() > until:
                break
    logging.disable(logging.NOTSET)
    return tallies


def main() -> None:
    """Run from the command line; the exit code is 1 where there are findings."""
    options = command_line(
        __doc__, kinds=list(KINDS), documents=int, seconds=float, seed=1, first=0
    )
    seconds = 30.0 if options.seconds is None and options.documents is None else options.seconds
    tallies = run(
        options.kinds,
        seed=options.seed,
        first=options.first,
        documents=options.documents,
        seconds=seconds,
    )
    rows: list[list[object]] = []
    for kind, tally in tallies.items():
        means = (
            f"{tally.letters / max(1, tally.done):.0f}",
            f"{1000 * tally.seconds / max(1, tally.done):.1f}",
        )
        rows.append([kind, f"{tally.done:,}", *means, len(tally.findings)])
    print(f"seed {options.seed}; {machine()}\n")
    print(markdown_table(["kind", "inputs", "characters each", "ms each", "findings"], rows))
    sys.exit(any(tally.findings for tally in tallies.values()))


if __name__ == "__main__":
    main()

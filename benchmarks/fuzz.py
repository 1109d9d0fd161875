"""Feed random hostile input to every reader of this package, and report broken promises.

    python benchmarks/fuzz.py --seconds 30         # all kinds of input in turn
    python benchmarks/fuzz.py --documents 1000000  # so many documents, and a share of other kinds
    python benchmarks/fuzz.py --seed 7 --kinds messages --first 12345 --documents 1  # repeat one

Each input depends only on the seed, the kind and its number, so that a finding can be repeated.
Documents go through the parser and the contexts. Messages go through the gate, the query parser and
the digest. Answers of a language model are read as contexts. If a text takes longer than others of
its length, it is repeated until it is four times as long: the time may grow with the length, but
not with its square.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import itertools
import logging
import math
import random
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from common import command_line, machine, markdown_table
from llama_index.core import Document
from llama_index.core.schema import MetadataMode, TextNode

from llama_index_contextual import ContextualNodePostprocessor, HeadingAwareMarkdownNodeParser
from llama_index_contextual.context.answers import MAX_CHARS, refusal, split_answers
from llama_index_contextual.memory.digest import QUOTE, MemoryEntry, visible
from llama_index_contextual.memory.gate import (
    MAX_QUERY,
    clean_message,
    parse_message,
    reason_to_skip,
)
from llama_index_contextual.node_parser.front_matter import read_front_matter
from llama_index_contextual.node_parser.packing import ChunkSettings, split_markdown
from llama_index_contextual.retrievers.query import parse_query
from llama_index_contextual.retrievers.query_dates import load_lexicon
from llama_index_contextual.retrievers.sessions import sentences_of
from llama_index_contextual.utils import metadata
from llama_index_contextual.utils.text import replace_surrogates, short_hash
from llama_index_contextual.utils.tokens import CHARS_PER_TOKEN, make_counter

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import growth  # the tests' own

SLOW = 4  # times the usual time for its length; growth is measured for slower inputs
SLOW_SECONDS = 0.05
INPUTS_PER_GROWTH = 5000  # growth is also measured for one in so many inputs
INPUTS_BEFORE_SLOW = 100  # before them, the usual time is not known
INPUTS_PER_REPORT = 50_000
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
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Kind(NamedTuple):
    """A kind of input.

    Attributes:
        check: A function that uses an input and checks the promises.
        interval: The number of documents for each input of this kind.
        work_of: A function that returns the work whose time is measured, given an input.
    """

    check: Callable[[str], None]
    interval: int
    work_of: Callable[[str], Callable[[str], object]]


def text(dice: random.Random) -> str:
    """Return fragments in a row, sometimes with a random character or a long run of one."""
    parts = dice.choices(FRAGMENTS, k=dice.randint(1, 20))
    if dice.random() < 0.005:
        parts.insert(dice.randrange(len(parts)), dice.choice(LONG) * dice.choice((100, 1000, 3000)))
    if dice.random() < 0.2:
        parts.insert(dice.randrange(len(parts)), chr(dice.randrange(0x110000)))
    return dice.choice(("", "", " ", "\n")).join(parts)


def settings_of(source: str) -> dict[str, Any]:
    """Return one of sixty settings of the parser, chosen by a hash of the text.

    Chunks are small, so that a short text has several.
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


def check_document(source: str) -> None:
    """Split a document, and check the rules about text, lines, size, ids and views."""
    clean, _ = replace_surrogates(source)
    body_start = check_spans(clean, ChunkSettings(**settings_of(source)))
    nodes = splitting_of(source)(source)
    check_nodes(clean, nodes, body_start)
    for node in nodes:
        context = node.metadata.get(metadata.CONTEXT, "")
        context.encode()
        promise(len(context) <= 4 * metadata.MOST_CHARS, "a context is long")
        content = node.get_content(metadata_mode=MetadataMode.NONE)
        promise(content == node.text, "a context shows in the text")


def splitting_of(source: str) -> Callable[[str], list[Any]]:
    """Return a function that splits texts and adds contexts, with the settings for a source."""
    parser = HeadingAwareMarkdownNodeParser(**settings_of(source))

    def split(text: str) -> list[Any]:
        document = Document(text=text, metadata={"path": "notes/a.md"})
        return list(CONTEXTS(parser([document])))

    return split


def check_spans(clean: str, settings: ChunkSettings) -> int:
    """Check that chunks are slices of a limited size that cover the text.

    Returns:
        The start of the body, after the front matter.
    """
    counter = make_counter(clean, settings.tokenizer)
    body_start = read_front_matter(clean).end
    largest = max(settings.hard_limit, 4)  # a single letter can have four tokens
    covered = bytearray(len(clean))
    new_start_before = -1
    end_before = 0
    for span in split_markdown(clean, settings=settings):
        chunk = clean[span.start : span.end]
        new_start = span.start + span.overlap
        is_trimmed = bool(chunk.strip()) and chunk == chunk.rstrip()
        promise(is_trimmed, "a chunk is blank or ends in white space")
        promise(new_start > new_start_before, "chunks are not in order")
        is_overlap_before = not span.overlap or new_start <= end_before + 200
        promise(is_overlap_before, "overlap is not from the chunk before")
        promise(span.tokens == counter.tokens(span.start, span.end), "tokens are counted wrong")
        promise(span.tokens <= largest, "a chunk exceeds the limit")
        letters = sum(map(len, chunk.split()))
        promise(letters <= largest * CHARS_PER_TOKEN, "a chunk has too many letters")
        new_start_before = new_start
        end_before = span.end
        covered[span.start : span.end] = b"x" * len(chunk)
    offset = covered.find(0, body_start)
    while offset >= 0:
        promise(clean[offset].isspace() or clean[offset] == "\ufeff", "a character is in no chunk")
        offset = covered.find(0, offset + 1)
    return body_start


def check_nodes(clean: str, nodes: list[Any], body_start: int) -> None:
    """Check that nodes are linked slices with different ids and short metadata."""
    promise(len({node.node_id for node in nodes}) == len(nodes), "two chunks have the same id")
    promise(not nodes or nodes[0].prev_node is None, "the first chunk follows another")
    for node, next_node in zip_longest(nodes, nodes[1:]):
        promise(node.text == clean[node.start_char_idx : node.end_char_idx], "a chunk is no slice")
        linked_id = None if node.next_node is None else node.next_node.node_id
        next_id = None if next_node is None else next_node.node_id
        promise(linked_id == next_id, "the links between chunks are broken")
        for key, value in node.metadata.items():
            promise(isinstance(value, str | int | float), f"{key} is neither text nor number")
            limit = 4 * (1000 if key == metadata.FRONT_MATTER else 300)
            promise(len(str(value).encode()) <= limit, f"{key} is long")
        day = node.metadata.get(metadata.DATE)
        if day:
            dt.date.fromisoformat(day)
    body = clean[body_start:].replace("\ufeff", "")
    promise(bool(nodes) or not body.strip(), "a text has no chunk")


# Messages: gate, queries, digest


def check_message(message: str) -> None:
    """Pass a message to the gate and the query parser, and quote it in a digest."""
    words = load_lexicon()
    reason_to_skip(message, words)
    promise(len(clean_message(message)) <= MAX_QUERY, "a query is long")
    query = parse_message(message, words, TODAY)
    for text in (query.text, query.subject, *sentences_of(query.text)):
        parse_query(text)
    shown = visible(message)
    promise(visible(shown) == shown, "a second pass changes the text")
    promise(not CONTROL.search(shown), "a control character")
    check_digest(message, shown)


def check_digest(path: str, snippet: str) -> None:
    """Check that an entry of a digest quotes its snippet and names its source."""
    place = {"path": path[:40], metadata.START_LINE: 1, metadata.END_LINE: 2}
    entry = MemoryEntry(TextNode(text="", metadata=place), 1.0, snippet=snippet)
    entry.block.encode()
    first_line, *lines = entry.block.splitlines()
    citation = first_line[2 : first_line.find("]") + 1]
    is_citation = first_line.startswith("- [") and citation.count("[") == 1
    promise(is_citation, "a citation has another form")
    promise(citation.endswith("#L1-L2]"), "a citation ends early")
    are_marked = all(line.startswith(QUOTE.rstrip()) for line in lines)
    promise(are_marked, "a line of a note is not marked")
    promise(len(lines) <= snippet.count("\n"), "something else ends a line")


# Answers of a language model


def check_answer(answer: str) -> None:
    """Read an answer for a single chunk and for three, and check the contexts in it."""
    for chunk_count in (1, 3):
        for number, context in split_answers(answer, chunk_count).items():
            promise(1 <= number <= chunk_count, "a number that was not requested")
            promise(0 < len(context) <= MAX_CHARS, "a context is empty or long")
            context.encode()
            is_line = len(context.splitlines()) == 1 and "\0" not in context
            promise(is_line, "a context has several lines")
            document = "# Gateway\n\nThe default is 60."
            reason = refusal(context, "The default is 60.", document, "Write one sentence.")
            promise(reason is None or "\n" not in reason, "a refusal has several lines")


def promise(holds: bool, otherwise: str) -> None:
    """Raise an error if a promise does not hold."""
    if not holds:
        raise AssertionError(otherwise)


KINDS = {
    "documents": Kind(check_document, 1, splitting_of),
    "messages": Kind(check_message, 10, lambda _: check_message),
    "answers": Kind(check_answer, 10, lambda _: check_answer),
}


def grows_too_fast(work: Callable[[str], object], source: str) -> bool:
    """Return whether four times the text takes more than nine times as long.

    Quadratic work would take sixteen times as long.
    """
    short = source * max(1, 2000 // len(source))
    work(short)
    return growth.grows_too_fast(work, short, short * growth.FACTOR, noise=0.09)


class Finding(NamedTuple):
    """The number of an input that breaks a promise, and the input."""

    number: int
    source: str


@dataclass(slots=True)
class Tally:
    """The results for a kind of input.

    Attributes:
        inputs: The number of inputs.
        seconds: Their processor time.
        letters: Their length.
        findings: The first input for each problem.
    """

    inputs: int = 0
    seconds: float = 0.0
    letters: int = 0
    findings: dict[str, Finding] = field(default_factory=dict)

    @property
    def seconds_per_letter(self) -> float:
        """Return the usual time for a letter."""
        return self.seconds / max(1, self.letters)


def made(seed: int, kind: str, number: int) -> str:
    """Return the input of a seed, a kind and a number."""
    return text(random.Random(f"{seed} {kind} {number}"))  # noqa: S311  reproducible, not secret


def fault(kind: str, source: str) -> str:
    """Return the promise that an input breaks, and the function; "" for none."""
    try:
        KINDS[kind].check(source)
    except RecursionError as error:
        return f"RecursionError: {error}"
    except Exception as error:  # noqa: BLE001  any error is a finding
        frames = traceback.extract_tb(error.__traceback__)
        own_frames = [frame for frame in frames if "llama_index_contextual" in frame.filename]
        last = (own_frames or frames)[-1]
        message = str(error) if isinstance(error, AssertionError) else ""
        return f"{type(error).__name__} {message} in {Path(last.filename).name}:{last.name}"
    return ""


def try_input(kind: str, seed: int, number: int, tally: Tally) -> None:
    """Use an input, and record what it breaks."""
    source = made(seed, kind, number)
    began = time.thread_time()
    problem = fault(kind, source)
    seconds = time.thread_time() - began
    usual_seconds = tally.seconds_per_letter * len(source)
    tally.inputs += 1
    tally.seconds += seconds
    tally.letters += len(source)
    is_usual_known = tally.inputs > INPUTS_BEFORE_SLOW
    is_slow = is_usual_known and seconds > max(SLOW_SECONDS, SLOW * usual_seconds)
    is_measured = is_slow or number % INPUTS_PER_GROWTH == 0
    if not problem and is_measured and grows_too_fast(KINDS[kind].work_of(source), source):
        problem = "time grows faster than the text"
    if problem and problem not in tally.findings:
        tally.findings[problem] = Finding(number, source)
        finding = f"seed {seed}, {kind} {number}: {problem}\n    {source!r:.400}"
        print(finding, file=sys.stderr, flush=True)


def run(
    kinds: Sequence[str],
    *,
    seed: int,
    first: int = 0,
    documents: int | None = None,
    seconds: float | None = None,
) -> dict[str, Tally]:
    """Use inputs of some kinds in turn.

    Args:
        kinds: The kinds. A single kind gets an input for each number.
        seed: The seed of all inputs.
        first: The number of the first input.
        documents: The number of documents; None for no limit.
        seconds: The time; None for no limit.
    """
    tallies = {kind: Tally() for kind in kinds}
    until = time.monotonic() + seconds if seconds else math.inf
    numbers = itertools.count(first) if documents is None else range(first, first + documents)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable()
        for number in numbers:
            for kind in kinds:
                if len(kinds) == 1 or number % KINDS[kind].interval == 0:
                    try_input(kind, seed, number, tallies[kind])
            if number % INPUTS_PER_REPORT == 0:
                findings = sum(len(tally.findings) for tally in tallies.values())
                print(f"{number:,}, {findings} findings", file=sys.stderr)
            if time.monotonic() > until:
                break
    logging.disable(logging.NOTSET)
    return tallies


def main() -> None:
    """Use inputs and print a table. The exit code is 1 if there are findings."""
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
        inputs = max(1, tally.inputs)
        letters = f"{tally.letters / inputs:.0f}"
        milliseconds = f"{1000 * tally.seconds / inputs:.1f}"
        rows.append([kind, f"{tally.inputs:,}", letters, milliseconds, len(tally.findings)])
    print(f"seed {options.seed}; {machine()}\n")
    print(markdown_table(["kind", "inputs", "characters each", "ms each", "findings"], rows))
    sys.exit(any(tally.findings for tally in tallies.values()))


if __name__ == "__main__":
    main()

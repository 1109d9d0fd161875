"""The kinds of input of benchmarks/fuzz.py: how each is made from a seed, and what has to hold of it.

A kind is a function that makes an input (a text or bytes) from dice, and one that uses it and raises where a promise of
docs/design.md or docs/security.md is broken. The errors of this package are no finding: they are how it says no.
"""

from __future__ import annotations

import datetime as dt
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuzz_files import make_database, make_settings, make_state, scratch, use_database, use_settings, use_state
from llama_index.core import Document, MockEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.schema import MetadataMode, TextNode

from llama_index_contextual import ContextualNodePostprocessor, HeadingAwareMarkdownNodeParser, metadata
from llama_index_contextual.app.index.embedder import embed_missing, vector_problem
from llama_index_contextual.app.settings.embeddings import model_id
from llama_index_contextual.app.store.paid import PaidStore
from llama_index_contextual.app.store.rows import Chunk
from llama_index_contextual.chunking import ChunkSettings, read_front_matter, split_markdown
from llama_index_contextual.context.answers import MAX_CHARS, refusal, split_answers
from llama_index_contextual.errors import ContextualError
from llama_index_contextual.keyword import Analyzer
from llama_index_contextual.keyword.dates import lexicon
from llama_index_contextual.keyword.query import parse_query
from llama_index_contextual.memory.digest import QUOTE, MemoryEntry, Place, visible
from llama_index_contextual.memory.gate import MAX_QUERY_CHARS, clean_message, gate, read_message
from llama_index_contextual.retrieval.sessions import sentences_of
from llama_index_contextual.text import replace_surrogates, short_hash
from llama_index_contextual.text.tokens import CHARS_PER_TOKEN, make_scale

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import growth  # the tests' own

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

FRAGMENTS = (
    # words, in scripts that have spaces and that have none; marks that combine, join, turn round or hide
    "alpha", "beta.", "Gamma?", "delta", " ", "  ", "\t", "é", "e\u0301", "\u0301\u0316", "漢字。", "か？", "คำไทย",
    "မြန်မာ", "العربية", "עברית", "\u202e", "\u2066", "\u200d", "\ufe0f", "\U0001f468\u200d\U0001f469", "😀",
    "\u3000", "\xa0", "\u3164", "\u2028", "\x85", "\x0b", "\x0c", "\x1b[31m", "\0", "\ufeff", "\ud800",
    "\udfff", "\U000e0041", "ﷺ", "ß", "İ", "ǆ", "1.000,50", "2026-11-22", "2026-02-30", "yesterday",
    "/etc/hosts", "/help", "a@b.c", "https://x.y/z?q=[a](b)", "snake_case", "camelCase", "path:a", '"quoted',
    "-not", "Dr. No", "z. B. so", "…", "' OR 1=1", "{{% x %}}", "\\",
    # blocks
    "\n", "\n\n", "\r\n", "\r", "\n \n", "# ", "## Title", "###### six", "####### seven", "\n===\n", "\n---\n",
    "***", "___", "- ", "* a\n", "+ ", "1. ", "999999999. ", "- [ ] ", "> ", "> > ", ">", "    ", "\t- ", "```",
    "```py\n", "~~~", "````\n", "`", "``a`b``", "$$\n", "$x$", "| a | b |\n|---|---|\n", "|-|", "| 1 | 2 |\n",
    "|", "[^1]: ", "[^1]", "[a]: /b\n", "[[w|x]]", "[", "](", "![a](", "<", "<!--", "-->", "<details>",
    "</details>\n", "<script>", "<a b='", "<?", "<![CDATA[", "&amp;", "&#0;", "%%", "{/*", "*/}", ":::",
    ":::note\n", "^block", "#tag", "**", "*", "__", "~~", "==", "\\\n",
    # front matter, good and bad
    "---\n", "---\ntitle: x\n---\n", "+++\ntitle = 'x'\n+++\n", "title: ", "tags: [a, b", "date: 2026-13-45\n",
    "---\na: &x [*x]\n---\n", "date: 2026-04-09\n", "---\ntitle: \ud83d\n---\n", "? ",
    "!!python/object:os.system x\n", "%YAML 1.1\n", "{", "}", ": ",
    # what an agent's digest, or a model's answer, is made of
    "## Relevant prior context\n", "- [a.md#L1] ", "1: ", "2. ", "1:1:1:", "Chunk 1: ", '{"context": "',
    "<think>", "</think>", "Here is the context: ", "I'm sorry", "This part of the guide says how", "</chunk>",
    "context of chunk 1",
)  # fmt: skip
LONG = (
    "a",
    " ",
    "\n",
    "`",
    "#",
    "> ",
    "- ",
    "|",
    "[",
    "*",
    "漢",
    "\u0301",
    "\u200d",
    "ab ",
    "<",
    "a. ",
    "0",
    "\t",
    "_",
    "\\",
)
TOKENIZERS: tuple[Any, ...] = ("cl100k", "minilm", str.split)
TODAY = dt.date(2026, 11, 22)
DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of input.

    Attributes:
        make: Makes one from dice.
        use: Uses it, and raises where a promise is broken.
        work: The part of the use whose time is looked at, for one input and others of the same settings; None for none.
    """

    make: Callable[[random.Random], Any]
    use: Callable[[Any], None]
    work: Callable[[str], Callable[[str], object]] | None = None


def text(dice: random.Random) -> str:
    """Fragments in a row, now and then any character, and seldom a long run of one."""
    parts = dice.choices(FRAGMENTS, k=dice.randint(1, 20))
    if dice.random() < 0.005:
        parts.insert(dice.randrange(len(parts)), dice.choice(LONG) * dice.choice((100, 1000, 3000)))
    if dice.random() < 0.2:
        parts.insert(dice.randrange(len(parts)), chr(dice.randrange(0x110000)))
    return dice.choice(("", "", " ", "\n")).join(parts)


# Documents, through parser and contexts


@cache
def sizes(choice: int) -> ChunkSettings:
    """One of sixty settings: small, so that a short text is cut, with all tokenizers."""
    size = (3, 12, 40, 120, 400)[choice % 5]
    return ChunkSettings(
        chunk_size=size,
        chunk_overlap=size // (2, 5, 1000)[choice % 3],
        min_chunk_size=size // 8,
        tokenizer=TOKENIZERS[choice % len(TOKENIZERS)],
        keep_blocks=choice % 7 == 0,
        cut_at_rules=choice % 2 == 0,
    )


def choice_of(source: str) -> int:
    """The settings are drawn from the text, so that a text alone tells a finding."""
    return int(short_hash(source), 16) % 60


@cache
def parser_of(choice: int) -> HeadingAwareMarkdownNodeParser:
    """The parser of some settings."""
    settings = sizes(choice)
    return HeadingAwareMarkdownNodeParser(
        chunk_size=settings.chunk_size,
        chunk_overlap=settings.chunk_overlap,
        min_chunk_size=settings.min_chunk_size,
        tokenizer=settings.tokenizer,
        keep_blocks=settings.keep_blocks,
        cut_at_rules=settings.cut_at_rules,
    )


@cache
def contexts() -> ContextualNodePostprocessor:
    """Contexts from headings."""
    return ContextualNodePostprocessor("headings")


def use_document(source: str) -> None:
    """Cut it, and see that the rules about text, lines, budget, ids and views hold."""
    clean, _ = replace_surrogates(source)
    choice = choice_of(source)
    settings = sizes(choice)
    body = check_spans(clean, settings)
    document = Document(text=source, metadata={"path": "notes/a.md"})
    nodes = contexts()(parser_of(choice)([document]))
    check_nodes(clean, nodes, body)
    for node in nodes:
        context = node.metadata.get(metadata.CONTEXT, "")
        context.encode()
        promise(len(context) <= 4 * metadata.MOST_CHARS, "a context is long")
        promise(node.get_content(metadata_mode=MetadataMode.NONE) == node.text, "a context shows in the text")


def cut(source: str) -> Callable[[str], object]:
    """What is timed of a document."""
    choice = choice_of(source)
    return lambda text: contexts()(parser_of(choice)([Document(text=text, metadata={"path": "notes/a.md"})]))


def check_spans(clean: str, settings: ChunkSettings) -> int:
    """See that spans are slices within the budget that cover the text, with true lines; say where the body begins."""
    spans = split_markdown(clean, settings=settings)
    scale = make_scale(clean, settings.tokenizer)
    body = read_front_matter(clean).end
    covered = bytearray(len(clean))
    before, last = -1, 0
    for span in spans:
        chunk = clean[span.start : span.end]
        promise(bool(chunk.strip()) and chunk == chunk.rstrip(), "a chunk is blank or ends in white space")
        promise(span.start + span.overlap > before, "chunks are not in their order")
        promise(not span.overlap or span.start + span.overlap <= last + 200, "overlap is not of the chunk before")
        before, last = span.start + span.overlap, span.end
        covered[span.start : span.end] = b"x" * len(chunk)
        promise(span.tokens == scale.exact(span.start, span.end), "tokens are counted wrong")
        promise(span.tokens <= max(settings.hard_bound, 4), "a chunk exceeds the cap")  # one letter may be four
        letters = sum(map(len, chunk.split()))
        promise(letters <= max(settings.hard_bound, 4) * CHARS_PER_TOKEN, "a chunk has too many letters")
    at = covered.find(0, body)
    while at >= 0:
        promise(clean[at].isspace() or clean[at] == "\ufeff", "a character is in no chunk")
        at = covered.find(0, at + 1)
    return body


def check_nodes(clean: str, nodes: list[Any], body: int) -> None:
    """See that nodes are slices with ids of their own, chained, and carry little that can be stored."""
    promise(len({node.node_id for node in nodes}) == len(nodes), "two chunks have one id")
    promise(not nodes or nodes[0].prev_node is None, "the first chunk follows another")
    for node, following in zip(nodes, [*nodes, None][1:], strict=True):
        promise(node.text == clean[node.start_char_idx : node.end_char_idx], "a chunk is no slice")
        promise((node.next_node and node.next_node.node_id) == (following and following.node_id), "the chain is broken")
        for key, value in node.metadata.items():
            promise(isinstance(value, str | int | float), f"{key} is neither text nor number")
            promise(len(str(value).encode()) <= 4 * (1000 if key == metadata.FRONT_MATTER else 300), f"{key} is long")
        if day := node.metadata.get(metadata.DATE):
            dt.date.fromisoformat(day)
    promise(bool(nodes) or not clean[body:].replace("\ufeff", "").strip(), "a text has no chunk")


# Messages: gate, queries, digest


def use_message(message: str) -> None:
    """Ask the gate, read it, and quote it in a digest."""
    words = lexicon()
    gate(message, words)
    promise(len(clean_message(message)) <= MAX_QUERY_CHARS, "a query is long")
    for text in (asked := read_message(message, words, TODAY)).text, asked.subject, *sentences_of(asked.text):
        parse_query(text, Analyzer())
    shown = visible(message)
    promise(visible(shown) == shown, "to show twice changes the text")
    promise(not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", shown), "a control character")
    block = MemoryEntry("a", Place(message[:40], 1, 2), shown, 1.0).block
    block.encode()
    first, *lines = block.splitlines()
    citation = first[2 : first.find("]") + 1]
    promise(first.startswith("- [") and citation.count("[") == 1, "a citation that is not ours")
    promise(citation.endswith("#L1-L2]"), "a citation that ends early")
    promise(all(line.startswith(QUOTE.rstrip()) for line in lines), "a line of a note is not marked")
    promise(len(lines) <= shown.count("\n"), "something else ends a line")


# Answers of a language model


def use_answer(answer: str) -> None:
    """Read it for one chunk and for three, and see that what is taken can be stored on one line."""
    for count in (1, 3):
        for number, context in split_answers(answer, count).items():
            promise(1 <= number <= count, "a number that was not asked for")
            promise(0 < len(context) <= MAX_CHARS, "a context is empty or long")
            context.encode()
            promise(len(context.splitlines()) == 1 and "\0" not in context, "a context has several lines")
            reason = refusal(context, "The default is 60.", "# Gateway\n\nThe default is 60.", "Write one sentence.")
            promise(reason is None or "\n" not in reason, "a refusal has several lines")


# Vectors of an embedding server

NUMBERS = (0.0, 1.0, -1.0, 0.5, 1e-40, 1e30, 1e38, 1e300, float("nan"), float("inf"), float("-inf"), 2**70, True)


class Numbers(MockEmbedding):
    """Answers with the vectors that it was given, and to queries as it should."""

    _answers: list[Any] = PrivateAttr(default_factory=list)

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return [self._answers[number % len(self._answers)] for number in range(len(texts))]

    def _get_query_embedding(self, query: str) -> list[float]:  # noqa: ARG002
        return [1.0] * DIMENSIONS


@cache
def embedder() -> tuple[Numbers, PaidStore]:
    """An embedding, and the store of its vectors."""
    model = Numbers(DIMENSIONS, model_name="numbers")
    paid = PaidStore(Path(scratch()) / "paid.sqlite3", "index")
    return model, paid


def make_vectors(dice: random.Random) -> list[Any]:
    """Vectors of some texts: mostly of the right length, of numbers that stores take and that they do not."""
    lengths = (DIMENSIONS,) * 6 + (0, 1, DIMENSIONS + 1)
    return [dice.choices(NUMBERS, (9, 20, 20, 20, *[1] * 9), k=dice.choice(lengths)) for _ in range(dice.randint(1, 9))]


def use_vectors(answers: list[Any]) -> None:
    """Embed texts with them: what is kept can be used, and each other text is named."""
    model, paid = embedder()
    model._answers = answers  # noqa: SLF001  our own
    named = short_hash(repr(answers))
    chunks = [Chunk.of(TextNode(text=f"{named} {n}")) for n in range(len(answers))]
    try:
        _, failed = embed_missing(paid, model, chunks, lambda _: None)
    except ContextualError:
        return
    hashes = [chunk.embed_hash for chunk in chunks]
    vectors = dict(paid.vectors(model_id(model), hashes))
    for key in hashes:
        promise((key in vectors) != (key in failed), "a text without a vector is not named")
        promise(key in failed or not vector_problem(vectors[key].tolist(), DIMENSIONS), "a vector is kept that is none")


def promise(holds: bool, otherwise: str) -> None:
    """Raise where a promise does not hold."""
    if not holds:
        raise AssertionError(otherwise)


KINDS = {
    "documents": Kind(text, use_document, cut),
    "messages": Kind(text, use_message, lambda _: use_message),
    "answers": Kind(text, use_answer, lambda _: use_answer),
    "vectors": Kind(make_vectors, use_vectors),
    "states": Kind(make_state, use_state),
    "databases": Kind(make_database, use_database),
    "settings": Kind(make_settings, use_settings),
}


def grows_too_fast(work: Callable[[str], object], source: str) -> bool:
    """Whether four times the text takes more than nine times as long: a square would take sixteen times."""
    short = source * max(1, 2000 // len(source))
    work(short)
    return growth.grows_too_fast(work, short, short * growth.FACTOR, noise=0.09)

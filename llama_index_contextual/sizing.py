"""What an index of so many pages would take, by measured constants: chunks, disk, memory, hours, tokens, money.

Nothing is read and nobody is asked. For pages that exist, ``index --dry-run`` counts instead.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from llama_index_contextual.checks import amount
from llama_index_contextual.context.usage import PRICES_OF, Tokens, list_prices
from llama_index_contextual.errors import SettingError
from llama_index_contextual.text import counted, money

if TYPE_CHECKING:
    from llama_index_contextual.context.usage import Prices


class Constant(NamedTuple):
    """One number that the arithmetic rests on, and where it is from."""

    value: float
    what: str
    source: str


_SCALE: Final = "benchmarks/scale.py, 2026-11-22, 2 cores of x86_64"
_INDEXING: Final = "benchmarks/indexing.py, 2026-11-22, AVX-512 VNNI"
_PAGES: Final = "Kubernetes documentation, 1,568 pages, 2026-11-22"
_CALLS: Final = "planned calls for 150 of these pages, 3,675 chunks, 2026-11-22"
_USUAL: Final = "a usual remote service; assumed, not measured"

MEASURED_CHUNKS: Final = 1_043_269  # the largest index that was made; what is beyond is a straight line on
READER_MEMORY: Final = 2e9  # bytes; where each process that answers would hold more, a server is the better choice
PAGE_CHARS: Final = 7161  # of the same pages
_MEASURED: Final = {
    "chunk_chars": Constant(408, "characters of a page for each chunk", _PAGES),
    "chunk_tokens": Constant(133, "tokens of a chunk with its headings, as it is embedded", _PAGES),
    "chunk_disk": Constant(13_100, "bytes on disk for each chunk, vectors of 384 numbers and cache included", _SCALE),
    "reader_base": Constant(260e6, "bytes of memory of a reader, beyond its chunks", _SCALE),
    "reader_chunk": Constant(3800, "bytes of memory of a reader for each chunk", _SCALE),
    "indexed": Constant(180, "chunks a second that one core parses and stores, at a million chunks", _SCALE),
    "embedded": Constant(20.4, "chunks a second that the local model embeds on one core", _INDEXING),
    "llm_calls": Constant(0.149, "calls of a language model for each chunk", _CALLS),
    "llm_prompt": Constant(630, "tokens that a language model is sent for each chunk", _CALLS),
    "llm_cached": Constant(141, "of these, tokens that a prefix cache knows", _CALLS),
    "llm_written": Constant(40, "tokens that it writes for each chunk", _CALLS),
    "llm_reading": Constant(5000, "tokens a second that it reads", _USUAL),
    "llm_writing": Constant(60, "tokens a second that it writes in one call", _USUAL),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sizing:
    """What an index would take.

    Attributes:
        pages: As given.
        chunks: Of the default parser for the local embedding.
        disk: Bytes of the whole index.
        memory: Bytes of one process that answers questions from the embedded store.
        store_hours: Hours of one core for parsing, headings and storing. One process writes, so more cores do not help.
        embedding_tokens: What an embedding service would read.
        embedding_hours: Core hours of the local embedding.
        days: The time in which it should be done.
        embedding_workers: Cores that embed it in that time.
        llm_calls: Calls for contexts of a language model; 0 without one.
        llm_tokens: What it reads and writes.
        llm_hours: Hours of calls that are made one after the other.
        llm_workers: Calls at a time that finish in that time.
        price: Money for the language model; None where no price is known.
        priced_by: ``"given"``, or the list that the price is from; empty where none is known.
        embedded_store: Whether the embedded store is the right choice for so many chunks.
        extrapolated: Whether there are more chunks than were ever measured.
    """

    pages: int
    chunks: int
    disk: float
    memory: float
    store_hours: float
    embedding_tokens: int
    embedding_hours: float
    days: float
    embedding_workers: int
    llm_calls: int
    llm_tokens: Tokens
    llm_hours: float
    llm_workers: int
    price: float | None
    priced_by: str
    embedded_store: bool
    extrapolated: bool

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, with the constants that it rests on."""
        return {**asdict(self), "measured": {key: one._asdict() for key, one in _MEASURED.items()}}

    def __str__(self) -> str:
        within = f"{self.days:g} day{'' if self.days == 1 else 's'}"
        lines = [
            f"{counted(self.pages, 'page')}: about {counted(self.chunks, 'chunk')}",
            f"disk: {_bytes(self.disk)}",
            f"memory of a process that answers, with the embedded store: {_bytes(self.memory)}",
            f"parsing and storing: {_duration(self.store_hours)} of one core",
            f"local embedding: {_duration(self.embedding_hours)} of one core",
            f"  to end in {within}: {counted(self.embedding_workers, 'core')}",
            f"an embedding service would read {self.embedding_tokens:,} tokens",
        ]
        if self.llm_calls:
            price = "no price is known: give --price" if self.price is None else money(self.price)
            price += {"given": ", at your prices", "": ""}.get(self.priced_by, f" dollars, by the {self.priced_by}")
            tokens = self.llm_tokens
            lines += [
                f"contexts of a language model: {counted(self.llm_calls, 'call')}",
                f"  {tokens.prompt:,} tokens in and {tokens.completion:,} out",
                f"  {tokens.cached:,} of those in come again, and a prefix cache skips them",
                f"  {price}",
                f"  {_duration(self.llm_hours)} one after the other",
                f"  to end in {within}: {counted(self.llm_workers, 'call')} at a time",
            ]
        if not self.embedded_store:
            lines.append(
                f"more than {_bytes(READER_MEMORY)} in each process that answers: take a server (docs/stores.md)"
            )
        beyond = f"; {self.chunks / MEASURED_CHUNKS:,.1f} times what was measured: a straight line drawn on"
        lines += [
            "",
            f"by these constants, measured with up to {MEASURED_CHUNKS:,} chunks{beyond * self.extrapolated}:",
        ]
        return "\n".join(lines + [f"  {one.value:,.10g} {one.what} ({one.source})" for one in _MEASURED.values()])


def sizing(
    pages: float,
    *,
    page_chars: float = PAGE_CHARS,
    llm: str | None = None,
    prices: Prices | None = None,
    days: float = 1.0,
) -> Sizing:
    """Return what an index of so many pages would take.

    Args:
        pages: How many, from 1.
        page_chars: Characters of a usual page.
        llm: The model that writes contexts, such as ``"openai:gpt-4.1-mini"``; its name finds the list price. None for
            contexts that cost nothing.
        prices: Per million tokens, instead of the list's.
        days: The time in which it should be done, for the number of workers.

    Raises:
        SettingError: A number cannot work.
    """
    for name, value in (("pages", pages), ("page_chars", page_chars), ("days", days)):
        amount(name, value)
    if pages < 1:
        raise SettingError(f"pages={pages!r} is less than one page. Cure: a number from 1, such as 1e6.")
    known = {key: one.value for key, one in _MEASURED.items()}
    chunks = math.ceil(pages * max(1.0, page_chars / known["chunk_chars"]))
    memory = known["reader_base"] + chunks * known["reader_chunk"]
    asked = chunks if llm else 0
    tokens = Tokens(*(round(asked * known[key]) for key in ("llm_prompt", "llm_cached", "llm_written")))
    llm_hours = (
        (tokens.prompt - tokens.cached) / known["llm_reading"] + tokens.completion / known["llm_writing"]
    ) / 3600
    embedding_hours = chunks / known["embedded"] / 3600
    listed = list_prices((llm or "").partition(":")[2].partition("@")[0] or llm or "")
    counted = prices or listed
    return Sizing(
        pages=round(pages),
        chunks=chunks,
        disk=chunks * known["chunk_disk"],
        memory=memory,
        store_hours=chunks / known["indexed"] / 3600,
        embedding_tokens=round(chunks * known["chunk_tokens"]),
        embedding_hours=embedding_hours,
        days=days,
        embedding_workers=math.ceil(embedding_hours / days / 24),
        llm_calls=math.ceil(asked * known["llm_calls"]),
        llm_tokens=tokens,
        llm_hours=llm_hours,
        llm_workers=math.ceil(llm_hours / days / 24),
        price=None if asked and counted is None else (counted.of(tokens) if counted else 0.0),
        priced_by="given" if prices else (f"list of {PRICES_OF}" if listed else ""),
        embedded_store=memory <= READER_MEMORY,
        extrapolated=chunks > MEASURED_CHUNKS,
    )


def _bytes(number: float) -> str:
    power = min(int(math.log(max(number, 1), 1000)), 4)
    return f"{number / 1000**power:.3g} {('bytes', 'kB', 'MB', 'GB', 'TB')[power]}"


def _duration(hours: float) -> str:
    seconds = math.ceil(hours * 3600)
    if seconds < 60:  # noqa: PLR2004
        return counted(seconds, "second")
    if hours < 2:  # noqa: PLR2004
        return counted(round(seconds / 60), "minute")
    return counted(round(hours), "hour")

"""Counting tokens of many slices of one document: exactly, and each character about once.

A *scale* is made for one document. It first weighs the parts between the marks (their sums are exact for tokenizers
that add up at line starts, estimates for others), then says what an assembled slice taken alone has.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from llama_index_contextual.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence, Sized

    import tiktoken

BYTES_PER_TOKEN: Final = 3.5  # of real Markdown in cl100k; as an estimate it overflows about 3 % of chunks
_CONTINUES, _CONTINUATION = np.uint8(0xC0), np.uint8(0x80)  # a byte inside a UTF-8 character is 0b10xxxxxx
_PIECE: Final = 10_000  # characters at once where tiktoken's regular expression gives up
_INDENTED: Final = re.compile(r"[ \t]{0,99}\S")


class Scale(Protocol):
    """Token counts of slices of one document."""

    def cumulative(self, offsets: Sequence[int]) -> list[int]:
        """Tokens before each of the ascending offsets, counted from the first one."""

    def exact(self, start: int, end: int, stop: int) -> int:
        """Tokens of ``text[start:end]`` taken alone, where ``text[end:stop]`` is white space."""


class EstimateScale:
    """UTF-8 bytes ÷ 3.5, rounded up."""

    def __init__(self, text: str) -> None:
        self._bytes = None if text.isascii() else bytes_before(text)

    def cumulative(self, offsets: Sequence[int]) -> list[int]:
        """See :class:`Scale`; within one token of exact."""
        at = np.asarray(offsets) if self._bytes is None else self._bytes[np.asarray(offsets)]
        counts: list[int] = np.ceil((at - at[0]) / BYTES_PER_TOKEN).astype(np.int64).tolist()
        return counts

    def exact(self, start: int, end: int, stop: int) -> int:  # noqa: ARG002
        """See :class:`Scale`."""
        if self._bytes is None:
            return math.ceil((end - start) / BYTES_PER_TOKEN)
        return math.ceil(int(self._bytes[end] - self._bytes[start]) / BYTES_PER_TOKEN)


class CallableScale:
    """Any tokenizer, taken as a black box: counts each part once, and every assembled slice again.

    Args:
        text: The document.
        count: Tokens of a text.
        adds_up: Whether counts of parts cut at white space always add up to the count of the whole, as word pieces
            do; then nothing is counted twice.
    """

    def __init__(self, text: str, count: Callable[[str], int], *, adds_up: bool = False) -> None:
        self._text = text
        self._count = count
        self._known: dict[int, int] | None = {} if adds_up else None

    def cumulative(self, offsets: Sequence[int]) -> list[int]:
        """See :class:`Scale`."""
        text, count = self._text, self._count
        sums = [0, *itertools.accumulate(count(text[a:b]) for a, b in itertools.pairwise(offsets))]
        if self._known is not None and not self._known:
            self._known = dict(zip(offsets, sums, strict=True))
        return sums

    def exact(self, start: int, end: int, stop: int) -> int:
        """See :class:`Scale`."""
        if self._known and start in self._known and stop in self._known:
            return self._known[stop] - self._known[start]
        return self._count(self._text[start:end])


class BytePairScale:
    r"""A byte-pair tokenizer such as cl100k: the document is encoded once, and slices are looked up.

    A token boundary that is a line start (with no blank line after it) splits every text alike: its regular expression
    never takes a line feed together with what follows, and byte pairs never merge across. So the tokens between two
    such boundaries are those of the slice alone. At the other end, a boundary between two tokens gives the slice the
    same tokens, because the merges inside it did not depend on what followed; where a token goes on over the end
    (``".\n\n"`` is one), the punctuation before the end is encoded again.
    """

    def __init__(self, text: str, encoding: tiktoken.Encoding, widths: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        self._text = text
        self._encoding = encoding
        self._bytes = None if text.isascii() else bytes_before(text)
        self._ends = np.cumsum(widths[_encode(encoding, text)])

    def cumulative(self, offsets: Sequence[int]) -> list[int]:
        """See :class:`Scale`; exact at line starts."""
        at = np.asarray(offsets) if self._bytes is None else self._bytes[np.asarray(offsets)]
        before = np.searchsorted(self._ends, at, side="right")
        counts: list[int] = (before - before[0]).tolist()
        return counts

    def exact(self, start: int, end: int, stop: int) -> int:  # noqa: ARG002
        """See :class:`Scale`."""
        text = self._text
        before, at_start = self._tokens_before(start)
        if start and not (at_start and text[start - 1] in "\r\n" and _INDENTED.match(text, start)):
            return self._encoded(start, end)
        until, at_end = self._tokens_before(end)
        if at_end:
            return until - before
        mark = end  # where the punctuation starts that the token over the end begins with
        while mark > start and not (text[mark - 1].isalnum() or text[mark - 1].isspace()):
            mark -= 1
        if mark > start and text[mark - 1] == " ":
            mark -= 1  # cl100k takes one space together with the punctuation after it
        until, at_mark = self._tokens_before(mark)
        return until - before + self._encoded(mark, end) if at_mark and mark < end else self._encoded(start, end)

    def _tokens_before(self, offset: int) -> tuple[int, bool]:
        """How many tokens end at or before an offset, and whether one ends right there."""
        at = offset if self._bytes is None else self._bytes[offset]
        count = int(self._ends.searchsorted(at, side="right"))
        return count, (int(self._ends[count - 1]) if count else 0) == at

    def _encoded(self, start: int, end: int) -> int:
        return len(_encode(self._encoding, self._text[start:end]))


def _encode(encoding: tiktoken.Encoding, text: str) -> np.ndarray[Any, np.dtype[np.uint32]]:
    try:
        return encoding.encode_to_numpy(text, disallowed_special=())
    except ValueError:  # a megabyte of white space exhausts the stack of its regular expressions
        parts = [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]
        return np.concatenate([encoding.encode_to_numpy(part, disallowed_special=()) for part in parts])


def bytes_before(text: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """UTF-8 bytes before each character, and at the end."""
    data = np.frombuffer(text.encode(), dtype=np.uint8)
    return np.append(np.flatnonzero((data & _CONTINUES) != _CONTINUATION), len(data))


@functools.cache
def cl100k() -> tiktoken.Encoding:
    """LlamaIndex's default tokenizer, from the copy of its vocabulary that LlamaIndex ships: no download."""
    import llama_index.core
    import tiktoken

    name = "TIKTOKEN_CACHE_DIR"
    given = os.environ.get(name)
    try:
        if given is None:
            os.environ[name] = str(Path(llama_index.core.__file__).parent / "_static" / "tiktoken_cache")
        return tiktoken.get_encoding("cl100k_base")
    finally:
        if given is None:
            os.environ.pop(name, None)


@functools.cache
def _widths() -> np.ndarray[Any, np.dtype[np.int64]]:
    """The bytes of each cl100k token."""
    encoding = cl100k()
    widths = np.zeros(encoding.n_vocab, np.int64)
    ordinary = range(len(encoding.token_byte_values()))
    widths[: len(ordinary)] = [len(encoding.decode_single_token_bytes(token)) for token in ordinary]
    return widths


@functools.cache
def _minilm() -> Callable[[str], int]:
    from llama_index_contextual.embedding import minilm_tokenizer

    tokenizer = minilm_tokenizer()
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False))


def make_scale(text: str, tokenizer: str | Callable[[str], Sized]) -> Scale:
    """The scale of one document.

    Args:
        text: The document, without lone surrogates.
        tokenizer: ``"cl100k"``, ``"minilm"`` (word pieces of the local embedding), ``"estimate"``, or a callable
            that returns the tokens of a text.

    Raises:
        SettingError: The name is unknown.
        MissingExtraError: ``"minilm"`` needs the ``local`` extra.
    """
    if tokenizer == "estimate":
        return EstimateScale(text)
    if tokenizer == "cl100k":
        return BytePairScale(text, cl100k(), _widths())
    if tokenizer == "minilm":
        return CallableScale(text, _minilm(), adds_up=True)
    if not isinstance(tokenizer, str):
        return CallableScale(text, lambda part: len(tokenizer(part)))
    raise SettingError(
        f"tokenizer={tokenizer!r} is not known. Cure: 'cl100k', 'minilm', 'estimate', or a callable that returns tokens"
    )

"""Counting tokens of many slices of one document: exactly, and each character about once.

A *scale* is made for one document. It first weighs the parts between the marks (their sums are exact for tokenizers
that add up at line starts, estimates for others), then says what an assembled slice taken alone has.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sized
from typing import TYPE_CHECKING, Final, Protocol

from llama_index_contextual.errors import SettingError
from llama_index_contextual.markdown.byte_pairs import BytePairScale, cl100k

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BYTES_PER_TOKEN: Final = 3.5  # of real Markdown in cl100k; as an estimate it overflows about 3 % of chunks


class Scale(Protocol):
    """Token counts of slices of one document."""

    def cumulative(self, offsets: Sequence[int]) -> list[int]:
        """Tokens before each of the ascending offsets, counted from the first one."""

    def exact(self, start: int, end: int, stop: int) -> int:
        """Tokens of ``text[start:end]`` taken alone, where ``text[end:stop]`` is white space."""


class EstimateScale:
    """UTF-8 bytes ÷ 3.5, rounded up."""

    def __init__(self, text: str) -> None:
        self._text = text

    def cumulative(self, offsets: Sequence[int]) -> list[int]:
        """See :class:`Scale`; within one token of exact."""
        text = self._text
        if text.isascii():
            first = offsets[0]
            return [math.ceil((offset - first) / BYTES_PER_TOKEN) for offset in offsets]
        sizes = (len(text[a:b].encode()) for a, b in itertools.pairwise(offsets))
        return [math.ceil(size / BYTES_PER_TOKEN) for size in itertools.accumulate(sizes, initial=0)]

    def exact(self, start: int, end: int, stop: int) -> int:  # noqa: ARG002
        """See :class:`Scale`."""
        text = self._text
        size = end - start if text.isascii() else len(text[start:end].encode())
        return math.ceil(size / BYTES_PER_TOKEN)


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


@functools.cache
def _minilm() -> Callable[[str], int]:
    from llama_index_contextual.embedding import minilm_tokenizer

    tokenizer = minilm_tokenizer()
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False))


def _count(tokenizer: Callable[[str], Sized | int], text: str) -> int:
    tokens = tokenizer(text)
    if isinstance(tokens, int):
        return tokens
    if isinstance(tokens, Sized) and not isinstance(tokens, Mapping):  # a Hugging Face tokenizer gives {"input_ids": …}
        return len(tokens)
    raise SettingError(
        f"The tokenizer returned {type(tokens).__name__}. "
        "Cure: a callable that returns the tokens of a text (such as tokenizer.tokenize), or how many"
    )


def make_scale(text: str, tokenizer: str | Callable[[str], Sized | int]) -> Scale:
    """The scale of one document.

    Args:
        text: The document, without lone surrogates.
        tokenizer: ``"cl100k"``, ``"minilm"`` (word pieces of the local embedding), ``"estimate"``, or a callable
            that returns the tokens of a text, or how many.

    Raises:
        SettingError: The name is unknown, or the callable returns neither.
        MissingExtraError: ``"minilm"`` needs the ``local`` extra.
    """
    if tokenizer == "estimate":
        return EstimateScale(text)
    if tokenizer == "cl100k":
        return BytePairScale(text, *cl100k())
    if tokenizer == "minilm":
        return CallableScale(text, _minilm(), adds_up=True)
    if not isinstance(tokenizer, str):
        return CallableScale(text, functools.partial(_count, tokenizer))
    raise SettingError(
        f"tokenizer={tokenizer!r} is not known. Cure: 'cl100k', 'minilm', 'estimate', or a callable that returns tokens"
    )

"""Counting tokens of many slices of one document, exactly and few times.

A *scale* is made for one document and answers how many tokens lie between two offsets: ``between`` may be a sum over
parts (an estimate for a tokenizer that is not additive), ``exact`` is the count of the slice taken alone.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from llama_index_contextual.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence, Sized

    import tiktoken

BYTES_PER_TOKEN: Final = 3.5  # of real Markdown in cl100k; as an estimate it overflows about 3 % of chunks


_WIDER_FROM: Final = (0x80, 0x800, 0x10000)  # the first characters of two, three and four bytes


class Scale(Protocol):
    """Token counts of slices of one document."""

    def cumulative(self, offsets: Sequence[int]) -> list[int]:
        """Tokens before each of the ascending offsets, from the first one on; line starts give the best sums."""

    def exact(self, start: int, end: int) -> int:
        """Tokens of ``text[start:end]`` taken alone."""


class EstimateScale:
    """UTF-8 bytes ÷ 3.5, rounded up."""

    def __init__(self, text: str) -> None:
        self._bytes = None if text.isascii() else _bytes_before(text)

    def cumulative(self, offsets: Sequence[int]) -> list[int]:
        """See :class:`Scale`."""
        if self._bytes is None:
            first = offsets[0]
            return [math.ceil((offset - first) / BYTES_PER_TOKEN) for offset in offsets]
        at = self._bytes[np.asarray(offsets)]
        counts: list[int] = np.ceil((at - at[0]) / BYTES_PER_TOKEN).astype(np.int64).tolist()
        return counts

    def exact(self, start: int, end: int) -> int:
        """See :class:`Scale`."""
        if self._bytes is None:
            return math.ceil((end - start) / BYTES_PER_TOKEN)
        return math.ceil(int(self._bytes[end] - self._bytes[start]) / BYTES_PER_TOKEN)


class CallableScale:
    """Any tokenizer, taken as a black box: counts parts once each, and every assembled slice again."""

    def __init__(self, text: str, count: Callable[[str], int]) -> None:
        self._text = text
        self._count = count

    def cumulative(self, offsets: Sequence[int]) -> list[int]:
        """See :class:`Scale`."""
        total = 0
        sums = [0]
        for start, end in itertools.pairwise(offsets):
            total += self._count(self._text[start:end])
            sums.append(total)
        return sums

    def exact(self, start: int, end: int) -> int:
        """See :class:`Scale`."""
        return self._count(self._text[start:end])


def _bytes_before(text: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """UTF-8 bytes before each character, and at the end."""
    code = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    width = np.searchsorted(_WIDER_FROM, code, side="right") + 1
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(width)))


@functools.cache
def cl100k() -> tiktoken.Encoding:
    """LlamaIndex's default tokenizer, from the copy of its vocabulary that LlamaIndex ships."""
    import os
    from pathlib import Path

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


def _count_cl100k(text: str) -> int:
    return len(cl100k().encode_ordinary(text))


@functools.cache
def _minilm() -> Callable[[str], int]:
    from llama_index_contextual.embedding import minilm_tokenizer

    tokenizer = minilm_tokenizer()
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def make_scale(text: str, tokenizer: str | Callable[[str], Sized]) -> Scale:
    """The scale of one document.

    Args:
        text: The document, without lone surrogates.
        tokenizer: ``"cl100k"``, ``"minilm"`` (word pieces of the local embedding), ``"estimate"``, or a callable
            that returns the tokens of a text.

    Raises:
        SettingError: The name is unknown.
    """
    if tokenizer == "estimate":
        return EstimateScale(text)
    if tokenizer == "cl100k":
        return CallableScale(text, _count_cl100k)
    if tokenizer == "minilm":
        return CallableScale(text, _minilm())
    if callable(tokenizer):
        return CallableScale(text, lambda part: len(tokenizer(part)))
    raise SettingError(
        f"tokenizer={tokenizer!r} is not known. Cure: 'cl100k', 'minilm', 'estimate', or a callable that returns tokens"
    )

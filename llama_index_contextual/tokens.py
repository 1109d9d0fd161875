"""Token counts of many slices of one document: exact ones, and each character counted about once.

A *scale* is made for one document. First it weighs the parts between the marks. Their sums are exact for tokenizers
that add up at line starts, and estimates for others. Then it counts what an assembled slice has when it is alone.

``"cl100k"`` is LlamaIndex's default tokenizer. The vocabulary is the copy that LlamaIndex ships, so nothing is
downloaded. gigatoken gives the same tokens as tiktoken many times faster (``benchmarks/chunking.py`` prints both), and
is used where the ``fast`` extra is installed. ``"minilm"`` counts the word pieces of the local embedding.
"""

from __future__ import annotations

import base64
import functools
import itertools
import math
import os
import re
from collections.abc import Callable, Mapping, Sized
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import numpy as np

from llama_index_contextual.errors import MissingExtraError, SettingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import gigatoken
    import tiktoken
    from tokenizers import BertWordPieceTokenizer

Tokens: TypeAlias = "np.ndarray[Any, np.dtype[np.uint32]]"
Widths: TypeAlias = "np.ndarray[Any, np.dtype[np.int32]]"
Encode: TypeAlias = Callable[[str], Tokens]

_CONTINUES, _CONTINUATION = np.uint8(0xC0), np.uint8(0x80)  # a byte inside a UTF-8 character is 0b10xxxxxx
_BLOCK: Final = 1 << 16  # bytes looked at together: numpy's positions take eight times as much
_PIECE: Final = 10_000  # characters at once where tiktoken's regular expression gives up
_INDENTED: Final = re.compile(r"[ \t]{0,99}\S")
_VOCABULARY: Final = "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"  # tiktoken's name for cl100k's file in its cache
# gigatoken remembers every word it has seen: up to 6 bytes for each byte of text without repetitions, 328 MB after
# 61 MB of random words. Loading the vocabulary anew takes 0.16 s, so starting over after this many characters is cheap.
_FORGET_AFTER: Final = 16_000_000
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


class BytePairScale:
    r"""A byte-pair tokenizer such as cl100k: the document is encoded once, and slices are looked up.

    A token boundary that is a line start (with no blank line after it) splits every text alike: its regular expression
    never takes a line feed together with what follows, and byte pairs never merge across. So the tokens between two
    such boundaries are those of the slice alone. At the other end, a boundary between two tokens gives the slice the
    same tokens, because the merges inside it did not depend on what followed; where a token goes on over the end
    (``".\n\n"`` is one), the punctuation before the end is encoded again.

    Args:
        text: The document.
        encode: Gives the tokens of a text.
        widths: The bytes of each token.
    """

    def __init__(self, text: str, encode: Encode, widths: Widths) -> None:
        self._text = text
        self._encode = encode
        self._bytes = None if text.isascii() else bytes_before(text)
        self._ends = np.cumsum(widths[encode(text)], dtype=np.int32)

    def cumulative(self, offsets: Sequence[int]) -> list[int]:
        """Tokens before each of the ascending offsets, counted from the first one; exact at line starts."""
        at = np.asarray(offsets, np.int32)  # any wider type makes searchsorted copy all ends
        at = at if self._bytes is None else self._bytes[at]
        before = np.searchsorted(self._ends, at, side="right")
        counts: list[int] = (before - before[0]).tolist()
        return counts

    def exact(self, start: int, end: int, stop: int) -> int:  # noqa: ARG002
        """Tokens of ``text[start:end]`` taken alone."""
        text = self._text
        before, at_start = self._tokens_before(start)
        if start and not (at_start and text[start - 1] in "\r\n" and _INDENTED.match(text, start)):
            return len(self._encode(text[start:end]))
        until, at_end = self._tokens_before(end)
        if at_end:
            return until - before
        mark = end  # where the punctuation starts that the token over the end begins with
        while mark > start and not (text[mark - 1].isalnum() or text[mark - 1].isspace()):
            mark -= 1
        if mark > start and text[mark - 1] == " ":
            mark -= 1  # cl100k takes one space together with the punctuation after it
        until, at_mark = self._tokens_before(mark)
        if at_mark and mark < end:
            return until - before + len(self._encode(text[mark:end]))
        return len(self._encode(text[start:end]))

    def _tokens_before(self, offset: int) -> tuple[int, bool]:
        """How many tokens end at or before an offset, and whether one ends right there."""
        at = np.int32(offset) if self._bytes is None else self._bytes[offset]
        count = int(self._ends.searchsorted(at, side="right"))
        return count, (int(self._ends[count - 1]) if count else 0) == at


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
        return CallableScale(text, count_word_pieces, adds_up=True)
    if not isinstance(tokenizer, str):
        return CallableScale(text, functools.partial(_count, tokenizer))
    raise SettingError(
        f"tokenizer={tokenizer!r} is not known. Cure: 'cl100k', 'minilm', 'estimate', or a callable that returns tokens"
    )


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


def bytes_before(text: str) -> Widths:
    """UTF-8 bytes before each character, and at the end."""
    data = np.frombuffer(text.encode(), dtype=np.uint8)
    before = np.empty(len(text) + 1, np.int32)  # a document of two gigabytes does not get this far
    known = 0
    for low in range(0, len(data), _BLOCK):
        first_bytes = np.flatnonzero((data[low : low + _BLOCK] & _CONTINUES) != _CONTINUATION)
        before[known : known + len(first_bytes)] = first_bytes + low
        known += len(first_bytes)
    before[-1] = len(data)
    return before


@functools.cache
def cl100k() -> tuple[Encode, Widths]:
    """The fastest encoder that is installed, and the bytes of each of its tokens."""
    vocabulary = _vocabularies() / _VOCABULARY
    if find_spec("gigatoken") is None or not vocabulary.is_file():
        return with_tiktoken()
    return with_gigatoken()


def with_gigatoken() -> tuple[Encode, Widths]:
    """cl100k by gigatoken (Marcel Rød), which the ``fast`` extra installs."""
    vocabulary = _vocabularies() / _VOCABULARY
    with vocabulary.open("rb") as lines:  # one at a time: a list of them all took 25 MB
        tokens = (line.split() for line in lines)
        pairs = np.fromiter(((int(rank), len(base64.b64decode(token))) for token, rank in tokens), "i4,i4")
    widths = np.zeros(len(pairs), np.int32)
    widths[pairs["f0"]] = pairs["f1"]
    return _Gigatoken(vocabulary), widths


def with_tiktoken() -> tuple[Encode, Widths]:
    """cl100k by tiktoken, which LlamaIndex itself uses."""
    encoding = tiktoken_cl100k()
    widths = np.zeros(encoding.n_vocab, np.int32)
    ordinary = range(len(encoding.token_byte_values()))
    widths[: len(ordinary)] = [len(encoding.decode_single_token_bytes(token)) for token in ordinary]
    return functools.partial(_encode_in_pieces, encoding), widths


@functools.cache
def tiktoken_cl100k() -> tiktoken.Encoding:
    """Tiktoken's own object, read from LlamaIndex's copy of the vocabulary."""
    import tiktoken

    name = "TIKTOKEN_CACHE_DIR"
    given = os.environ.get(name)
    try:
        if given is None:
            os.environ[name] = str(_vocabularies())
        return tiktoken.get_encoding("cl100k_base")
    finally:
        if given is None:
            os.environ.pop(name, None)


class _Gigatoken:
    """Encodes, and forgets the words it has seen before they fill the memory.

    Threads may share one: a tokenizer that another thread has replaced goes on working.
    """

    def __init__(self, vocabulary: Path) -> None:
        self._vocabulary = vocabulary
        self._seen = 0
        self._tokenizer = self._load()

    def __call__(self, text: str) -> Tokens:
        self._seen += len(text)
        if self._seen > _FORGET_AFTER:
            self._seen = 0
            self._tokenizer = self._load()
        return self._tokenizer.encode(text)

    def _load(self) -> gigatoken.Tokenizer:
        from gigatoken import Tokenizer

        return Tokenizer.from_tiktoken(self._vocabulary, pretokenizer="cl100k")


def _encode_in_pieces(encoding: tiktoken.Encoding, text: str) -> Tokens:
    try:
        return encoding.encode_to_numpy(text, disallowed_special=())
    except ValueError:  # a megabyte of white space exhausts the stack of its regular expressions
        parts = [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]
        return np.concatenate([encoding.encode_to_numpy(part, disallowed_special=()) for part in parts])


def _vocabularies() -> Path:
    import llama_index.core

    return Path(llama_index.core.__file__).parent / "_static" / "tiktoken_cache"


@functools.lru_cache(maxsize=4)
def minilm_tokenizer(vocab: str | None = None) -> BertWordPieceTokenizer:
    """Return a word-piece tokenizer without truncation or padding; one object per vocabulary, safe to share.

    Args:
        vocab: Path of a WordPiece ``vocab.txt``; the one that ships with this package by default.

    Raises:
        MissingExtraError: The ``local`` extra is not installed.
    """
    try:
        from tokenizers import BertWordPieceTokenizer
    except ImportError as error:
        raise MissingExtraError("tokenizers", "local") from error
    path = vocab or str(files("llama_index_contextual").joinpath("data", "minilm-vocab.txt"))
    return BertWordPieceTokenizer(path, lowercase=True)


def count_word_pieces(text: str) -> int:
    """Count the word pieces of a text as the local model reads it, without the two special tokens it adds."""
    return len(minilm_tokenizer().encode(text, add_special_tokens=False))

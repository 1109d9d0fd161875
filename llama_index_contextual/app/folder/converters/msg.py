"""Mail as Outlook stores it, in a compound file with a stream for each property.

Strings are read leniently. An invalid byte or an unknown code page only costs some letters, and not
the whole mail.
"""

from __future__ import annotations

import codecs
import datetime as dt
import email.parser
import struct
from collections.abc import Iterable, Mapping
from email.utils import format_datetime
from pathlib import Path
from typing import Any, NamedTuple

from llama_index_contextual.app.folder.converters.eml import (
    MailVersion,
    assemble_mail,
    convert_text,
    fullest_version,
    mail_metadata,
)
from llama_index_contextual.app.folder.formats import Conversion, ConversionError, declare_format

# Properties by their numbers (MS-OXPROPS).
_SUBJECT = "0037"
_SENT = 0x0039
_HEADERS = "007D"
_SENDER = ("0C1A", "0C1F", "5D01")  # name, address, SMTP address
_REPRESENTED = "0042"
_BODY = "1000"
_HTML = "1013"
_RECIPIENT = ("3001", "39FE", "3003")
_ATTACHMENT = ("3707", "3704", "3001")  # long name, short name, display name
_CODE_PAGE = 0x3FFD
_INTERNET_CODE_PAGE = 0x3FDE
_PROPERTIES = "__properties_version1.0"
_HEADER = 32  # bytes before the properties of a mail
_ENTRY = struct.Struct("<HHIQ")  # kind, number, flags, value
_EPOCH = dt.datetime(1601, 1, 1, tzinfo=dt.timezone.utc)
# Code pages that have other names in Python.
_CODECS = {
    1200: "utf-16-le",
    20127: "ascii",
    20866: "koi8-r",
    20932: "euc-jp",
    21866: "koi8-u",
    50220: "iso-2022-jp",
    50221: "iso-2022-jp",
    50225: "iso-2022-kr",
    51932: "euc-jp",
    51949: "euc-kr",
    54936: "gb18030",
    65000: "utf-7",
    65001: "utf-8",
}


@declare_format(
    "Outlook mail",
    ".msg",
    packages=("olefile", "bs4", "lxml"),
    kept="the HTML version if it says more",
    left_out="attachments (named)",
)
def read_msg(path: Path) -> Conversion:
    """Return an Outlook mail.

    Raises:
        ConversionError: The file is damaged, or not an Outlook mail.
    """
    import olefile

    if not olefile.isOleFile(path):
        raise ConversionError("it is damaged or not an Outlook mail. Ignore it.")
    with olefile.OleFileIO(path) as file:
        numbers = _numbers_of(file)
        message = _Storage(file, "", _encodings_of(numbers))
        names = sorted({entry[0] for entry in file.listdir(streams=False, storages=True)})

        def inner(prefix: str) -> list[_Storage]:
            return [
                _Storage(file, name, message.encodings) for name in names if name.startswith(prefix)
            ]

        recipients = [recipient.address(_RECIPIENT) for recipient in inner("__recip")]
        attachments = [attachment.first(_ATTACHMENT) for attachment in inner("__attach")]
        headers = _headers(message, recipients, numbers.get(_SENT))
        bodies = {"text/plain": message.text(_BODY), "text/html": message.text(_HTML)}
    versions = [MailVersion(kind, [convert_text(text, kind)]) for kind, text in bodies.items()]
    return assemble_mail(fullest_version(versions), attachments, mail_metadata(headers))


class _Encodings(NamedTuple):
    """The encodings of 8-bit strings."""

    properties: str
    bodies: str


class _Storage:
    """The properties of a mail, a recipient or an attachment.

    Args:
        file: The compound file.
        folder: The name of the storage in the file; "" for the mail itself.
        encodings: The encodings of its strings.
    """

    def __init__(self, file: Any, folder: str, encodings: _Encodings) -> None:
        self._file = file
        self._folder = folder
        self.encodings = encodings

    def text(self, number: str) -> str:
        """Return a string property, or "" if it is missing."""
        wide = self._stream(number, "001F")
        if wide:
            return wide.decode("utf-16-le", "replace").rstrip("\0")
        data = self._stream(number, "001E") or self._stream(number, "0102")
        is_body = number in (_BODY, _HTML)
        encoding = self.encodings.bodies if is_body else self.encodings.properties
        return data.decode(encoding, "replace").rstrip("\0")

    def first(self, numbers: tuple[str, ...]) -> str:
        """Return the first string property that is not empty."""
        return next(filter(None, map(self.text, numbers)), "")

    def address(self, numbers: tuple[str, ...]) -> str:
        """Return the name in the first property, with the first address in the other ones."""
        name = self.text(numbers[0]).strip()
        address = self.first(numbers[1:])
        return f"{name} <{address}>".strip() if address else name

    def _stream(self, number: str, kind: str) -> bytes:
        name = f"__substg1.0_{number}{kind}"
        return _stream(self._file, [self._folder, name] if self._folder else [name])


def _stream(file: Any, path: list[str]) -> bytes:
    """Return the bytes of a stream, or b"" if it is missing."""
    if not file.exists(path):
        return b""
    data: bytes = file.openstream(path).read()
    return data


def _numbers_of(file: Any) -> dict[int, int]:
    """Return the numbers and times of a mail by property number."""
    data = _stream(file, [_PROPERTIES])[_HEADER:]
    complete = len(data) - len(data) % _ENTRY.size
    entries = _ENTRY.iter_unpack(data[:complete])
    return {number: value for _, number, _, value in entries}


def _encodings_of(numbers: Mapping[int, int]) -> _Encodings:
    properties = _codec(numbers.get(_CODE_PAGE), "cp1252")
    return _Encodings(properties, _codec(numbers.get(_INTERNET_CODE_PAGE), properties))


def _headers(message: _Storage, recipients: Iterable[str], sent: int | None) -> dict[str, Any]:
    """Return the headers of a mail.

    Those that it was sent with replace Outlook's recipients and sender, but not its subject and
    date.
    """
    headers: dict[str, Any] = {"to": ", ".join(filter(None, recipients))}
    sent_headers = email.parser.HeaderParser().parsestr(message.text(_HEADERS))
    headers |= {name.lower(): str(value) for name, value in sent_headers.items()}
    headers["subject"] = message.text(_SUBJECT)
    headers.setdefault("from", message.address(_SENDER) or message.text(_REPRESENTED))
    if sent is not None:
        headers["date"] = format_datetime(_EPOCH + dt.timedelta(microseconds=sent // 10))
    return headers


def _codec(code_page: int | None, default: str) -> str:
    """Return Python's name for a code page, or the default if the code page is unknown."""
    number = (code_page or 0) & 0xFFFFFFFF
    try:
        return codecs.lookup(_CODECS.get(number, f"cp{number}")).name
    except LookupError:
        return default

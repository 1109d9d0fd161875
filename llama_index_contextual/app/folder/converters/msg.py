"""Mail as Outlook stores it, in a compound file with a stream for each property.

Strings are read leniently. An invalid byte or an unknown code page only costs some letters, and not
the whole mail.
"""

from __future__ import annotations

import codecs
import datetime as dt
import email.parser
import struct
from email.utils import format_datetime
from pathlib import Path
from typing import Any

from llama_index_contextual.app.folder.converters.eml import (
    fullest_pages,
    mail_metadata,
    mail_page,
    text_page,
)
from llama_index_contextual.app.folder.formats import Conversion, ConversionError, format_of

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


@format_of(
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
        message = _Storage(file, "")
        headers: dict[str, Any] = {}
        recipients = file.listdir(streams=False, storages=True)
        names = sorted({entry[0] for entry in recipients})
        addresses = [
            _Storage(file, name, message.encodings).address(_RECIPIENT)
            for name in names
            if name.startswith("__recip")
        ]
        attached = [
            _Storage(file, name, message.encodings).first(_ATTACHMENT)
            for name in names
            if name.startswith("__attach")
        ]
        headers["to"] = ", ".join(filter(None, addresses))
        sent = email.parser.HeaderParser().parsestr(message.text(_HEADERS))
        headers |= {name.lower(): str(value) for name, value in sent.items()}
        headers["subject"] = message.text(_SUBJECT)
        sender = message.address(_SENDER) or message.text(_REPRESENTED)
        headers.setdefault("from", sender)
        if _SENT in message.values:
            since = dt.timedelta(microseconds=message.values[_SENT] // 10)
            headers["date"] = format_datetime(_EPOCH + since)
        bodies = {"text/plain": message.text(_BODY), "text/html": message.text(_HTML)}
    alternatives = [(kind, [text_page(text, kind)]) for kind, text in bodies.items()]
    return mail_page(fullest_pages(alternatives), attached, mail_metadata(headers))


class _Storage:
    """The properties of a mail, a recipient or an attachment.

    Attributes:
        values: The numbers and times, by property number.
        encodings: The encodings of 8-bit strings in properties and in bodies.
    """

    def __init__(self, file: Any, folder: str, encodings: tuple[str, str] | None = None) -> None:
        self._file = file
        self._folder = folder
        self.values: dict[int, int] = {}
        if encodings is None:
            data = self._stream(_PROPERTIES)[_HEADER:]
            complete = len(data) - len(data) % _ENTRY.size
            for _, number, _, value in _ENTRY.iter_unpack(data[:complete]):
                self.values[number] = value
            general = _codec(self.values.get(_CODE_PAGE), "cp1252")
            encodings = (general, _codec(self.values.get(_INTERNET_CODE_PAGE), general))
        self.encodings = encodings

    def text(self, number: str) -> str:
        """Return a string property, or "" if it is missing."""
        wide = self._stream(f"__substg1.0_{number}001F")
        if wide:
            return wide.decode("utf-16-le", "replace").rstrip("\0")
        data = self._stream(f"__substg1.0_{number}001E") or self._stream(
            f"__substg1.0_{number}0102"
        )
        is_body = number in (_BODY, _HTML)
        return data.decode(self.encodings[is_body], "replace").rstrip("\0")

    def first(self, numbers: tuple[str, ...]) -> str:
        """Return the first string property that is not empty."""
        return next(filter(None, map(self.text, numbers)), "")

    def address(self, numbers: tuple[str, ...]) -> str:
        """Return the name in the first property, with the first address in the other ones."""
        name = self.text(numbers[0]).strip()
        address = self.first(numbers[1:])
        return f"{name} <{address}>".strip() if address else name

    def _stream(self, name: str) -> bytes:
        path = [self._folder, name] if self._folder else [name]
        if not self._file.exists(path):
            return b""
        data: bytes = self._file.openstream(path).read()
        return data


def _codec(code_page: int | None, default: str) -> str:
    """Return Python's name for a code page, or the default if the code page is unknown."""
    number = (code_page or 0) & 0xFFFFFFFF
    try:
        return codecs.lookup(_CODECS.get(number, f"cp{number}")).name
    except LookupError:
        return default

"""Mail as it is sent: its texts, forwarded mails, and the names of its attachments."""

from __future__ import annotations

import contextlib
import email
import email.policy
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from llama_index_contextual.app.folder.files import decode
from llama_index_contextual.app.folder.formats import (
    Conversion,
    ConversionError,
    Part,
    declare_format,
)
from llama_index_contextual.app.folder.markdown import escape, heading
from llama_index_contextual.utils.errors import DocumentError

if TYPE_CHECKING:
    from email.message import EmailMessage, MIMEPart

_MARKUP = ("text/html", "text/enriched", "text/richtext")
_INVITATION = "text/calendar"
_MAX_HEADER = 3_000  # characters, more than the 2,000 that metadata keeps
_HEADERS = {"subject": "subject", "from": "sender", "to": "to", "cc": "cc"}
# The labels of an invitation's properties.
_EVENT = {
    "SUMMARY": "Subject",
    "DTSTART": "Begin",
    "DTEND": "End",
    "LOCATION": "Place",
    "ORGANIZER": "Organizer",
    "DESCRIPTION": "Description",
}
_DAY = re.compile(r"(\d{4})(\d\d)(\d\d)(?:T(\d\d)(\d\d)\d\d(Z?))?")


class MailVersion(NamedTuple):
    """One of the alternative versions of a mail, such as plain text or HTML."""

    media_type: str
    texts: list[Conversion]

    @property
    def words(self) -> set[str]:
        """Return the words of its texts in lower case."""
        text = " ".join(text.text for text in self.texts)
        return set(re.findall(r"\w+", text.lower()))


class _ShortHeaders(email.policy.EmailPolicy):
    """A policy that reads only the start of each header.

    Python's parser takes time proportional to the square of its length. A deeply nested header is
    returned as text.
    """

    def header_fetch_parse(self, name: str, value: str) -> Any:
        """Return the value of a header."""
        try:
            return super().header_fetch_parse(name, value[:_MAX_HEADER])
        except RecursionError:
            return value[:_MAX_HEADER]


@declare_format(
    "Mail",
    ".eml",
    packages=("bs4", "lxml"),
    kept="the HTML version if it says more, attached mails, invitations without text",
    left_out="attachments (named)",
)
def read_eml(path: Path) -> Conversion:
    """Return a mail as it is sent."""
    message = _message(path.read_bytes())
    if not message.keys():
        raise ConversionError("it is not a mail, because it has no headers. Ignore it.")
    attachments: list[MIMEPart] = []
    texts = _texts_of(message, attachments)
    if not any(text.text.strip() for text in texts):
        invitations = [part for part in attachments if part.get_content_type() == _INVITATION]
        texts += map(_invitation, invitations)
    names = [part.get_filename() or part.get_content_type() for part in attachments]
    return assemble_mail(texts, names, mail_metadata(message))


def html_of_mail(data: bytes) -> str:
    """Return the HTML in a mail or in a web page saved as one file; "" if there is none."""
    from llama_index_contextual.app.folder.html_to_markdown import decode_html

    for part in _message(data).walk():
        payload = part.get_payload(decode=True)
        if part.get_content_type() == "text/html" and isinstance(payload, bytes):
            return decode_html(payload, part.get_content_charset() or "")
    return ""


def _message(data: bytes) -> EmailMessage:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        data = data.decode("utf-16", "replace").encode()
    start = data.removeprefix(b"\xef\xbb\xbf").lstrip()
    return cast("EmailMessage", email.message_from_bytes(start, policy=_ShortHeaders()))


def assemble_mail(
    texts: Sequence[Conversion], attachments: Iterable[str], metadata: dict[str, str]
) -> Conversion:
    """Return a mail as one part with its subject, its texts and the names of its attachments."""
    names = list(filter(None, (" ".join(name.split()) for name in attachments)))
    subject = metadata["subject"]
    blocks = [heading(1, subject) if subject else ""]
    blocks += [text.text.strip() for text in texts]
    if names:
        blocks.append(f"Attached: {', '.join(names)}")
    left_out = Counter(attachment=len(names))
    for text in texts:
        left_out.update(text.left_out)
    markdown = "\n\n".join(filter(None, blocks))
    return Conversion([Part(f"{markdown}\n")], {"title": subject, **metadata}, left_out)


def mail_metadata(headers: EmailMessage | Mapping[str, Any]) -> dict[str, str]:
    """Return the metadata of a mail from its headers."""
    metadata = {}
    for name, key in _HEADERS.items():
        value = str(headers.get(name, "")).replace("\0", "")
        metadata[key] = " ".join(value.split())
    with contextlib.suppress(ValueError, TypeError):
        metadata["date"] = parsedate_to_datetime(str(headers.get("date"))).date().isoformat()
    return metadata


def _texts_of(part: Any, attachments: list[MIMEPart], depth: int = 1) -> list[Conversion]:
    """Return the texts of a part in order, with one of any alternatives.

    Args:
        part: A mail, or a part of it.
        attachments: The list to which parts that are not text are added.
        depth: The number of mails that contain the part.
    """
    media_type = part.get_content_type()
    inner_parts = part.get_payload() if part.is_multipart() else []
    if inner_parts and media_type == "message/rfc822":
        mail = inner_parts[0]
        title = heading(depth + 1, mail_metadata(mail)["subject"] or "Mail")
        return [Conversion([Part(title)]), *_texts_of(mail, attachments, depth + 1)]
    if inner_parts:
        versions = [
            MailVersion(inner.get_content_type(), _texts_of(inner, attachments, depth))
            for inner in inner_parts
        ]
        if media_type == "multipart/alternative":
            return fullest_version(versions)
        return [text for version in versions for text in version.texts]
    is_text = part.get_content_maintype() in ("text", "multipart") and media_type != _INVITATION
    if is_text and not part.is_attachment() and not part.get_filename():
        with contextlib.suppress(DocumentError):  # a binary part is an attachment
            return [convert_text(_content_of(part), media_type)]
    attachments.append(part)
    return []


def _content_of(part: Any) -> str:
    from llama_index_contextual.app.folder.html_to_markdown import decode_html

    data = part.get_payload(decode=True)
    default = "" if part.get_content_type() in _MARKUP else "utf-8"
    charset = part.get_content_charset() or default
    return decode_html(data, charset) if isinstance(data, bytes) else ""


def convert_text(text: str, media_type: str) -> Conversion:
    """Return a text with a media type as Markdown."""
    from llama_index_contextual.app.folder.html_to_markdown import html_to_markdown

    if media_type in _MARKUP and text.strip():
        return html_to_markdown(text)
    lines = "\n".join(line.rstrip() for line in text.splitlines()).strip()
    return Conversion([Part(escape(lines, keep_lists=True))])


def _invitation(part: Any) -> Conversion:
    """Return the first event of a calendar, with one line per property."""
    data = part.get_payload(decode=True) or b""
    unfolded = re.sub(r"\r?\n[ \t]", "", decode(data).text)
    event = unfolded.partition("BEGIN:VEVENT")[2].partition("END:VEVENT")[0]
    lines = []
    for line in event.splitlines():
        key, _, value = line.partition(":")
        label = _EVENT.get(key.partition(";")[0].upper())
        if label and value:
            lines.append(f"{label}: {_event_value(value)}")
    return convert_text("\n".join(lines), _INVITATION)


def _event_value(value: str) -> str:
    match = _DAY.fullmatch(value)
    if match is None:
        return re.sub(r"\\([,;\\])", r"\1", re.sub(r"\\[nN]", "\n", value))
    year, month, day, hour, minute, zone = match.groups(default="")
    time = f" {hour}:{minute}{' UTC' if zone else ''}" if hour else ""
    return f"{year}-{month}-{day}{time}"


def fullest_version(versions: Sequence[MailVersion]) -> list[Conversion]:
    """Return the plain text, or the richest version if plain text lacks half of its words."""
    plain = MailVersion("text/plain", [])
    rich = MailVersion("text/html", [])
    for version in versions:
        if not any(text.text.strip() for text in version.texts):
            continue
        if version.media_type != "text/plain":
            rich = version
        elif not plain.texts:
            plain = version
    rich_words = rich.words
    is_plain_poor = 2 * len(rich_words & plain.words) < len(rich_words)
    chosen = rich if is_plain_poor else plain
    return chosen.texts or [text for version in versions for text in version.texts]

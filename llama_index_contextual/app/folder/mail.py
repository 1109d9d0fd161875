"""Mail to Markdown: its texts, its people and its day, and the names of its attachments."""

from __future__ import annotations

import contextlib
import email
import email.policy
from collections import Counter
from email.message import EmailMessage, MIMEPart
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final

from llama_index_contextual.app.folder import formats
from llama_index_contextual.app.folder.formats import Conversion, ConversionError, Part
from llama_index_contextual.app.folder.html import html_to_markdown
from llama_index_contextual.text import decode

if TYPE_CHECKING:
    from pathlib import Path

_SAYS_LITTLE: Final = 0.1  # of the length of the HTML: a plain text that is shorter is a note on mail programs
_HEADERS: Final = {"subject": "subject", "from": "sender", "to": "to", "cc": "cc"}


def read_eml(path: Path) -> Conversion:
    """A mail as it is sent.

    Raises:
        ConversionError: It has no headers.
    """
    message = email.message_from_bytes(path.read_bytes(), policy=email.policy.default)
    if not isinstance(message, EmailMessage) or not message.keys():
        raise ConversionError("it is no mail: it has no headers. Cure: ignore it.")
    plain, html = message.get_body(("plain",)), message.get_body(("html",))
    # Apple's Mail goes on with another text behind an attachment, and mailing lists end with one.
    more = [part for part in message.iter_attachments() if _is_written(part)]
    bodies = [("" if plain is None else _content(plain), "" if html is None else _content(html))]
    bodies += [("", _content(one)) if one.get_content_subtype() == "html" else (_content(one), "") for one in more]
    pictures = [one for one in message.walk() if one.get_content_maintype() == "image" and not one.is_attachment()]
    names = [_name(part) for part in message.iter_attachments() if part not in more]
    about = {key: " ".join(str(message.get(header, "")).split()) for header, key in _HEADERS.items()}
    with contextlib.suppress(ValueError, TypeError):
        about["date"] = parsedate_to_datetime(str(message["date"])).date().isoformat()
    return _mail(bodies, names, about, Counter(picture=len(pictures)))


def read_msg(path: Path) -> Conversion:
    """A mail as Outlook keeps it."""
    from oxmsg import Message

    message = Message.load(str(path))
    headers = {name.lower(): value for name, value in message.message_headers.items()}
    people = ", ".join(f"{one.name} <{one.email_address}>" for one in message.recipients)
    about = {
        "subject": " ".join((message.subject or "").split()),
        "sender": message.sender or headers.get("from", ""),
        "to": headers.get("to", "") or people,
        "cc": headers.get("cc", ""),
        "date": message.sent_date.date().isoformat() if message.sent_date else "",
    }
    names = [attachment.file_name or "" for attachment in message.attachments]
    return _mail([(message.body or "", message.html_body or "")], names, about, Counter())


def _mail(bodies: list[tuple[str, str]], names: list[str], about: dict[str, str], left_out: Counter[str]) -> Conversion:
    """A mail of some bodies, each as plain text and as HTML, which is read where it is much longer."""
    subject, attached = about["subject"], ", ".join(filter(None, names))
    blocks = [formats.heading(1, subject)] if subject else []
    for plain, html in bodies:
        text = formats.escape("\n".join(line.rstrip() for line in plain.splitlines()).strip(), keep_lists=True)
        page = html_to_markdown(html) if html.strip() else None
        if page is not None and len(text) <= _SAYS_LITTLE * len(page.text):
            left_out += page.left_out
            text = page.text.strip()
        blocks.append(text)
    blocks += [f"Attached: {attached}"] if attached else []
    metadata = {"title": subject, formats.ATTACHED: attached, **about}
    return Conversion([Part("\n\n".join(filter(None, blocks)) + "\n")], metadata, left_out)


def _content(part: MIMEPart) -> str:
    """The text of a part, even where its charset is unknown."""
    try:
        return str(part.get_content())
    except (LookupError, ValueError):
        data = part.get_payload(decode=True)
        return decode(data).text if isinstance(data, bytes) else ""


def _is_written(part: MIMEPart) -> bool:
    kind = part.get_content_type()
    return kind in ("text/plain", "text/html") and not part.is_attachment() and not part.get_filename()


def _name(part: MIMEPart) -> str:
    """The name of an attachment; a mail has its subject, and a picture inside of a text has none."""
    if part.get_content_type() == "message/rfc822":
        return f"mail {str(part.get_content().get('subject', '')).strip()!r}"
    name = part.get_filename() or (part.get_content_type() if part.is_attachment() else "")
    return " ".join(str(name).split())

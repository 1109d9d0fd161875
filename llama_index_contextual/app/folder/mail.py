"""Mail to Markdown: its texts, its people and its day, mails in it, and the names of its attachments."""

from __future__ import annotations

import contextlib
import email
import email.policy
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from email.message import EmailMessage, MIMEPart
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final

from llama_index_contextual.app.folder import formats
from llama_index_contextual.app.folder.formats import Conversion, ConversionError, Part
from llama_index_contextual.app.folder.html import decoded, html_to_markdown
from llama_index_contextual.errors import DocumentError

_MARKED: Final = ("text/html", "text/enriched", "text/richtext")


def read_eml(path: Path) -> Conversion:
    """A mail as it is sent.

    Raises:
        ConversionError: It has no headers.
    """
    message = email.message_from_bytes(path.read_bytes(), policy=email.policy.default)
    if not isinstance(message, EmailMessage) or not message.keys():
        raise ConversionError("it is no mail: it has no headers. Cure: ignore it.")
    others: list[MIMEPart] = []
    pages = _pages(message, others)
    pictures = sum(one.get_content_maintype() == "image" and not one.is_attachment() for one in others)
    return _mail([*pages, Conversion([], {}, {"picture": pictures})], map(_name, others), _about(message))


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
    bodies = {"text/plain": message.body or "", "text/html": message.html_body or ""}
    pages = _fullest([(kind, [_page(text, kind)]) for kind, text in bodies.items()])
    return _mail(pages, [attachment.file_name or "" for attachment in message.attachments], about)


def _mail(pages: Sequence[Conversion], names: Iterable[str], about: dict[str, str]) -> Conversion:
    subject, attached = about["subject"], ", ".join(filter(None, names))
    head, tail = formats.heading(1, subject) if subject else "", f"Attached: {attached}" if attached else ""
    blocks = filter(None, (head, *(page.text.strip() for page in pages), tail))
    left_out = Counter[str]()
    for page in pages:
        left_out.update(page.left_out)
    metadata = {"title": subject, formats.ATTACHED: attached, **about}
    return Conversion([Part("\n\n".join(blocks) + "\n")], metadata, left_out)


def _about(message: Any) -> dict[str, str]:
    headers = {"subject": "subject", "from": "sender", "to": "to", "cc": "cc"}
    about = {key: " ".join(str(message.get(header, "")).split()) for header, key in headers.items()}
    with contextlib.suppress(ValueError, TypeError):
        about["date"] = parsedate_to_datetime(str(message["date"])).date().isoformat()
    return about


def _pages(part: Any, others: list[MIMEPart], depth: int = 1) -> list[Conversion]:
    """The texts of a part in their order, and of alternatives one; what is no text is added to ``others``."""
    kind, inner = part.get_content_type(), part.get_payload() if part.is_multipart() else []
    if inner and kind == "message/rfc822" and depth < 5:  # noqa: PLR2004
        about = _about(inner[0])
        lines = [f"From: {about['sender']}"] * bool(about["sender"]) + [f"Date: {about.get('date')}"] * (
            "date" in about
        )
        text = "\n".join((formats.heading(depth + 1, about["subject"] or "Mail"), "", *lines))
        pages = _pages(inner[0], others, depth + 1)
        if any(page.text.strip() for page in pages):
            return [Conversion([Part(text)]), *pages]
    elif inner and kind != "message/rfc822":
        found = [(one.get_content_type(), _pages(one, others, depth)) for one in inner]
        return _fullest(found) if kind == "multipart/alternative" else [page for _, pages in found for page in pages]
    if part.get_content_maintype() in ("text", "multipart") and not part.is_attachment() and not part.get_filename():
        data = part.get_payload(decode=True)
        charset = part.get_content_charset() or ("" if kind in _MARKED else "utf-8")
        with contextlib.suppress(DocumentError):  # it is binary
            return [_page(decoded(data, charset) if isinstance(data, bytes) else "", kind)]
    others.append(part)
    return []


def _page(text: str, kind: str) -> Conversion:
    if kind in _MARKED and text.strip():
        return html_to_markdown(text)
    if kind == "text/calendar":
        text = _event(text)
    lines = "\n".join(line.rstrip() for line in text.splitlines()).strip()
    return Conversion([Part(formats.escape(lines, keep_lists=True))])


def _fullest(alternatives: Sequence[tuple[str, list[Conversion]]]) -> list[Conversion]:
    """The plain text, or the richest form where fewer than half of its words stand in the plain text."""
    filled = [(kind, pages) for kind, pages in alternatives if any(page.text.strip() for page in pages)]
    plain = next((pages for kind, pages in filled if kind == "text/plain"), [])
    rich = next((pages for kind, pages in reversed(filled) if kind not in ("text/plain", "text/calendar")), [])
    words, known = ({*re.findall(r"\w+", " ".join(page.text for page in pages).lower())} for pages in (rich, plain))
    chosen = rich if 2 * len(words & known) < len(words) else plain
    return chosen or [page for _, pages in alternatives for page in pages]


def _event(text: str) -> str:
    """What an event of a calendar is, and when and where."""
    event = re.sub(r"\r?\n[ \t]|\r", "", text).partition("BEGIN:VEVENT")[2]
    event = re.sub(r":(\d{4})(\d\d)(\d\d)", r":\1-\2-\3", event)
    event = re.sub(r"T(\d\d)(\d\d)\d\d(?=Z?$)", r" \1:\2", event, flags=re.MULTILINE)
    found = re.findall(r"(?m)^(SUMMARY|DTSTART|DTEND|LOCATION|DESCRIPTION)[^:\n]*:(.*)$", event)
    lines = (f"{name.removeprefix('DT').capitalize()}: {value}" for name, value in found)
    return "\n".join(lines).replace("\\n", "\n").replace("\\", "")


def _name(part: MIMEPart) -> str:
    """The name of an attachment; a mail has its subject, and a picture inside of a text has none."""
    if part.get_content_type() == "message/rfc822":
        return f"mail {str(part.get_content().get('subject', '')).strip()!r}"
    is_named = part.is_attachment() or part.get_content_maintype() == "text"
    name = part.get_filename() or (part.get_content_type() if is_named else "")
    return " ".join(str(name).split())

"""OpenDocument, EPUB, RTF and mail by way of HTML to Markdown.

OpenDocument is written as HTML element by element; in RTF, marks in the place of words tell headings, items and cells
from text.
"""

from __future__ import annotations

import codecs
import contextlib
import email
import email.policy
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from email.message import EmailMessage, MIMEPart
from email.utils import format_datetime, parsedate_to_datetime
from html import escape
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from llama_index_contextual.app.folder import formats
from llama_index_contextual.app.folder.formats import (
    Conversion,
    ConversionError,
    Part,
    attribute,
    integer,
    local,
)
from llama_index_contextual.app.folder.html import NUMBER, decoded, html_to_markdown
from llama_index_contextual.utils.errors import DocumentError

_SKIPPED: Final = frozenset(
    """
    tracked-changes annotation covered-table-cell note-citation forms sequence-decls ruby-text table-of-content-source
    illustration-index-source alphabetical-index-source bibliography-source
    """.split()  # noqa: SIM905
)
_WRITTEN: Final = {"s": " ", "tab": " ", "line-break": "<br>", **dict.fromkeys(_SKIPPED, "")}
_OUTLINE: Final = "outline-style"  # the numbers of headings
_ROWS: Final = {
    "table": "table",
    "table-header-rows": "thead",
    "table-row": "tr",
    "table-cell": "td",
}
_TAGS: Final = {
    **_ROWS,
    "text-box": "div",
    "section": "div",
    "desc": "div",
    "title": "div",
    "p": "p",
}


def read_odt(path: Path) -> Conversion:
    """A text of OpenDocument.

    Raises:
        ConversionError: It is damaged, or no text of OpenDocument.
    """
    with formats.open_archive(path) as archive:
        content = formats.xml_of(archive, "content.xml")
        body = content.find(".//{*}body/{*}text")
        if body is None:
            raise ConversionError(
                "it is damaged or no text of OpenDocument (it has no body). Cure: ignore it."
            )
        writer = _OpenDocument(content, formats.xml_of(archive, "styles.xml"))
        text = writer.html(body) + "".join(
            f"<p>[{at}] {note}</p>" for at, note in enumerate(writer.notes, start=1)
        )
        metadata = formats.core_metadata(formats.xml_of(archive, "meta.xml"))
    page = html_to_markdown(f"<body>{text}</body>", is_marked=True)
    return page._replace(metadata=metadata, left_out=formats.lacking(body))


class _OpenDocument:
    """Writes a text of OpenDocument as HTML."""

    def __init__(self, *roots: Any) -> None:
        self.notes: list[str] = []
        elements = [element for root in roots for element in root.iter()]
        self._named = {attribute(one, "name"): one for one in elements if attribute(one, "name")}
        self._named[_OUTLINE] = next((one for one in elements if local(one) == _OUTLINE), ())
        self._counts: dict[str, list[int]] = defaultdict(
            lambda: [0] * 11
        )  # of headings and lists, by their level

    def html(self, element: Any, style: str = "", depth: int = 0) -> str:
        """What an element holds; the others are the style and the depth of the list around it."""
        pieces = [escape(element.text or "")]
        for child in element:
            pieces += [self._child(child, style, depth), escape(child.tail or "")]
        return "".join(pieces)

    def _child(self, child: Any, style: str, depth: int) -> str:
        kind, named, times = local(child), attribute(child, "style-name"), 1
        if not kind or kind in _WRITTEN:
            return _WRITTEN.get(kind, "")
        if kind == "note":
            self.notes.append(re.sub("</?p>", " ", self.html(child[-1])))
            return f" [{len(self.notes)}]"
        if kind == "list":
            return self._list(child, named or style, depth + 1)
        inner, tag, spans = self.html(child, style, depth), _TAGS.get(kind, ""), ""
        if kind == "h":
            at = integer(attribute(child, "outline-level"), 1, 10)
            number = (
                "" if attribute(child, "is-list-header") == "true" else self._number(_OUTLINE, at)
            )
            tag, inner = f"h{min(at, 6)}", f"{number} {inner}"
        elif kind == "span" and (of_style := self._named.get(named)) is not None:
            position = attribute(of_style.find("{*}text-properties"), "text-position")
            tag = (
                "sub"
                if position[:3] == "sub" or position[:1] == "-"
                else "sup"
                if position.strip("0% ")
                else ""
            )
        elif kind == "p":
            parent = (
                attribute(self._named.get(named), "parent-style-name") if named[:1] == "P" else ""
            )
            tag = {"Title": "h1", "Subtitle": "h2"}.get(parent or named, "p")
        elif kind == "table-cell":
            times = integer(attribute(child, "number-columns-repeated"), 1, 100)
            across, down = (
                attribute(child, f"number-{name}-spanned") for name in ("columns", "rows")
            )
            spans = f' colspan="{across}" rowspan="{down}"'
        return f"<{tag}{spans}>{inner}</{tag}>" * times if tag else inner

    def _level(self, style: str, at: int) -> Any:
        """A level of a list or of headings; None for none."""
        return next(
            (one for one in self._named.get(style, ()) if attribute(one, "level") == str(at)), None
        )

    def _number(self, style: str, at: int) -> str:
        """The next number of a level, with those above it that it shows; "" where none is shown."""
        level, counts = self._level(style, at), self._counts[style]
        counts[at:] = [counts[at] + 1, *[0] * (10 - at)]
        if not attribute(level, "num-format"):
            return ""
        shown = range(max(at - integer(attribute(level, "display-levels")), 0) + 1, at + 1)
        kinds = (
            (counts[one] or 1, attribute(self._level(style, one), "num-format")) for one in shown
        )
        numbers = ".".join(formats.numeral(*one) for one in kinds)
        return escape(attribute(level, "num-prefix") + numbers + attribute(level, "num-suffix"))

    def _list(self, element: Any, style: str, depth: int) -> str:
        """A list, with numbers where its level has some; what is in its headings stands by itself."""
        if element.find(".//{*}h") is not None or depth > 10:  # noqa: PLR2004
            return self.html(element, style, depth)
        items, counts = "", self._counts[style]
        goes_on = attribute(element, "continue-numbering") == "true" or attribute(
            element, "continue-list"
        )
        if not (goes_on and counts[depth]):
            counts[depth] = integer(attribute(self._level(style, depth), "start-value")) - 1
        for item in element:
            counts[depth] = integer(attribute(item, "start-value"), counts[depth] + 1) - 1
            number = " "  # of a paragraph that goes on
            if local(item) != "list-header":
                is_filled = len(item) > 0 and local(item[0]) != "list"  # else it only holds others
                number = self._number(style, depth).strip() if is_filled else ""
            mark = NUMBER.format(number + "." * number.isdecimal()) if number else ""
            items += f"<li>{mark}{self.html(item, style, depth)}</li>"
        return f"<ul>{items}</ul>"


# EPUB and RTF


def read_epub(path: Path) -> Conversion:
    """A book: a part for each chapter, in the order of reading."""
    with formats.open_archive(path) as archive:
        container = formats.xml_of(archive, "META-INF/container.xml")
        name = attribute(container.find(".//{*}rootfile"), "full-path")
        if name not in archive.NameToInfo:
            raise ConversionError(
                "it is damaged or no EPUB (it names no package). Cure: ignore it."
            )
        package = formats.xml_of(archive, name)
        items = {
            attribute(child, "id"): attribute(child, "href")
            for child in package.iterfind(".//{*}item")
        }
        parts, left_out = list[Part](), Counter[str]()
        for reference in package.iterfind(".//{*}itemref"):
            href = unquote(items.get(attribute(reference, "idref"), ""))
            member = posixpath.normpath(posixpath.join(posixpath.dirname(name), href))
            if member in archive.NameToInfo:
                page = html_to_markdown(decoded(archive.read(member)))
                left_out.update(page.left_out)
                if page.text.strip():
                    parts.append(Part(page.text, {"chapter": len(parts) + 1}))
        return Conversion(parts, formats.core_metadata(package, "created"), left_out)


_HEAD, _ITEM, _CELL, _ROW, _TABLE, _NOTE, _RAISED, _RAISED_END = map(chr, range(0xE010, 0xE018))
_TABLES: Final = {"trowd": _TABLE, "intbl": _TABLE, "cell": _CELL, "row": _ROW}
_WORDS: Final = {
    "outlinelevel": _HEAD,
    "listtext": _ITEM,
    "pntext": _ITEM,
    "footnote": _NOTE,
    **_TABLES,
}
_ANY_MARK: Final = re.compile(f"[{_HEAD}-{_TABLE}]")
_WORD: Final = re.compile(rf"(?<!\\)\\({'|'.join(_WORDS)})(?![a-z])(\d?) ?")
_SUPER: Final = re.compile(r"(?<!\\)\\super(?![a-z\d]) ?([^{}\\]{1,20})")
_LEFT_OUT: Final = {"comment": r"\*\annotation", "picture": r"\pict", "text box": r"\shptxt"}


def read_rtf(path: Path) -> Conversion:
    """A text in the Rich Text Format, by striprtf.

    Raises:
        ConversionError: It is none.
    """
    from striprtf.striprtf import rtf_to_text

    source = path.read_bytes().decode("latin-1")
    if not source.lstrip().startswith("{\\rtf"):
        raise ConversionError("it is damaged or no RTF file. Cure: ignore it.")
    encoding = "cp1252"
    with contextlib.suppress(LookupError):
        encoding = codecs.lookup("cp" + "".join(re.findall(r"\\ansicpg(\d{1,5})", source)[:1])).name
    # A font without a charset is of the text's; and striprtf looks for links in quadratic time.
    known = re.sub(r"(\{\\f\d+)(?![^{}]{0,200}\\fcharset)", r"\1\\fcharset1", _marked(source))
    known = re.sub(
        r"(?<!\\)\\bin(?![a-z\d])", r"\\bin0", known
    )  # striprtf takes no missing number for 0, as RTF does
    text = rtf_to_text(known.replace("\\fldinst", "\\code"), encoding, "replace")
    text = text.encode("utf-16", "surrogatepass").decode(
        "utf-16", "replace"
    )  # halves of letters beyond U+FFFF
    *rows, rest = text.split(_ROW)
    lines: list[str] = []
    for row in rows:
        before, _, cells = row.partition(_TABLE)
        lines += [*before.split("\n"), cells.replace("\n", " ") + _ROW]
    html = re.sub("</(ul|table)><\\1>", "", "".join(map(_block, (*lines, *rest.split("\n")))))
    html = html.replace(_RAISED, "<sup>").replace(_RAISED_END, "</sup>").replace(_NOTE, " Note: ")
    html = _ANY_MARK.sub("", html)
    info = re.findall(r"\{\\(title|author|subject) ([^{}]{0,1000})\}", source)
    about = {key: rtf_to_text(f"{{\\rtf1 {value}}}", errors="replace") for key, value in info}
    left_out = {name: source.count(word) for name, word in _LEFT_OUT.items()}
    return html_to_markdown(f"<body>{html}</body>", is_marked=True)._replace(
        metadata=about, left_out=left_out
    )


def _marked(source: str) -> str:
    """RTF with marks in the place of words, and around raised letters."""

    def written(mark: str) -> str:
        return f"{{\\uc0\\u{ord(mark) - 65536} }}"

    source = _SUPER.sub(
        lambda raised: f"{written(_RAISED)}{raised[1]}{written(_RAISED_END)}", source
    )
    return _WORD.sub(lambda word: f"{written(_WORDS[word[1]])}{word[2]}", source)


def _block(line: str) -> str:
    """A heading, a row, an item or a paragraph as HTML."""
    _, is_heading, heading = line.rpartition(_HEAD)
    if is_heading and heading[:1].isdecimal() and (text := heading[1:].split(_ITEM)[-1].strip()):
        level = min(int(heading[0]) + 1, 6)
        return f"<h{level}>{escape(text)}</h{level}>"
    if line.endswith(_ROW):
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in line.split(_CELL)[:-1])
        return f"<table><tr>{cells}</tr></table>"
    if _ITEM in line:
        number, _, text = line.rpartition(_ITEM)[2].strip().partition("\t")
        mark = NUMBER.format(escape(number)) if any(map(str.isalnum, number)) else ""
        return f"<ul><li>{mark}{escape(text)}</li></ul>"
    return f"<p>{escape(line)}</p>" if line.strip() else ""


# Mail

_MARKED: Final = ("text/html", "text/enriched", "text/richtext")
_MOST_HEADER: Final = 3_000  # characters; metadata keep 2,000, and name what is longer


class _ShortHeaders(email.policy.EmailPolicy):
    """Reads the start of a header, as written where it is nested: Python's parser takes the square of its length."""

    def header_fetch_parse(self, name: str, value: str) -> Any:
        """The value of a header."""
        try:
            return super().header_fetch_parse(name, value[:_MOST_HEADER])
        except RecursionError:
            return value[:_MOST_HEADER]


def read_eml(path: Path) -> Conversion:
    """A mail as it is sent: its texts, mails in it, and the names of its attachments."""
    message = email.message_from_bytes(path.read_bytes(), policy=_ShortHeaders())
    if not isinstance(message, EmailMessage) or not message.keys():
        raise ConversionError("it is no mail: it has no headers. Cure: ignore it.")
    others: list[MIMEPart] = []
    pages = _pages(message, others)
    return _mail(
        pages, [one.get_filename() or one.get_content_type() for one in others], _about(message)
    )


def read_msg(path: Path) -> Conversion:
    """A mail as Outlook keeps it."""
    from oxmsg import Message

    message = Message.load(str(path))
    headers = {"to": ", ".join(f"{one.name} <{one.email_address}>" for one in message.recipients)}
    headers |= {name.lower(): value for name, value in message.message_headers.items()}
    headers |= {"subject": message.subject or "", "from": message.sender or headers.get("from", "")}
    if message.sent_date:
        headers["date"] = format_datetime(message.sent_date)
    bodies = {"text/plain": message.body or "", "text/html": message.html_body or ""}
    pages = _fullest([(kind, [_page(text, kind)]) for kind, text in bodies.items()])
    return _mail(
        pages, [attachment.file_name or "" for attachment in message.attachments], _about(headers)
    )


def _mail(pages: Sequence[Conversion], names: Iterable[str], about: dict[str, str]) -> Conversion:
    subject, attached = (
        about["subject"],
        [name for name in (" ".join(name.split()) for name in names) if name],
    )
    head, tail = (
        formats.heading(1, subject) if subject else "",
        f"Attached: {', '.join(attached)}" if attached else "",
    )
    blocks = filter(None, (head, *(page.text.strip() for page in pages), tail))
    left_out = sum((Counter(page.left_out) for page in pages), Counter(attachment=len(attached)))
    return Conversion([Part("\n\n".join(blocks) + "\n")], {"title": subject, **about}, left_out)


def _about(headers: Any) -> dict[str, str]:
    """The metadata of a mail, from its headers by their names."""
    keys = {"subject": "subject", "from": "sender", "to": "to", "cc": "cc"}
    about = {
        key: " ".join(str(headers.get(name, "")).replace("\0", "").split())
        for name, key in keys.items()
    }
    with contextlib.suppress(ValueError, TypeError):
        about["date"] = parsedate_to_datetime(str(headers.get("date"))).date().isoformat()
    return about


def _pages(part: Any, others: list[MIMEPart], depth: int = 1) -> list[Conversion]:
    """The texts of a part in their order, and of alternatives one; what is no text is added to ``others``."""
    kind, inner = part.get_content_type(), part.get_payload() if part.is_multipart() else []
    if inner and kind == "message/rfc822":
        head = formats.heading(depth + 1, _about(inner[0])["subject"] or "Mail")
        return [Conversion([Part(head)]), *_pages(inner[0], others, depth + 1)]
    if inner:
        found = [(one.get_content_type(), _pages(one, others, depth)) for one in inner]
        return (
            _fullest(found)
            if kind == "multipart/alternative"
            else [page for _, pages in found for page in pages]
        )
    is_text = part.get_content_maintype() in ("text", "multipart") and kind != "text/calendar"
    if is_text and not part.is_attachment() and not part.get_filename():
        data = part.get_payload(decode=True)
        charset = part.get_content_charset() or ("" if kind in _MARKED else "utf-8")
        with contextlib.suppress(DocumentError):  # it is binary
            return [_page(decoded(data, charset) if isinstance(data, bytes) else "", kind)]
    others.append(part)
    return []


def _page(text: str, kind: str) -> Conversion:
    if kind in _MARKED and text.strip():
        return html_to_markdown(text)
    lines = "\n".join(line.rstrip() for line in text.splitlines()).strip()
    return Conversion([Part(formats.escape(lines, keep_lists=True))])


def _fullest(alternatives: Sequence[tuple[str, list[Conversion]]]) -> list[Conversion]:
    """The plain text, or the richest form where fewer than half of its words stand in the plain text."""
    filled = [
        (kind, pages) for kind, pages in alternatives if any(page.text.strip() for page in pages)
    ]
    plain = next((pages for kind, pages in filled if kind == "text/plain"), [])
    rich = next((pages for kind, pages in reversed(filled) if kind != "text/plain"), [])
    words, known = (
        {*re.findall(r"\w+", " ".join(page.text for page in pages).lower())}
        for pages in (rich, plain)
    )
    chosen = rich if 2 * len(words & known) < len(words) else plain
    return chosen or [page for _, pages in alternatives for page in pages]

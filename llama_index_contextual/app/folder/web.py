"""HTML, EPUB and mail to Markdown: the text that a person reads, without scripts, menus and styles."""

from __future__ import annotations

import email
import email.policy
import posixpath
import re
from email.message import EmailMessage, MIMEPart
from email.utils import parsedate_to_datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote
from xml.etree import ElementTree as ET

from llama_index_contextual.app.folder.formats import (
    ATTACHED,
    Conversion,
    ConversionError,
    Part,
    attribute,
    core_metadata,
    open_archive,
    table_of,
    xml_of,
)
from llama_index_contextual.text import decode

_SKIPPED: Final = frozenset(
    "script style nav noscript template svg iframe form button select head title aside footer object canvas".split()  # noqa: SIM905
)
_VOID: Final = frozenset("hr img input meta link area base col embed source track wbr".split())  # noqa: SIM905
_HEADINGS: Final = {f"h{level}": "#" * level for level in range(1, 7)}
_BLOCKS: Final = frozenset(
    "p div section article main header figure figcaption dl dt dd address details summary hr caption tr td th".split()  # noqa: SIM905
) | {*_HEADINGS, "blockquote", "ul", "ol", "li"}
# What each element ends that is open, and inside of what it does not look further.
_IMPLIED: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "li": (("li",), ("ul", "ol")),
    "td": (("td", "th"), ("tr", "table")),
    "th": (("td", "th"), ("tr", "table")),
    "tr": (("tr",), ("table",)),
    "dt": (("dt", "dd"), ("dl",)),
    "dd": (("dt", "dd"), ("dl",)),
    **dict.fromkeys(("p", "ul", "ol", "table", "pre", "blockquote", "div"), (("p",), ("td", "th", "li", "div"))),
}
_DEEPEST: Final = 400  # elements in one another
_BREAK: Final = "\u2028"  # stands for <br>, as other ends of lines mean nothing
_ITEM: Final = re.compile(r" *(?:-|\d{1,9}\.) ")
_LANGUAGE: Final = re.compile(r"(?:language|lang|highlight-source)-(\w+)")
_CHARSET: Final = re.compile(rb"<meta[^>]+charset=[\"']?([\w-]+)", re.IGNORECASE)
_METADATA: Final = {
    "author": "author",
    "article:published_time": "created",
    "article:modified_time": "modified",
    "dc.creator": "author",
    "dc.date": "created",
    "date": "created",
}


class _Tree(HTMLParser):
    """Reads a page into a tree, and ends what HTML lets one leave open: a cell where the next one begins, an item."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._tree = ET.TreeBuilder()
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "br":
            self.handle_data(_BREAK)
            return
        if tag not in _VOID:
            self._end_implied(tag)
            self._open.append(tag)
        if len(self._open) > _DEEPEST:
            raise ConversionError("its elements are nested too deeply. Cure: ignore it.")
        self._tree.start(tag, {key: value or "" for key, value in attrs})
        if tag in _VOID:
            self._tree.end(tag)

    def _end_implied(self, tag: str) -> None:
        ended, around = _IMPLIED.get(tag, ((), ()))
        for position in range(len(self._open) - 1, -1, -1):
            if self._open[position] in around:
                return
            if self._open[position] in ended:
                self.handle_endtag(self._open[position])

    def handle_endtag(self, tag: str) -> None:
        while tag in self._open:
            last = self._open.pop()
            self._tree.end(last)
            if last == tag:
                return

    def handle_data(self, data: str) -> None:
        self._tree.data(data)

    def read(self, text: str) -> ET.Element:
        """Return the root of the tree, whose children are what the page holds."""
        self._tree.start("div", {})
        self.feed(text)
        self.close()
        for tag in (*reversed(self._open), "div"):
            self._tree.end(tag)
        return self._tree.close()


class _Page:
    """Writes a tree as blocks of Markdown."""

    def __init__(self) -> None:
        self.blocks: list[str] = []
        self._text: list[str] = []
        self._prefix = ""
        self._counts: list[int | None] = []  # of each list that is open, how many items; None: it has no numbers

    def write(self, element: ET.Element) -> None:
        tag = element.tag
        if tag == "pre":
            self._add_fence(element)
            return
        if tag == "table" and max(map(len, rows := _rows_of(element)), default=0) > 1:  # others are of layout
            self._end_block()
            self.blocks += [
                *map(_words_of, element.findall("caption")),
                table_of([list(map(_words_of, row)) for row in rows]),
            ]
            return
        if tag in _BLOCKS:
            self._end_block(self._prefix_of(tag))
        if tag in {"ul", "ol"}:
            self._counts.append(0 if tag == "ol" else None)
        mark = "`" if tag == "code" else ""
        self._text += [mark, element.text or ""]
        for child in element:
            self.write(child)
            self._text.append(child.tail or "")
        self._text.append(mark)
        if tag in _BLOCKS:
            self._end_block()
        if tag in {"ul", "ol"}:
            self._counts.pop()
            self._prefix = ""  # of a last item that is empty

    def _prefix_of(self, tag: str) -> str:
        if tag in _HEADINGS:
            return f"{_HEADINGS[tag]} "
        if tag == "blockquote":
            return "> "
        if tag != "li":  # what is empty so far hands its prefix down: the paragraph of an item
            return "" if "".join(self._text).strip() else self._prefix
        indent, count = "   " * max(len(self._counts) - 1, 0), self._counts[-1] if self._counts else None
        if count is None:
            return f"{indent}- "
        self._counts[-1] = count + 1
        return f"{indent}{count + 1}. "

    def _add_fence(self, element: ET.Element) -> None:
        self._end_block()
        text = "".join(element.itertext()).replace(_BREAK, "\n").strip("\n")
        classes = " ".join(part.get("class", "") for part in element.iter() if part.tag in {"pre", "code"})
        language = match[1] if (match := _LANGUAGE.search(classes)) else ""
        ticks = "````" if "```" in text else "```"
        if text.strip():
            self.blocks.append(f"{ticks}{language}\n{text}\n{ticks}")

    def _end_block(self, prefix: str = "") -> None:
        lines = (" ".join(line.split()) for line in "".join(self._text).split(_BREAK))
        text = "\n".join(lines).strip()
        self._text.clear()
        if not text.replace("`", ""):
            self._prefix = prefix or (self._prefix if self._counts else "")
            return
        block = self._prefix + text
        if _ITEM.match(self._prefix) and self.blocks and _ITEM.match(self.blocks[-1]):
            self.blocks[-1] += f"\n{block}"
        else:
            self.blocks.append(block)
        self._prefix = prefix


def _without_hidden(root: ET.Element) -> ET.Element:
    """Empty what a reader of the page does not see or takes for a menu."""
    for child in (child for parent in root.iter() for child in parent):
        is_menu = child.get("role") in {"navigation", "banner"}
        if is_menu or child.tag in _SKIPPED or child.get("hidden") is not None:
            tail = child.tail
            child.clear()
            child.tail = tail
    return root


def _rows_of(table: ET.Element) -> list[list[ET.Element]]:
    """Return the cells of a table."""
    parts = [[part] if part.tag == "tr" else list(part) for part in table]
    rows = (row for part in parts for row in part if row.tag == "tr")
    return [[cell for cell in row if cell.tag in {"td", "th"}] for row in rows]


def _words_of(element: ET.Element) -> str:
    """Return the text of an element; of a block, on one line."""
    words = [element.text or ""]
    for child in element:
        mark = "`" if child.tag == "code" else " " if child.tag in _BLOCKS else ""
        words += [mark, _words_of(child), mark, child.tail or ""]
    return " ".join("".join(words).split()) if element.tag in _BLOCKS else "".join(words)


def _main_part(root: ET.Element) -> ET.Element:
    """Return the main text that a page marks, else the least element with all articles, else the page."""
    if (main := root.find(".//main")) is not None:
        return main
    while root.tag != "article":
        holders = [child for child in root if child.tag == "article" or child.find(".//article") is not None]
        if len(holders) != 1:
            break
        root = holders[0]
    return root


def html_to_markdown(text: str) -> tuple[str, dict[str, str]]:
    """Return a page as Markdown, and what it says of itself; of a page that marks its main text, that alone."""
    root = _Tree().read(text)
    metadata = {"title": " ".join((root.findtext(".//title") or "").split())}
    for element in root.iter("meta"):
        name = _METADATA.get((element.get("name") or element.get("property") or "").lower())
        if name and (content := element.get("content", "").strip()):
            metadata.setdefault(name, content)
    for part in (_main_part(root), root):
        page = _Page()
        page.write(_without_hidden(part))
        if page.blocks:
            break
    return "\n\n".join(page.blocks) + "\n", metadata


def _decoded(data: bytes) -> str:
    charset = _CHARSET.search(data[:4000])
    if charset is not None and charset[1].lower() not in {b"utf-8", b"utf8"}:
        try:
            return data.decode(charset[1].decode())
        except (LookupError, UnicodeDecodeError):
            pass
    return decode(data).text


def read_html(path: Path) -> Conversion:
    """Return the text of a page."""
    text, metadata = html_to_markdown(_decoded(path.read_bytes()))
    return Conversion([Part(text)], metadata)


def read_epub(path: Path) -> Conversion:
    """Return a book: a part for each chapter, in the order of reading."""
    with open_archive(path) as archive:
        container = xml_of(archive, "META-INF/container.xml")
        name = attribute(next(container.iterfind(".//{*}rootfile"), container), "full-path")
        if name not in archive.NameToInfo:
            raise ConversionError("it is damaged or no EPUB (it names no package). Cure: ignore it.")
        package = xml_of(archive, name)
        items = {attribute(child, "id"): attribute(child, "href") for child in package.iterfind(".//{*}item")}
        parts: list[Part] = []
        for reference in package.iterfind(".//{*}itemref"):
            href = unquote(items.get(attribute(reference, "idref"), ""))
            member = posixpath.normpath(posixpath.join(posixpath.dirname(name), href))
            if href and member in archive.NameToInfo:
                text, _ = html_to_markdown(_decoded(archive.read(member)))
                if text.strip():
                    number = len(parts) + 1
                    parts.append(Part(text, str(number), {"chapter": number}))
        return Conversion(parts, core_metadata(package, {"date": "created"}))


def read_mail(path: Path) -> Conversion:
    """Return a mail: its texts, and the names of what is attached; subject, people and day as metadata."""
    message = email.message_from_bytes(path.read_bytes(), policy=email.policy.default)
    if not isinstance(message, EmailMessage) or not message.keys():
        raise ConversionError("it is no mail: it has no headers. Cure: ignore it.")
    body = message.get_body(("plain", "html"))
    # Apple's Mail goes on with another text after what is attached, and mailing lists end with one.
    more = [part for part in message.iter_attachments() if _is_written_on(part)]
    texts = [_text_of(part) for part in (body, *more) if part is not None]
    names = [name for part in message.iter_attachments() if part not in more and (name := _name_of(part))]
    attached = ", ".join(names)
    subject = " ".join(str(message.get("subject", "")).split())
    blocks = [f"# {subject}" if subject else "", *texts, f"Attached: {attached}" if attached else ""]
    metadata = {"title": subject, "subject": subject, ATTACHED: attached}
    for header, key in (("from", "sender"), ("to", "to"), ("cc", "cc")):
        metadata[key] = " ".join(str(message.get(header, "")).split())
    try:
        metadata["date"] = parsedate_to_datetime(str(message["date"])).date().isoformat() if message["date"] else ""
    except (ValueError, TypeError):
        metadata["date"] = ""
    return Conversion([Part("\n\n".join(filter(None, blocks)) + "\n")], metadata)


def _is_written_on(part: MIMEPart) -> bool:
    kind = part.get_content_type()
    return kind in {"text/plain", "text/html"} and not part.is_attachment() and not part.get_filename()


def _text_of(part: MIMEPart) -> str:
    text = str(part.get_content())
    return (html_to_markdown(text)[0] if part.get_content_subtype() == "html" else text).strip()


def _name_of(part: MIMEPart) -> str:
    """Return the name of what is attached; a mail has its subject, and a picture inside of a text has none."""
    if part.get_content_type() == "message/rfc822":
        return f"mail {str(part.get_content().get('subject', '')).strip()!r}"
    name = part.get_filename() or (part.get_content_type() if part.is_attachment() else "")
    return " ".join(str(name).split())

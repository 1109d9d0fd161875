"""HTML, EPUB and mail to Markdown: the text that a person reads, without scripts, menus and styles."""

from __future__ import annotations

import email
import email.policy
import posixpath
import re
from email.message import EmailMessage
from email.utils import parsedate_to_datetime
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from llama_index_contextual.documents.archive import attribute, core_metadata, opened, table_of, xml_of
from llama_index_contextual.documents.conversion import ConversionError, Converted, Part
from llama_index_contextual.text import decode

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_MAIN: Final = re.compile(r"<(main|article)\b", re.IGNORECASE)
_MAIN_END: Final = re.compile(r"</(main|article)\s*>", re.IGNORECASE)
_SKIPPED: Final = frozenset(
    "script style nav noscript template svg iframe form button select head aside footer object canvas".split()  # noqa: SIM905
)
_VOID: Final = frozenset("br hr img input meta link area base col embed source track wbr".split())  # noqa: SIM905
_BLOCKS: Final = frozenset(
    "p div section article main header figure figcaption dl dt dd address details summary".split()  # noqa: SIM905
)
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
_HEADINGS: Final = {f"h{level}": level for level in range(1, 7)}
_PREFIXES: Final = {**{name: f"{'#' * level} " for name, level in _HEADINGS.items()}, "blockquote": "> "}
_ENDS: Final = frozenset({*_BLOCKS, *_PREFIXES, "li", "caption"})
_DEEPEST: Final = 400  # elements in one another
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


class _Page(HTMLParser):
    """Reads a page into blocks of Markdown."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[str] = []
        self.metadata: dict[str, str] = {}
        self._text: list[str] = []
        self._prefix = ""
        self._open: list[str] = []
        self._lists: list[list[Any]] = []  # kind, and how many items
        self._tables: list[list[list[str]]] = []
        self._skips = 0
        self._fence = ""
        self._title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {key: value or "" for key, value in attrs}
        if tag in _VOID:
            self._start_void(tag, values)
            return
        self._title = tag == "title" and "title" not in self.metadata
        self._end_implied(tag)
        self._open.append(tag)
        if len(self._open) > _DEEPEST:
            raise ConversionError("its elements are nested too deeply. Cure: ignore it.")
        if tag in _SKIPPED or values.get("role") in {"navigation", "banner"} or "hidden" in values:
            self._skips += 1
            self._open[-1] = f"!{tag}"
        elif not self._skips:
            self._start(tag, values.get("class", ""))

    def _start_void(self, tag: str, values: dict[str, str]) -> None:
        name = _METADATA.get((values.get("name") or values.get("property") or "").lower())
        if tag == "meta" and name and values.get("content"):
            self.metadata.setdefault(name, values["content"].strip())
        elif tag == "br":
            self._text.append("\n")
        elif tag == "hr":
            self._end_block()

    def _start(self, tag: str, classes: str) -> None:
        language = found[1] if (found := _LANGUAGE.search(classes)) else ""
        if tag == "code":
            if not self._fence:
                self._text.append("`")
            elif self._fence == "```":
                self._fence += language
        elif tag in {"table", "tr", "td", "th"}:
            self._start_in_table(tag)
        elif tag in {"ul", "ol", "li"}:
            self._start_in_list(tag)
        elif tag in _PREFIXES:
            self._end_block(_PREFIXES[tag])
        elif tag == "pre":
            self._end_block()
            self._fence = f"```{language}"
        elif tag in _BLOCKS and not self._tables:
            self._end_block("" if "".join(self._text).strip() else self._prefix)

    def _start_in_table(self, tag: str) -> None:
        if tag == "table":
            self._end_block()
            self._tables.append([])
        elif tag == "tr" and self._tables:
            self._tables[-1].append([])
        elif self._tables:
            self._text.clear()

    def _start_in_list(self, tag: str) -> None:
        if tag != "li":
            self._end_block()
            self._lists.append([tag, 0])
            return
        if not self._lists:
            self._lists.append(["ul", 0])
        self._lists[-1][1] += 1
        kind, number = self._lists[-1]
        self._end_block(f"{'   ' * (len(self._lists) - 1)}{'-' if kind == 'ul' else f'{number}.'} ")

    def _end_implied(self, tag: str) -> None:
        """End what HTML lets one leave open: a cell where the next one begins, an item, a paragraph."""
        ended, around = _IMPLIED.get(tag, ((), ()))
        for position in range(len(self._open) - 1, -1, -1):
            one = self._open[position]
            if one in around:
                return
            if one in ended:
                self.handle_endtag(one)

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._title = False
        if tag not in self._open and f"!{tag}" not in self._open:
            return
        while self._open:
            last = self._open.pop()
            if last.startswith("!"):
                self._skips -= 1
            elif not self._skips:
                self._end(last)
            if last.lstrip("!") == tag:
                return

    def _end(self, tag: str) -> None:
        if tag == "pre":
            self._end_fence()
        elif tag == "code" and not self._fence:
            self._text.append("`")
        elif tag in {"ul", "ol"} and self._lists:
            self._end_block()
            self._lists.pop()
        elif tag in {"td", "th"} and self._tables:
            row = self._tables[-1][-1] if self._tables[-1] else []
            if not self._tables[-1]:
                self._tables[-1].append(row)
            row.append("".join(self._text))
            self._text.clear()
        elif tag == "table" and self._tables:
            self._end_table()
        elif tag in _ENDS and not self._tables:
            self._end_block()

    def _end_fence(self) -> None:
        text, mark = "".join(self._text).strip("\n"), self._fence
        self._text.clear()
        self._fence = ""
        if text.strip():
            ticks = "````" if "```" in text else "```"
            self.blocks.append(f"{ticks}{mark[3:]}\n{text}\n{ticks}")

    def _end_table(self) -> None:
        rows = self._tables.pop()
        if self._tables:  # a table in a cell of another one
            self._text.append(" ".join(" ".join(row) for row in rows))
        elif any(len(row) > 1 for row in rows):
            self.blocks.append(table_of(rows))
        else:  # of layout
            self.blocks += [text for row in rows if (text := " ".join(" ".join(row).split()))]

    def handle_data(self, data: str) -> None:
        if self._title:
            self.metadata["title"] = " ".join(f"{self.metadata.get('title', '')}{data}".split())
        elif not self._skips:
            self._text.append(data)

    def _end_block(self, prefix: str = "") -> None:
        if self._tables:
            return
        lines = [" ".join(line.split()) for line in "".join(self._text).split("\n")] if "\n" in self._text else None
        text = "\n".join(lines).strip() if lines else " ".join("".join(self._text).split())
        self._text.clear()
        if text.replace("`", ""):
            block = self._prefix + text
            is_item = self._prefix.lstrip()[:1] in {"-", *"0123456789"} and self._prefix
            if is_item and self.blocks and re.match(r"\s*(-|\d+\.) ", self.blocks[-1]):
                self.blocks[-1] += f"\n{block}"
            else:
                self.blocks.append(block)
            self._prefix = prefix
        else:
            self._prefix = prefix or self._prefix if self._lists else prefix

    def close(self) -> None:
        super().close()
        for tag in reversed(self._open):
            if not tag.startswith("!") and not self._skips:
                self._end(tag)
        self._end_block()


def _main_part(text: str) -> str:
    """Return what stands between the first mark of a main text and the last end of one; "" without them."""
    opening = _MAIN.search(text)
    if opening is None:
        return ""
    ends = [
        end_tag.end() for end_tag in _MAIN_END.finditer(text, opening.end()) if end_tag[1].lower() == opening[1].lower()
    ]
    return text[opening.start() : ends[-1]] if ends else ""


def html_to_markdown(text: str) -> tuple[str, dict[str, str]]:
    """Return a page as Markdown, and what it says of itself; of a page that marks its main text, that alone."""
    main = _main_part(text)
    page = _Page()
    page.feed(text)
    page.close()
    if main:
        part = _Page()
        part.feed(main)
        part.close()
        if "".join(part.blocks).strip():
            page.blocks = part.blocks
    return "\n\n".join(page.blocks) + "\n", page.metadata


def _decoded(data: bytes) -> str:
    charset = _CHARSET.search(data[:4000])
    if charset is not None and charset[1].lower() not in {b"utf-8", b"utf8"}:
        try:
            return data.decode(charset[1].decode())
        except (LookupError, UnicodeDecodeError):
            pass
    return decode(data).text


def read_html(path: Path) -> Converted:
    """Return the text of a page."""
    text, metadata = html_to_markdown(_decoded(path.read_bytes()))
    return Converted([Part(text)], metadata)


def read_epub(path: Path) -> Converted:
    """Return a book: a part for each chapter, in the order of reading."""
    with opened(path) as archive:
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
        return Converted(parts, core_metadata(package, {"date": "created"}))


def read_mail(path: Path) -> Converted:
    """Return a mail: its text, and the names of what is attached; subject, people and day as metadata."""
    message = email.message_from_bytes(path.read_bytes(), policy=email.policy.default)
    if not isinstance(message, EmailMessage) or not message.keys():
        raise ConversionError("it is no mail: it has no headers. Cure: ignore it.")
    body = message.get_body(("plain", "html"))
    text = "" if body is None else str(body.get_content())
    if body is not None and body.get_content_subtype() == "html":
        text, _ = html_to_markdown(text)
    subject = " ".join(str(message.get("subject", "")).split())
    attached = [name for one in message.iter_attachments() if (name := one.get_filename())]
    blocks = [f"# {subject}" if subject else "", text.strip(), f"Attached: {', '.join(attached)}" if attached else ""]
    metadata = {"title": subject, "subject": subject}
    for header, key in (("from", "sender"), ("to", "to"), ("cc", "cc")):
        metadata[key] = " ".join(str(message.get(header, "")).split())
    try:
        metadata["date"] = parsedate_to_datetime(str(message["date"])).date().isoformat() if message["date"] else ""
    except (ValueError, TypeError):
        metadata["date"] = ""
    return Converted(
        [Part("\n\n".join(filter(None, blocks)) + "\n")], {key: value for key, value in metadata.items() if value}
    )


CONVERTERS: Final[dict[str, Callable[[Path], Converted]]] = {
    ".html": read_html,
    ".htm": read_html,
    ".epub": read_epub,
    ".eml": read_mail,
}

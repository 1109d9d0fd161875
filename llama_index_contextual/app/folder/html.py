"""HTML to Markdown: the text of a page in its order, without scripts, menus and what only lays it out.

Word, OpenDocument, EPUB, RTF and mail pass through here as well, so spans, numbers of lists and escaping are one.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Final

from bs4 import BeautifulSoup, Tag, UnicodeDammit
from bs4.element import PreformattedString

from llama_index_contextual.app.folder import decode, formats
from llama_index_contextual.app.folder.formats import (
    PAGE,
    Conversion,
    ConversionError,
    Part,
    integer,
)

NUMBER: Final = "\ue000{}\ue001"  # before the text of an item: its number as a program shows it
_SPACES: Final = str.maketrans("\xa0\n\r", "   ", "\xad")
_MARKS: Final = str.maketrans("", "", "\0\ue000\ue001\ue002")
_SKIPPED: Final = frozenset(
    [
        "head",
        "script",
        "style",
        "template",
        "nav",
        "noscript",
        "svg",
        "iframe",
        "object",
        "canvas",
        "select",
        "rt",
        "rp",
    ]  # noqa: E501, RUF100
)
_HIDDEN: Final = frozenset(("linenos", "source-line-no", "mw-editsection", "katex-html"))  # classes
_HEADINGS: Final = ["h1", "h2", "h3", "h4", "h5", "h6"]
_LISTS: Final = ("ul", "ol")
_CONTAINERS: Final = """
    p div address article aside center details dialog fieldset figcaption figure footer form header hgroup main section
    summary dt dd dl caption legend label button body html li tbody thead tfoot tr td th hr
    """.split()  # noqa: SIM905
_BLOCKS: Final = frozenset((*_HEADINGS, *_LISTS, "pre", "table", "blockquote", *_CONTAINERS))
_ORDINALS: Final = frozenset("st nd rd th er re ère e ème o a os as tm sm ® ™".split())  # noqa: SIM905
# A part of a formula that needs no parentheses.
_WHOLE: Final = re.compile(r"[-+\u2212±]?(?:\d[\d.,]*|[^\W\d_]+)?[^\w\s()/]*|[(\[][^()[\]]*[)\]]")
# Signs before the second and third part of a formula.
_SIGNS: Final = {"mfrac": "/", "msup": "^", "msub": "_", "msubsup": "_^", "munderover": "_^"}
_LANGUAGE: Final = re.compile(r"(?:language|lang|highlight-source|highlight)-(\w+)")
_BULLET: Final = re.compile(rf"^[{formats.BULLETS}]\s+", re.MULTILINE)
_ITEM: Final = re.compile(r"\d{1,9}[.)]$")
_NOTE: Final = re.compile(
    "noteref|footnote-ref|fnref"
)  # a role, a type of EPUB or a class of a link
_LEAST_NAMED: Final = 100  # characters of an element that is left out: then it is named
_METADATA: Final = {
    "author": "author",
    "article:published_time": "created",
    "article:modified_time": "modified",
}


def read_html(path: Path) -> Conversion:
    """The text of a page."""
    return html_to_markdown(decoded(path.read_bytes()))


def decoded(data: bytes, charset: str = "") -> str:
    """Text in a charset, that of its mark or else the one declared in it; Western ones are guessed as those of files.

    Args:
        data: A page, or a text whose charset is named.
        charset: As a mail names it.
    """
    found = UnicodeDammit(data, known_definite_encodings=[charset] if charset else [], is_html=True)
    is_guess = found.detector.chardet_encoding and not re.search(
        rb"[\x80-\xff]{3}", data
    )  # "café" would be Urdu
    is_western = is_guess or found.original_encoding in (
        None,
        "ascii",
        "utf-8",
        "iso-8859-1",
        "windows-1252",
    )
    return decode(data).text if is_western else str(found.unicode_markup)


def html_to_markdown(text: str, *, is_marked: bool = False) -> Conversion:
    """A page as Markdown; of a page that marks its main text, that alone.

    Args:
        text: HTML.
        is_marked: Whether our marks of numbers and pages stand in it.

    Raises:
        ConversionError: Its elements are nested too deeply.
    """
    soup = BeautifulSoup(text.replace("\0", "") if is_marked else text.translate(_MARKS), "lxml")
    metadata = {"title": " ".join(soup.title.get_text().split()) if soup.title else ""}
    for element in soup.find_all("meta"):
        name = _METADATA.get(str(element.get("name") or element.get("property") or "").lower())
        if name and (content := str(element.get("content") or "").strip()):
            metadata.setdefault(name, content)
    if any(sum(1 for _ in element.parents) > 200 for element in soup.find_all()):  # noqa: PLR2004
        raise ConversionError("its elements are nested too deeply. Cure: ignore it.")
    _rename(soup)
    left_out = _without_hidden(soup)
    main = next((one for one in soup.select("main, [role=main]") if one.get_text(strip=True)), soup)
    outside = len(soup.get_text(" ", strip=True)) - len(main.get_text(" ", strip=True))
    left_out["outside character"] += outside * (outside > _LEAST_NAMED)
    return Conversion([Part("\n\n".join(_Writer().blocks(main)) + "\n")], metadata, +left_out)


def _rename(soup: BeautifulSoup) -> None:
    """Give elements that say by other means what they are the names of HTML; formulas become text."""
    for element in soup.find_all(role="heading"):
        element.name = f"h{max(1, integer(element.get('aria-level'), 2, 6))}"
    for element in soup.find_all("span", style=re.compile(r"vertical-align:\s*super")):
        element.name = "sup"
    for element in soup.find_all("math"):
        for part in reversed(element.find_all(list(_SIGNS))):
            texts = (piece.get_text(strip=True) for piece in part.find_all(recursive=False))
            signed = zip(("", *_SIGNS[part.name]), texts, strict=False)
            part.string = "".join(sign + whole(text) for sign, text in signed if text)
        element.string = (element.find("annotation") or element).get_text(strip=True)


def _without_hidden(soup: BeautifulSoup) -> Counter[str]:
    """Take out what is no text of the page, or a menu; return its counts. What may be unfolded is text."""
    left_out = Counter(
        picture=len(soup.find_all(["img", "svg", "canvas"])), script=len(soup.find_all("script"))
    )
    for element in soup.find_all():
        if element.decomposed or not _is_hidden(element):
            continue
        size = len(element.get_text(" ", strip=True))
        if size > _LEAST_NAMED and element.name not in ("head", "script", "style"):
            left_out[f"<{element.name}> character"] += size
        element.decompose()
    return left_out


def _is_hidden(element: Tag) -> bool:
    """Whether an element is a menu, a small button, a footer of the page, or a sign that links a heading or a note."""
    name, attributes = element.name, element.attrs
    return (
        name in _SKIPPED
        or attributes.get("role") in ("navigation", "banner", "contentinfo", "menu", "dialog")
        or not _HIDDEN.isdisjoint(attributes.get("class") or ())
        or (name == "button" and element.find_parent("pre") is not None)
        or (
            name == "footer"
            and not element.find_parent(["main", "article", "section", "blockquote", "figure"])
        )
        or (
            name == "a"
            and "#" in str(attributes.get("href"))
            and not any(map(str.isalnum, element.get_text()))
        )
    )


class _Writer:
    """Writes elements as blocks of Markdown, which empty lines part; in a cell or heading, as text on one line."""

    def __init__(self, *, is_inline: bool = False) -> None:
        self.number = ""  # of an item, before its text
        self._is_inline = is_inline
        self._blocks: list[str] = []
        self._line: list[str] = []

    def blocks(self, element: Tag) -> list[str]:
        """The blocks of what an element holds."""
        self._add(element)
        self._end_block()
        return self._blocks

    def _add(self, element: Tag) -> None:
        for child in element.children:
            if not isinstance(child, Tag):
                if not isinstance(child, PreformattedString):  # a comment
                    self._line.append(str(child).translate(_SPACES))
            elif child.name == "br":
                self._line.append("\n")
            elif child.get("type") == "checkbox":
                self._line.append(f"[{'x' if child.has_attr('checked') else ' '}] ")
            elif child.name in ("code", "kbd", "samp") and (text := child.get_text().strip()):
                self._line.append(f"`{text.translate(_SPACES)}`")
            elif child.name in ("sup", "sub") or (
                child.name == "a" and _NOTE.search(str(child.attrs))
            ):
                before = next((piece[-1] for piece in reversed(self._line) if piece), "")
                self._line.append(_raised(child, before))
            elif child.name in ("del", "s", "strike") and (text := _inline(child)):
                self._line.append(f"~~{text}~~")
            elif child.name in _BLOCKS:
                self._end_block()
                self._blocks += filter(None, self._block(child))
                self._end_block()
            else:
                self._add(child)

    def _end_block(self) -> None:
        """Make a block of the text that goes on to here, escaped where it begins a line."""
        text = re.sub(r"[^\S\n]+", " ", "".join(self._line))
        if mark := re.match("^\ue000([^\ue000\ue001]{0,100})\ue001\\s*", text.strip()):
            self.number, text = mark[1], text.strip()[mark.end() :]
        text, self._line = "\n".join(line.strip() for line in text.split("\n")).strip(), []
        if text:
            text = " ".join(text.split()) if self._is_inline else formats.escape(text)
            self._blocks.append(_BULLET.sub("- ", text))

    def _block(self, element: Tag) -> list[str]:
        kind = element.name
        if kind in _LISTS and (
            self._is_inline or kind == "ol" or element.find(_HEADINGS) is None
        ):  # else a layout
            return [self._list(element)]
        if not self._is_inline:
            if kind in _HEADINGS:
                text = _inline(element)
                return [formats.heading(int(kind[1]), text)] if text else []
            if kind == "pre":
                return [_code(element)]
            if kind == "blockquote":
                lines = "\n\n".join(_Writer().blocks(element)).split("\n")
                return ["\n".join(f"> {line}".rstrip() for line in lines)]
            if kind == "table" and not _is_layout(element):
                return _table(element)
        self._add(element)
        return []

    def _list(self, items: Tag) -> str:
        """Items with the numbers that a browser shows."""
        found, lines, indent = items.find_all(recursive=False), list[str](), ""
        step = -1 if items.has_attr("reversed") else 1
        number = integer(
            items.get("start"), 1 if step > 0 else len(items.find_all("li", recursive=False))
        )
        for child in found:
            if child.name in _LISTS:
                lines.append(indent + re.sub(r"\n(?=[^\n])", f"\n{indent}", self._list(child)))
                continue
            item = _Writer(is_inline=self._is_inline)
            text = ("\n\n" if child.find("p", recursive=False) else "\n").join(item.blocks(child))
            first = next((inner for inner in child.children if str(inner).strip()), None)
            if not text or getattr(first, "name", "") in _LISTS:  # what only holds other items
                lines.append(text)
                continue
            number = integer(child.get("value"), number)
            of_list = (
                f"{formats.numeral(number, str(items.get('type') or '1'))}."
                if items.name == "ol"
                else ""
            )
            shown = item.number or of_list
            bullet = f"{shown} " if _ITEM.match(shown) else f"- {shown}".rstrip() + " "
            indent = " " * (len(bullet) if _ITEM.match(shown) else 2)
            lines.append(bullet + re.sub(r"\n(?=[^\n])", f"\n{indent}", text))
            number += step
        return "\n".join(filter(None, lines))


def _inline(element: Tag) -> str:
    """What an element holds, on one line."""
    return " ".join(_Writer(is_inline=True).blocks(element))


def _code(element: Tag) -> str:
    for line in element.find_all("br"):
        line.replace_with("\n")
    code = element.get_text().strip("\n")
    around = (
        one
        for one in (element, *element.find_all("code"), *list(element.parents)[:3])
        if one.get("class")
    )
    language = _LANGUAGE.search(" ".join(name for one in around for name in one["class"]))
    return formats.fence(code, language[1] if language else "") if code.strip() else ""


def _raised(element: Tag, before: str) -> str:
    """A number above or below the line so that it stays apart from the one beside it: 10^6, log_10."""
    text, after = element.get_text().strip(), str(element.next_sibling or "")[:1]
    link = (
        element
        if element.name == "a"
        else element.find("a", href=True) or element.find_parent("a", href=True)
    )
    is_note = element.name == "a" or (link is not None and "#" in str(link["href"]))
    if text and is_note and len(text) <= 5:  # noqa: PLR2004  of a note
        return f" [{text.strip('[]()')}]"
    if text and element.name == "sup" and (before.isalnum() or before in (")", "]")):
        return raised(text)
    if element.name == "sub" and (before.isdigit() or after.isdigit() or whole(text) != text):
        return f"_{whole(text)}{' ' * after.isdigit()}"
    return element.get_text()


def raised(text: str) -> str:
    """Letters above the line, as text: nd, ^6, ^(n+1)."""
    return text if text.lower() in _ORDINALS else f"^{whole(text)}"


def whole(text: str) -> str:
    """A part of a formula, in parentheses where it has several pieces."""
    return text if _WHOLE.fullmatch(text) else f"({text})"


# Tables and numbers


def _inner(element: Tag, names: list[str]) -> list[Tag]:
    """Rows of a table, or cells of a row, that are of no other one in it."""
    return [one for one in element.find_all(names) if one.find_parent(element.name) is element]


def _is_layout(table: Tag) -> bool:
    """Whether a table only lays out a page: it has one column, or holds blocks that no cell of data holds."""
    rows = [_inner(row, ["td", "th"]) for row in _inner(table, ["tr"])]
    if table.get("role") in ("presentation", "none") or max(map(len, rows), default=0) < 2:  # noqa: PLR2004
        return True
    if table.find([*_HEADINGS, "table", "pre"]) is None or _inner(table, ["th", "caption"]):
        return False
    return len(rows) == 1 or any(
        len(cell.get_text(strip=True)) > 200  # noqa: PLR2004
        for row in rows
        for cell in row  # noqa: PLR2004, RUF100
    )


def _table(table: Tag) -> list[str]:
    """The caption and the cells of a table, and the pages that begin in it.

    What spans rows stands in each of them; names of columns in several rows are joined.
    """
    rows, caption = _inner(table, ["tr"]), table.find("caption")
    grid: dict[tuple[int, int], str] = {}
    names: list[int] = []  # the rows that name columns
    for at, row in enumerate(rows):
        cells, column = _inner(row, ["td", "th"]), 0
        is_title = len(cells) == 1 and not names
        in_head = row.find_parent(["thead", "table"]) is not table or all(
            cell.name == "th" for cell in cells
        )
        is_head = bool(cells) and in_head and not is_title
        if is_head and (not names or names[-1] == at - 1):
            names.append(at)
        for cell in cells:
            while (at, column) in grid:
                column += 1
            text, wide = _inline(cell), max(1, integer(cell.get("colspan"), most=1000))
            below = len(rows) - at
            high = max(1, integer(cell.get("rowspan"), most=below) or below)
            formats.check_size(len(grid) + wide * high)
            for down, beside in product(range(high), range(wide)):
                is_shown = (beside == 0 or is_head) and (down == 0 or len(text) <= formats.REPEATED)
                grid[at + down, column + beside] = text if is_shown else ""
            column += wide
    width = 1 + max((column for _, column in grid), default=0)
    formats.check_size(width * len(rows))
    lines = [[grid.get((at, column), "") for column in range(width)] for at in range(len(rows))]
    if 1 < len(names) < len(lines):
        head = zip(*(lines[at] for at in names), strict=True)
        lines[names[0] : names[-1] + 1] = [
            [" ".join(dict.fromkeys(filter(None, column))) for column in head]
        ]
    text = formats.table_of(lines)
    return [_inline(caption) if caption else "", text.replace(PAGE, ""), PAGE * text.count(PAGE)]

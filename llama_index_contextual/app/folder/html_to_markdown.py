"""The conversion of HTML to Markdown.

It keeps the text of a page in order, without scripts, menus and layout. Word, OpenDocument, EPUB,
RTF, PowerPoint and mail also pass through here, so that spans, list numbers and escaping are the
same for all of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import product

from bs4 import BeautifulSoup, Tag, UnicodeDammit
from bs4.builder import HTMLTreeBuilder
from bs4.element import PreformattedString

from llama_index_contextual.app.folder import markdown
from llama_index_contextual.app.folder.archive import integer
from llama_index_contextual.app.folder.files import decode
from llama_index_contextual.app.folder.formats import Conversion, ConversionError, Part
from llama_index_contextual.app.folder.formulas import in_parentheses, superscript

_SPACES = str.maketrans("\xa0\n\r", "   ", "\xad")
_MARKS = str.maketrans("", "", "\0\ue000\ue001\ue002")
_DROPPED = frozenset(
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
    ]
)
_DROPPED_ROLES = ("navigation", "banner", "contentinfo", "menu", "dialog")
_DROPPED_CLASSES = frozenset(("linenos", "source-line-no", "mw-editsection", "katex-html"))
_HEADINGS = ["h1", "h2", "h3", "h4", "h5", "h6"]
_LISTS = ("ul", "ol")
_BLOCKS = HTMLTreeBuilder.DEFAULT_BLOCK_ELEMENTS.union(
    ("body", "button", "caption", "center", "details", "dialog", "hgroup", "html", "label"),
    ("legend", "summary", "tbody", "td", "th", "thead", "tr"),
)
# The signs before each part of a formula.
_FORMULA_SIGNS = {
    "mfrac": ("", "/"),
    "msup": ("", "^"),
    "msub": ("", "_"),
    "msubsup": ("", "_", "^"),
    "munderover": ("", "_", "^"),
}
_LANGUAGE = re.compile(r"(?:language|lang|highlight-source|highlight)-(\w+)")
_BULLET = re.compile(rf"^[{markdown.BULLETS}]\s+", re.MULTILINE)
_ITEM_NUMBER = re.compile(r"\d{1,9}[.)]$")
_NUMBERED = re.compile("^\ue000([^\ue000\ue001]{0,100})\ue001\\s*")
_NEXT_LINE = re.compile(r"\n(?=[^\n])")
# Roles, EPUB types or classes of links to notes.
_NOTE = re.compile("noteref|footnote-ref|fnref")
_LONGEST_NOTE = 5  # characters of the mark of a note
_MIN_NAMED = 100  # characters; larger elements that are left out are reported
_DEEPEST = 200  # levels of nested elements
_LONG_CELL = 200  # characters; tables with longer cells are not data
_MAX_SPAN = 1000  # columns that a cell can span
_METADATA = {
    "author": "author",
    "article:published_time": "created",
    "article:modified_time": "modified",
}
_WESTERN = (None, "ascii", "utf-8", "iso-8859-1", "windows-1252")


def decode_html(data: bytes, charset: str = "") -> str:
    """Return the text of a page, by the given charset, its byte order mark or its declaration.

    If it is in a Western charset or in none of these, it is decoded like a text file.

    Args:
        data: A page, or a text with a known charset.
        charset: The charset that a mail declares, or "".
    """
    known = [charset] if charset else []
    decoded = UnicodeDammit(data, known_definite_encodings=known, is_html=True)
    # A guess from a few bytes is worthless: "café" would be Urdu.
    is_guess = decoded.detector.chardet_encoding and not re.search(rb"[\x80-\xff]{3}", data)
    if is_guess or decoded.original_encoding in _WESTERN:
        return decode(data).text
    return str(decoded.unicode_markup)


def body_of(page: str) -> str:
    """Return the contents of a page's body as HTML, for insertion into another page."""
    soup = BeautifulSoup(page.translate(_MARKS), "lxml")
    return soup.body.decode_contents() if soup.body else ""


def html_to_markdown(text: str, *, is_marked: bool = False) -> Conversion:
    """Return a page as Markdown. If it marks its main text, only that is returned.

    Args:
        text: The HTML of the page.
        is_marked: Whether it contains the marks of list numbers and pages.

    Raises:
        ConversionError: The elements are nested too deeply.
    """
    text = text.replace("\0", "") if is_marked else text.translate(_MARKS)
    soup = BeautifulSoup(text, "lxml")
    metadata = _metadata(soup)
    for element in soup.find_all():
        if sum(1 for _ in element.parents) > _DEEPEST:
            raise ConversionError("its elements are nested too deeply. Ignore it.")
    _normalize(soup)
    left_out = _remove_hidden(soup)
    main = _main_element(soup)
    outside = len(soup.get_text(" ", strip=True)) - len(main.get_text(" ", strip=True))
    if outside > _MIN_NAMED:
        left_out["outside character"] += outside
    blocks = _Writer().blocks(main)
    return Conversion([Part("\n\n".join(blocks) + "\n")], metadata, +left_out)


def _metadata(soup: BeautifulSoup) -> dict[str, str]:
    title = soup.title.get_text() if soup.title else ""
    metadata = {"title": " ".join(title.split())}
    for element in soup.find_all("meta"):
        name = str(element.get("name") or element.get("property") or "")
        key = _METADATA.get(name.lower())
        content = str(element.get("content") or "").strip()
        if key and content:
            metadata.setdefault(key, content)
    return metadata


def _main_element(soup: BeautifulSoup) -> Tag:
    for element in soup.select("main, [role=main]"):
        if element.get_text(strip=True):
            return element
    return soup


def _normalize(soup: BeautifulSoup) -> None:
    """Rename elements that have a role or style to the corresponding HTML elements.

    Formulas are replaced by text.
    """
    for element in soup.find_all(role="heading"):
        level = max(1, integer(element.get("aria-level"), 2, 6))
        element.name = f"h{level}"
    for element in soup.find_all("span", style=re.compile(r"vertical-align:\s*super")):
        element.name = "sup"
    for element in soup.find_all("math"):
        for part in reversed(element.find_all(list(_FORMULA_SIGNS))):
            part.string = _formula_text(part)
        source = element.find("annotation") or element
        element.string = source.get_text(strip=True)


def _formula_text(element: Tag) -> str:
    text = ""
    signs = _FORMULA_SIGNS[element.name]
    for sign, part in zip(signs, element.find_all(recursive=False), strict=False):
        part_text = part.get_text(strip=True)
        if part_text:
            text += sign + in_parentheses(part_text)
    return text


def _remove_hidden(soup: BeautifulSoup) -> Counter[str]:
    """Remove menus and elements that are not text, and return their counts.

    Text that the reader can unfold is kept.
    """
    left_out = Counter(
        picture=len(soup.find_all(["img", "svg", "canvas"])), script=len(soup.find_all("script"))
    )
    for element in soup.find_all():
        if element.decomposed or not _is_hidden(element):
            continue
        size = len(element.get_text(" ", strip=True))
        if size > _MIN_NAMED and element.name not in ("head", "script", "style"):
            left_out[f"<{element.name}> character"] += size
        element.decompose()
    return left_out


def _is_hidden(element: Tag) -> bool:
    """Return whether an element is a menu, a code button, a page footer or a heading's anchor."""
    name = element.name
    if name in _DROPPED or element.get("role") in _DROPPED_ROLES:
        return True
    if not _DROPPED_CLASSES.isdisjoint(element.get("class") or ()):
        return True
    if name == "button":
        return element.find_parent("pre") is not None
    if name == "footer":
        text_elements = ["main", "article", "section", "blockquote", "figure"]
        return element.find_parent(text_elements) is None
    if name == "a" and "#" in str(element.get("href")):
        return not any(map(str.isalnum, element.get_text()))
    return False


class _Writer:
    """A writer of elements as blocks of Markdown.

    With ``is_inline``, as in a cell or heading, the text of each block is on one line.
    """

    def __init__(self, *, is_inline: bool = False) -> None:
        self.number = ""  # of an item, if the text starts with one
        self._is_inline = is_inline
        self._blocks: list[str] = []
        self._line: list[str] = []

    def blocks(self, element: Tag) -> list[str]:
        """Return the blocks in an element."""
        self._add_children(element)
        self._end_block()
        return self._blocks

    def _add_children(self, element: Tag) -> None:
        for child in element.children:
            if isinstance(child, Tag):
                self._add(child)
            elif not isinstance(child, PreformattedString):  # a comment
                self._line.append(str(child).translate(_SPACES))

    def _add(self, element: Tag) -> None:
        name = element.name
        if name == "br":
            self._line.append("\n")
        elif element.get("type") == "checkbox":
            sign = "x" if element.has_attr("checked") else " "
            self._line.append(f"[{sign}] ")
        elif name in ("code", "kbd", "samp") and element.get_text().strip():
            code = element.get_text().strip()
            self._line.append(f"`{code.translate(_SPACES)}`")
        elif name in ("sup", "sub") or (name == "a" and _NOTE.search(str(element.attrs))):
            self._line.append(_superscript_or_subscript(element, self._last_character()))
        elif name in ("del", "s", "strike"):
            text = _inline(element)
            self._line.append(f"~~{text}~~" if text else "")
        elif name in _BLOCKS:
            self._end_block()
            self._blocks += filter(None, self._block(element))
            self._end_block()
        else:
            self._add_children(element)

    def _last_character(self) -> str:
        for piece in reversed(self._line):
            if piece:
                return piece[-1]
        return ""

    def _end_block(self) -> None:
        """Make a block of the text so far, with escaped line starts."""
        text = re.sub(r"[^\S\n]+", " ", "".join(self._line)).strip()
        self._line = []
        mark = _NUMBERED.match(text)
        if mark:
            self.number = mark[1]
            text = text[mark.end() :]
        lines = [line.strip() for line in text.split("\n")]
        text = "\n".join(lines).strip()
        if text:
            text = " ".join(text.split()) if self._is_inline else markdown.escape(text)
            self._blocks.append(_BULLET.sub("- ", text))

    def _block(self, element: Tag) -> list[str]:
        """Return the blocks of an element, or none if its text was added to the current line."""
        name = element.name
        if name in _LISTS:
            # A list that contains headings is only layout.
            is_list = self._is_inline or name == "ol" or element.find(_HEADINGS) is None
            if is_list:
                return [self._list(element)]
        elif not self._is_inline:
            if name in _HEADINGS:
                text = _inline(element)
                return [markdown.heading(int(name[1]), text)] if text else []
            if name == "pre":
                return [_code(element)]
            if name == "blockquote":
                return [_quote(element)]
            if name == "table" and not _is_layout(element):
                return _table(element)
        self._add_children(element)
        return []

    def _list(self, element: Tag) -> str:
        """Return the items of a list with the numbers that a browser shows."""
        step = -1 if element.has_attr("reversed") else 1
        count = len(element.find_all("li", recursive=False))
        number = integer(element.get("start"), 1 if step > 0 else count)
        lines: list[str] = []
        indent = ""
        for child in element.find_all(recursive=False):
            if child.name in _LISTS:
                lines.append(indent + _indented(self._list(child), indent))
                continue
            item = _Writer(is_inline=self._is_inline)
            blocks = item.blocks(child)
            text = ("\n\n" if child.find("p", recursive=False) else "\n").join(blocks)
            if not text or _only_holds_lists(child):
                lines.append(text)
                continue
            number = integer(child.get("value"), number)
            label = item.number
            if not label and element.name == "ol":
                label = f"{markdown.numeral(number, str(element.get('type') or '1'))}."
            is_number = _ITEM_NUMBER.match(label) is not None
            bullet = f"{label} " if is_number else f"- {label}".rstrip() + " "
            indent = " " * (len(bullet) if is_number else 2)
            lines.append(bullet + _indented(text, indent))
            number += step
        return "\n".join(filter(None, lines))


def _only_holds_lists(item: Tag) -> bool:
    first = next((child for child in item.children if str(child).strip()), None)
    return isinstance(first, Tag) and first.name in _LISTS


def _indented(text: str, indent: str) -> str:
    return _NEXT_LINE.sub(f"\n{indent}", text)


def _inline(element: Tag) -> str:
    """Return the contents of an element on one line."""
    return " ".join(_Writer(is_inline=True).blocks(element))


def _quote(element: Tag) -> str:
    lines = "\n\n".join(_Writer().blocks(element)).split("\n")
    return "\n".join(f"> {line}".rstrip() for line in lines)


def _code(element: Tag) -> str:
    for line_break in element.find_all("br"):
        line_break.replace_with("\n")
    code = element.get_text().strip("\n")
    if not code.strip():
        return ""
    classes: list[str] = []
    for holder in (element, *element.find_all("code"), *list(element.parents)[:3]):
        classes += holder.get("class") or []
    language = _LANGUAGE.search(" ".join(classes))
    return markdown.fence(code, language[1] if language else "")


def _superscript_or_subscript(element: Tag, before: str) -> str:
    """Return superscript or subscript as text, kept apart from a number beside it: 10^6, log_10."""
    text = element.get_text().strip()
    if not text:
        return element.get_text()
    if len(text) <= _LONGEST_NOTE and _is_note(element):
        return f" [{text.strip('[]()')}]"
    if element.name == "sup" and (before.isalnum() or before in (")", "]")):
        return superscript(text)
    after = str(element.next_sibling or "")[:1]
    is_beside_digit = before.isdigit() or after.isdigit()
    if element.name == "sub" and (is_beside_digit or in_parentheses(text) != text):
        return f"_{in_parentheses(text)}{' ' if after.isdigit() else ''}"
    return element.get_text()


def _is_note(element: Tag) -> bool:
    """Return whether superscript is, contains or is inside a link to a place on the page."""
    if element.name == "a":
        return True
    link = element.find("a", href=True) or element.find_parent("a", href=True)
    return isinstance(link, Tag) and "#" in str(link["href"])


# Tables


def _own_elements(element: Tag, names: list[str]) -> list[Tag]:
    """Return the rows of a table, or the cells of a row, without those of nested tables."""
    return [
        inner for inner in element.find_all(names) if inner.find_parent(element.name) is element
    ]


def _cells(row: Tag) -> list[Tag]:
    return _own_elements(row, ["td", "th"])


def _is_layout(table: Tag) -> bool:
    """Return whether a table is only layout.

    Such a table has one column, or contains blocks that do not occur in data cells.
    """
    rows = [_cells(row) for row in _own_elements(table, ["tr"])]
    width = max(map(len, rows), default=0)
    if width < 2 or table.get("role") in ("presentation", "none"):  # noqa: PLR2004
        return True
    if table.find([*_HEADINGS, "table", "pre"]) is None or _own_elements(table, ["th", "caption"]):
        return False
    if len(rows) == 1:
        return True
    sizes = (len(cell.get_text(strip=True)) for row in rows for cell in row)
    return max(sizes, default=0) > _LONG_CELL


def _table(table: Tag) -> list[str]:
    """Return the caption and the cells of a table, and the marks of the pages that start in it.

    A cell that spans several rows is repeated in each of them. If the column names take several
    rows, they are joined.
    """
    rows = _own_elements(table, ["tr"])
    header_rows: list[int] = []
    grid: dict[tuple[int, int], str] = {}
    for number, row in enumerate(rows):
        cells = _cells(row)
        is_header = _is_header(row, cells, table) and not (len(cells) == 1 and not header_rows)
        if is_header and (not header_rows or header_rows[-1] == number - 1):
            header_rows.append(number)
        _fill(grid, number, cells, len(rows) - number, is_header=is_header)
    width = 1 + max((column for _, column in grid), default=0)
    markdown.check_size(width * len(rows))
    lines = [
        [grid.get((number, column), "") for column in range(width)] for number in range(len(rows))
    ]
    if 1 < len(header_rows) < len(lines):
        start = header_rows[0]
        end = header_rows[-1] + 1
        lines[start:end] = [_joined_header(lines[start:end])]
    caption = table.find("caption")
    title = _inline(caption) if isinstance(caption, Tag) else ""
    text = markdown.table_of(lines)
    pages = markdown.PAGE_MARK * text.count(markdown.PAGE_MARK)
    return [title, text.replace(markdown.PAGE_MARK, ""), pages]


def _is_header(row: Tag, cells: Sequence[Tag], table: Tag) -> bool:
    if not cells:
        return False
    in_head = row.find_parent(["thead", "table"]) is not table
    return in_head or all(cell.name == "th" for cell in cells)


def _fill(
    grid: dict[tuple[int, int], str],
    row: int,
    cells: Sequence[Tag],
    rows_left: int,
    *,
    is_header: bool,
) -> None:
    """Put the cells of a row into a grid, at each position that they span."""
    column = 0
    for cell in cells:
        while (row, column) in grid:
            column += 1
        text = _inline(cell)
        width = max(1, integer(cell.get("colspan"), maximum=_MAX_SPAN))
        height = max(1, integer(cell.get("rowspan"), maximum=rows_left) or rows_left)
        markdown.check_size(len(grid) + width * height)
        for down, right in product(range(height), range(width)):
            is_shown = right == 0 or is_header
            if down > 0 and len(text) > markdown.MAX_REPEATED:
                is_shown = False
            grid[row + down, column + right] = text if is_shown else ""
        column += width


def _joined_header(rows: Sequence[Sequence[str]]) -> list[str]:
    header = []
    for names in zip(*rows, strict=True):
        distinct = dict.fromkeys(filter(None, names))
        header.append(" ".join(distinct))
    return header

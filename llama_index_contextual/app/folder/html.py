"""HTML and EPUB to Markdown: the text of a page in its order, without scripts, menus and what only lays it out.

Word, OpenDocument, RTF and mail pass through here as well, so spans of tables, numbers of lists and escaping are one.
"""

from __future__ import annotations

import codecs
import contextlib
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from bs4 import BeautifulSoup, Tag
from bs4.dammit import EncodingDetector
from bs4.element import NavigableString, PreformattedString

from llama_index_contextual.app.folder import formats
from llama_index_contextual.app.folder.formats import Conversion, ConversionError, Part, attribute, open_archive, xml_of
from llama_index_contextual.text import UTF16_MARKS, decode

NUMBER: Final = "\ue000{}\ue001"  # before the text of an item: its number as a program shows it
PAGE: Final = "\ue002"  # where a page begins
_SPACES: Final = str.maketrans("\xa0\n\r", "   ", "\xad")
_MARKS: Final = str.maketrans("", "", "\0\ue000\ue001\ue002")
_SKIPPED: Final = frozenset("head script style template nav noscript svg iframe object canvas select".split())  # noqa: SIM905
_HIDDEN: Final = frozenset(("linenos", "mw-editsection"))
_HEADINGS: Final = ["h1", "h2", "h3", "h4", "h5", "h6"]
_LISTS: Final = ("ul", "ol")
_CONTAINERS: Final = """
    p div address article aside center details dialog fieldset figcaption figure footer form header hgroup main section
    summary dt dd dl caption legend button body html li tbody thead tfoot tr td th hr
    """.split()  # noqa: SIM905
_BLOCKS: Final = frozenset((*_HEADINGS, *_LISTS, "pre", "table", "blockquote", *_CONTAINERS))
_ORDINALS: Final = frozenset("st nd rd th er re ère e ème o a os as tm sm ® ™".split())  # noqa: SIM905
# Parts of a formula in MathML by the names that Word gives them.
_LIMITS: Final = {"msub": "e sub", "munder": "e sub", "msubsup": "e sub sup", "munderover": "e sub sup"}
_PARTS: Final = {"mfrac": "num den", "msup": "e sup", "mroot": "e deg", **_LIMITS}
_UNSEEN: Final = str.maketrans("\u2061\u2063", " ,", "\u2062\u2064")  # signs of formulas
# A part of a formula that needs no parentheses.
_WHOLE: Final = re.compile(r"[-+\u2212±]?(?:\d[\d.,]*|[^\W\d_]+)?[^\w\s()/]*|[(\[][^()[\]]*[)\]]")
_CELLS: Final = {"cell": "td", "gridcell": "td", "columnheader": "th", "rowheader": "th"}
_ROLES: Final = {"table": "table", "grid": "table", "row": "tr", **_CELLS}
_LANGUAGE: Final = re.compile(r"(?:language|lang|highlight-source|highlight)-(\w+)")
_ITEM: Final = re.compile(r"\d{1,9}[.)]$")
_LEAST_NAMED: Final = 100  # characters of an element that is left out: then it is named
_WIDER: Final = {"gb2312": "gb18030", "shift_jis": "cp932", "euc_kr": "cp949"}  # as programs of mail and browsers do
_METADATA: Final = {"author": "author", "article:published_time": "created", "article:modified_time": "modified"}


def read_html(path: Path) -> Conversion:
    """The text of a page."""
    return html_to_markdown(decoded(path.read_bytes()))


read_htm = read_html


def read_epub(path: Path) -> Conversion:
    """A book: a part for each chapter, in the order of reading."""
    with open_archive(path) as archive:
        container = xml_of(archive, "META-INF/container.xml")
        name = attribute(container.find(".//{*}rootfile"), "full-path")
        if name not in archive.NameToInfo:
            raise ConversionError("it is damaged or no EPUB (it names no package). Cure: ignore it.")
        package = xml_of(archive, name)
        items = {attribute(child, "id"): attribute(child, "href") for child in package.iterfind(".//{*}item")}
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


def decoded(data: bytes, charset: str = "") -> str:
    """Text in a charset, that of its mark or else the one declared in it; Western ones are guessed as those of files.

    Args:
        data: A page, or a text whose charset is named.
        charset: As a mail names it.
    """
    declared = charset or EncodingDetector.find_declared_encoding(data[:4000], is_html=True) or "utf-8"
    with contextlib.suppress(LookupError, ValueError):
        name = codecs.lookup(declared).name
        if name not in ("utf-8", "ascii", "iso8859-1", "cp1252") and not data.startswith(
            (codecs.BOM_UTF8, *UTF16_MARKS)
        ):
            text = data.decode(_WIDER.get(name, name), "replace")
            if text.count("\ufffd") <= 0.01 * len(text):
                return text
    return decode(data).text


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
    for element in soup.find_all(re.compile(r"^(?:\w+:)?math$")):
        element.replace_with(_formula(element))
    main = _main_part(soup)
    outside = len(soup.get_text(" ", strip=True)) - len(main.get_text(" ", strip=True))
    blocks = _Writer().blocks(main)
    if not blocks and main is not soup:
        blocks, outside = _Writer().blocks(soup), 0
    left_out["character outside of the main text"] += outside * (outside > _LEAST_NAMED)
    return Conversion([Part("\n\n".join(blocks) + "\n")], metadata, +left_out)


def _rename(soup: BeautifulSoup) -> None:
    """Give elements that say by other means what they are the names of HTML."""
    for element in soup.find_all(role=["heading", *_ROLES]):
        element.name = _ROLES.get(str(element["role"]), f"h{max(1, _integer(element, 'aria-level', 2, 6))}")
    for element in soup.find_all("span", style=re.compile(r"vertical-align:\s*super")):
        element.name = "sup"
    for element in soup.find_all("rt"):
        if element.find_next_sibling("rp") is None:
            element.string = f"({element.get_text()})"


def _without_hidden(soup: BeautifulSoup) -> Counter[str]:
    """Take out what a reader of the page does not see, or takes for a menu; return its counts."""
    left_out: Counter[str] = Counter(picture=len(soup.find_all(["img", "svg", "canvas"])))
    controlled = {name for one in soup.find_all() for name in str(one.get("aria-controls") or "").split()}
    for element in soup.find_all(hidden=True):
        if _is_panel(element, controlled):
            del element["hidden"]
    for element in soup.find_all():
        if element.decomposed or not _is_hidden(element):
            continue
        size = len(element.get_text(" ", strip=True))
        left_out["deleted text"] += element.name == "del"
        left_out["script"] += len(element.find_all("script")) + (element.name == "script")
        if size > _LEAST_NAMED and element.name not in ("head", "script"):
            left_out[f"character in <{element.name}>"] += size
        element.decompose()
    return left_out


def _is_hidden(element: Tag) -> bool:
    name, attributes, parent = element.name, element.attrs, element.parent or element
    return (
        name in _SKIPPED
        or attributes.get("role") in ("navigation", "banner")
        or not _HIDDEN.isdisjoint(attributes.get("class") or ())
        or "hidden" in attributes
        or (attributes.get("aria-hidden") == "true" and parent.name == "span" and parent.find("math") is not None)
        or (name == "button" and _is_small_button(element))
        or (name == "footer" and not element.find_parent(["main", "article", "section", "blockquote", "figure"]))
        or (name == "aside" and _is_side_bar(element))
        or (name == "a" and _is_anchor(element))
        or (name == "del" and parent.find("ins", recursive=False) is not None)
    )


def _is_panel(element: Tag, controlled: set[str]) -> bool:
    """Whether a heading, a tab or a button unfolds a hidden element."""
    role, before = element.get("role"), element.find_previous_sibling()
    if before is not None and before.name in (*_HEADINGS, "dt"):
        before = before.find("button")
    return role not in ("menu", "menubar", "listbox", "dialog", "tooltip") and (
        element.get("hidden") == "until-found"
        or role in ("tabpanel", "region")
        or element.has_attr("aria-labelledby")
        or element.get("id") in controlled
        or (before is not None and before.name == "button" and not _is_small_button(before))
    )


def _is_small_button(button: Tag) -> bool:
    """Whether a button does something, as "Copy" does; others are names of what they unfold, or headings."""
    is_name = button.has_attr("aria-expanded") or button.has_attr("aria-controls") or button.get("role") == "tab"
    if (around := button.find_parent([*_HEADINGS, "dt", "summary"])) is not None:
        is_name |= not any(map(str.isalnum, around.get_text().replace(button.get_text(), "")))
    return not is_name and len(button.get_text().split()) <= 3  # noqa: PLR2004


def _is_side_bar(aside: Tag) -> bool:
    """Whether an aside consists of links; others are warnings or notes in the text."""
    links = sum(len(link.get_text(strip=True)) for link in aside.find_all("a"))
    return links > 0.5 * len(aside.get_text(strip=True))


def _is_anchor(link: Tag) -> bool:
    """Whether a link is the sign beside a heading that leads to it, or leads back from a note."""
    if "#" not in str(link.get("href") or ""):
        return False
    text, around = link.get_text(strip=True), link.find_parent([*_HEADINGS, "dt"])
    if not any(map(str.isalnum, text)):
        return True
    is_marked = any(word in " ".join(link.get("class") or []) for word in ("anchor", "headerlink", "hash-link"))
    return is_marked and around is not None and around.get_text(strip=True) != text


def _main_part(soup: Any) -> Any:
    """The main text that a page marks, else the least element with all articles, else the page."""
    main, articles = soup.find("main") or soup.find(attrs={"role": "main"}), soup.find_all("article")
    before = None if main is None else main.find_previous_sibling()
    if before is not None and before.name == "h1" and main.find("h1") is None:
        main.insert(0, before.extract())
    if main is not None or not articles:
        return main or soup
    around = (articles[0], *articles[0].parents)
    return next(one for one in around if len(one.find_all("article")) + (one.name == "article") == len(articles))


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
            elif child.name in ("code", "kbd", "samp") and (text := child.get_text().strip()):
                self._line.append(f"`{text.translate(_SPACES)}`")
            elif child.name in ("sup", "sub") or _is_note(child):
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
            self._blocks.append(" ".join(text.split()) if self._is_inline else formats.escape(text))

    def _block(self, element: Tag) -> list[str]:
        kind = element.name
        if kind in _LISTS:
            return [self._list(element)]
        if not self._is_inline:
            if kind in _HEADINGS:
                text = _inline(element) or " ".join(str(one.get("alt") or "") for one in element.find_all("img"))
                return [formats.heading(int(kind[1]), text)] if text.strip() else []
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
        number = _integer(items, "start", sum(child.name == "li" for child in found) if step < 0 else 1)
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
            number = _integer(child, "value", number)
            shown = item.number
            if items.name == "ol":
                is_note = str(child.get("id")).startswith(("footnote-", "endnote-"))
                shown = shown or (
                    f"[{number}]" if is_note else f"{formats.numeral(number, str(items.get('type') or '1'))}."
                )
            bullet = f"{shown} " if _ITEM.match(shown) else f"- {shown} " if shown else "- "
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
    around = (one for one in (element, *element.find_all("code"), *list(element.parents)[:3]) if one.get("class"))
    language = _LANGUAGE.search(" ".join(name for one in around for name in one["class"]))
    return formats.fence(code, language[1] if language else "") if code.strip() else ""


def _is_note(link: Tag) -> bool:
    kinds = (link.get("epub:type"), link.get("role"), *(link.get("class") or ()))
    return link.name == "a" and re.search("noteref|footnote-ref|fnref", " ".join(map(str, kinds))) is not None


def _raised(element: Tag, before: str) -> str:
    """A number above or below the line so that it stays apart from the one beside it: 10^6, log_10."""
    text, after = element.get_text().strip(), str(element.next_sibling or "")[:1]
    link = element if element.name == "a" else element.find("a", href=True) or element.find_parent("a", href=True)
    is_note = element.name == "a" or (link is not None and "#" in str(link["href"]))
    if text and is_note and len(text) <= 5:  # noqa: PLR2004  of a note
        return f" [{text.strip('[]()')}]"
    previous = element.find_previous(string=True) if text else None
    if previous is not None and previous.find_parent(element.name):  # it goes on
        return element.get_text()
    is_behind = before.isalnum() or before in (")", "]")
    if text and element.name == "sup" and is_behind:
        is_fraction = after in ("/", "\u2044") and getattr(element.find_next_sibling(), "name", "") == "sub"
        return f" {text}" if is_fraction else power(text)
    if element.name == "sub" and (before.isdigit() or after.isdigit() or _whole(text) != text):
        return f"_{_whole(text)}{' ' * after.isdigit()}"
    return element.get_text()


# Formulas


def power(text: str) -> str:
    """Raised letters behind others: ^6, ^(n+1), nd."""
    return text if text.lower() in _ORDINALS else f"^{_whole(text)}"


def formula(kind: str, parts: Sequence[tuple[str, str]]) -> str:
    """A formula on one line: 1/2, x^2, √(a+b).

    Args:
        kind: The name of an element of Word or of MathML.
        parts: What it holds: names as Word gives them, and texts.
    """
    text, inner, last = "", defaultdict(str, {name: _whole(part) for name, part in parts}), ""
    if inner["num"]:
        return f"{inner['num']}/{inner['den']}"
    if inner["sub"] or inner["sup"]:
        limits = (f"{mark}{inner[name]}" for name, mark in (("sub", "_"), ("sup", "^")) if inner[name])
        return dict(parts).get("e", "") + "".join(limits)
    if kind in ("mr", "mtr"):
        return ", ".join(part for _, part in parts) + "; "
    for _, part in parts:
        is_apart = part[:1].isalnum() and (text[-1:].isalnum() or text.endswith(")"))
        text += " " * (is_apart and ("/" in part or re.search("[/^_√]", last) is not None)) + part
        last = part
    text = text.removesuffix("; ")
    if kind in ("rad", "mroot", "msqrt"):
        return f"{inner['deg']}√{inner['e'] or _whole(text)}"
    return f"({text})" if kind in ("d", "mfenced") else text


def _formula(element: Tag) -> str:
    """A formula of MathML, without what is written once more in another notation."""
    kind = element.name.rpartition(":")[2]
    inner = [one for one in element.children if isinstance(one, Tag)]
    if not inner:
        return "" if kind.startswith("annotation") else element.get_text().strip(" \n\r\t").translate(_UNSEEN)
    names = _PARTS.get(kind, "").split()
    texts = list(map(_formula, inner))
    return formula(kind, [*zip([*names, *[""] * len(texts)], texts)])  # noqa: B905


def _whole(text: str) -> str:
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
    if table.find([*_HEADINGS, "table", "pre"]) is None or table.find(["th", "caption"]) is not None:
        return False
    return len(rows) == 1 or any(len(cell.get_text(strip=True)) > 200 for row in rows for cell in row)  # noqa: PLR2004


def _table(table: Tag) -> list[str]:
    """The caption, the cells and other text of a table, and the pages that begin in it.

    What spans rows stands in each of them; names of columns in several rows are joined.
    """
    rows, parts = _inner(table, ["tr"]), ["td", "th", "caption", "table"]
    caption, strings = table.find("caption"), table.find_all(string=lambda text: bool(text.strip()))
    others = [text for text in strings if type(text) is NavigableString and text.find_parent(parts) is table]
    grid: dict[tuple[int, int], str] = {}
    names: list[int] = []  # the rows that name columns
    for at, row in enumerate(rows):
        cells, column = _inner(row, ["td", "th"]), 0
        in_head = row.find_parent(["thead", "table"]) is not table
        is_title = len(cells) == 1 and not names
        is_head = bool(cells) and not is_title and (in_head or all(cell.name == "th" for cell in cells))
        if is_head and (not names or names[-1] == at - 1):
            names.append(at)
        for cell in cells:
            while (at, column) in grid:
                column += 1
            text, wide = _inline(cell), max(1, _integer(cell, "colspan", most=1000))
            below = len(rows) - at
            high = max(1, _integer(cell, "rowspan", most=below) or below)
            formats.check_size(len(grid) + wide * high)
            for down, beside in product(range(high), range(wide)):
                is_shown = (beside == 0 or is_head) and (down == 0 or len(text) <= formats.REPEATED)
                grid[at + down, column + beside] = text if is_shown else ""
            column += wide
    width = 1 + max((column for _, column in grid), default=0)
    formats.check_size(width * len(rows))
    lines = [[grid.get((at, column), "") for column in range(width)] for at in range(len(rows))]
    if 1 < len(names) < len(lines):
        columns = zip(*(lines[at] for at in names), strict=True)
        lines[names[0] : names[-1] + 1] = [[" ".join(dict.fromkeys(filter(None, column))) for column in columns]]
    text = formats.table_of(lines)
    rest = formats.escape(" ".join(" ".join(others).split()))
    return [_inline(caption) if caption else "", rest, text.replace(PAGE, ""), PAGE * text.count(PAGE)]


def _integer(element: Tag, name: str, default: int = 1, most: int = 10**9) -> int:
    match = re.match(r"\s*(-?\d{1,9})\s*$", str(element.get(name) or ""))
    return min(int(match[1]), most) if match else default

"""HTML and EPUB to Markdown: the text of a page in its order, without scripts, menus and what only lays it out.

Word, OpenDocument, RTF and mail pass through here as well, so spans of tables, numbers of lists and escaping are one.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from bs4 import BeautifulSoup, Tag
from bs4.dammit import EncodingDetector
from markdownify import MarkdownConverter

from llama_index_contextual.app.folder import formats
from llama_index_contextual.app.folder.formats import Conversion, ConversionError, Part, attribute, open_archive, xml_of
from llama_index_contextual.app.folder.grid import HEADINGS, grid_of, is_layout, number_items
from llama_index_contextual.text import decode

NUMBER: Final = "\ue000{}\ue001"  # before the text of an item: its number as a program shows it
PAGE: Final = "\ue002"  # where a page begins
_NUMBER: Final = re.compile("^\ue000([^\ue000\ue001]{0,100})\ue001\\s*")
_SPACES: Final = str.maketrans("\xa0", " ", "\xad")
_MARKS: Final = str.maketrans("", "", "\0\ue000\ue001\ue002")
_SKIPPED: Final = frozenset("script style template nav noscript svg iframe object canvas select".split())  # noqa: SIM905
_BLOCKS: Final = """
    address article aside center details dialog fieldset figcaption figure footer form header hgroup main section
    summary dt dd dl caption legend body html
    """.split()  # noqa: SIM905
_INLINE: Final = "a abbr b bdi bdo big cite del em font i ins label mark s small span strong tt u".split()  # noqa: SIM905
_IN_LINE: Final = frozenset(
    (*_INLINE, *"code kbd samp sup sub q ruby rt rp time var wbr data output button".split())  # noqa: SIM905
)
_ORDINALS: Final = frozenset("st nd rd th er re ère e ème o a os as tm sm ® ™".split())  # noqa: SIM905
_LANGUAGE: Final = re.compile(r"(?:language|lang|highlight-source|highlight)-(\w+)")
_ITEM: Final = re.compile(r"\d{1,9}[.)]$")
_DEEPEST: Final = 400  # elements in one another
_FEW_WORDS: Final = 3  # of a button
_LEAST_NAMED: Final = 100  # characters of an element that is left out: then it is named
_LONGEST_REFERENCE: Final = 5  # characters of a reference to a note
_METADATA: Final = {
    "author": "author",
    "article:published_time": "created",
    "article:modified_time": "modified",
    "dc.creator": "author",
    "dc.date": "created",
    "date": "created",
}


class Page(NamedTuple):
    """A page as Markdown, its metadata, and what is left out of it."""

    text: str
    metadata: dict[str, str]
    left_out: Counter[str]


def read_html(path: Path) -> Conversion:
    """The text of a page."""
    page = html_to_markdown(_decoded(path.read_bytes()))
    return Conversion([Part(page.text)], page.metadata, page.left_out)


def read_epub(path: Path) -> Conversion:
    """A book: a part for each chapter, in the order of reading."""
    with open_archive(path) as archive:
        container = xml_of(archive, "META-INF/container.xml")
        name = attribute(next(container.iterfind(".//{*}rootfile"), container), "full-path")
        if name not in archive.NameToInfo:
            raise ConversionError("it is damaged or no EPUB (it names no package). Cure: ignore it.")
        package = xml_of(archive, name)
        items = {attribute(child, "id"): attribute(child, "href") for child in package.iterfind(".//{*}item")}
        parts: list[Part] = []
        left_out: Counter[str] = Counter()
        for reference in package.iterfind(".//{*}itemref"):
            href = unquote(items.get(attribute(reference, "idref"), ""))
            member = posixpath.normpath(posixpath.join(posixpath.dirname(name), href))
            if href and member in archive.NameToInfo:
                page = html_to_markdown(_decoded(archive.read(member)))
                left_out += page.left_out
                if page.text.strip():
                    number = len(parts) + 1
                    parts.append(Part(page.text, str(number), {"chapter": number}))
        return Conversion(parts, formats.core_metadata(package, {"date": "created"}), dict(left_out))


def _decoded(data: bytes) -> str:
    charset = EncodingDetector.find_declared_encoding(data[:4000], is_html=True)
    if charset is not None and charset.lower() not in {"utf-8", "utf8"}:
        try:
            return data.decode(charset)
        except (LookupError, UnicodeDecodeError):
            pass
    return decode(data).text


def html_to_markdown(text: str, *, is_marked: bool = False) -> Page:
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
    _refuse_depth(soup)
    left_out: Counter[str] = Counter()
    if soup.head is not None:
        left_out["script"] += len(soup.head.find_all("script"))
        soup.head.decompose()
    _leave_out(soup, left_out)
    main = _main_part(soup)
    outside = len(soup.get_text(" ", strip=True)) - len(main.get_text(" ", strip=True))
    written = _Writer().write(main)
    if not written.strip() and main is not soup:
        written, outside = _Writer().write(soup), 0
    left_out["character outside of the main text"] += outside * (outside > _LEAST_NAMED)
    return Page(f"{written}\n", metadata, +left_out)


def _refuse_depth(soup: BeautifulSoup) -> None:
    depths = {id(soup): 0}
    for element in soup.find_all():
        depths[id(element)] = depth = depths[id(element.parent)] + 1
        if depth > _DEEPEST:
            raise ConversionError("its elements are nested too deeply. Cure: ignore it.")


def _leave_out(soup: BeautifulSoup, left_out: Counter[str]) -> None:
    """Take out what a reader of the page does not see, or takes for a menu; count it."""
    left_out["picture"] += len(soup.find_all(["img", "svg", "canvas"]))
    for element in soup.find_all():
        if element.decomposed or not _is_skipped(element):
            continue
        if element.name == "script":
            left_out["script"] += 1
        elif (size := len(element.get_text(" ", strip=True))) > _LEAST_NAMED:
            left_out[f"character in <{element.name}>"] += size
        element.decompose()


def _is_skipped(element: Tag) -> bool:
    role, classes = element.get("role"), str(element.get("class"))
    if element.name in _SKIPPED or role in ("navigation", "banner") or "linenos" in classes or "katex-html" in classes:
        return True
    if element.get("hidden") is not None and element.get("hidden") != "until-found" and role != "tabpanel":
        return True
    judge = _JUDGES.get(element.name)
    return judge is not None and judge(element)


def _is_small_button(button: Tag) -> bool:
    """Whether a button does something, as "Copy" does; others are names of what they unfold."""
    is_name = button.find_parent(["h1", "h2", "h3", "h4", "h5", "h6", "dt", "summary"]) is not None
    unfolds = button.get("aria-expanded") is not None or button.get("aria-controls") is not None
    return not is_name and not unfolds and len(button.get_text().split()) <= _FEW_WORDS


def _is_page_footer(footer: Tag) -> bool:
    return footer.find_parent(["main", "article", "section", "blockquote", "figure"]) is None


def _is_side_bar(aside: Tag) -> bool:
    """Whether an aside consists of links; others are warnings or notes in the text."""
    links = sum(len(link.get_text(strip=True)) for link in aside.find_all("a"))
    return links > 0.5 * len(aside.get_text(strip=True))


def _is_anchor(link: Tag) -> bool:
    """Whether a link is the sign beside a heading that leads to it, or leads back from a note."""
    if not str(link.get("href") or "").startswith("#"):
        return False
    text, around = link.get_text(strip=True), link.find_parent(HEADINGS) or link.find_parent("dt")
    if not any(map(str.isalnum, text)):
        return True
    is_marked = any(word in " ".join(link.get("class") or []) for word in ("anchor", "headerlink", "hash-link"))
    return is_marked and around is not None and around.get_text(strip=True) != text


_JUDGES: Final = {"button": _is_small_button, "footer": _is_page_footer, "aside": _is_side_bar, "a": _is_anchor}


def _main_part(soup: Any) -> Any:
    """The main text that a page marks, else the least element with all articles, else the page."""
    main = soup.find("main") or soup.find(attrs={"role": "main"})
    if main is not None:
        return main
    articles = soup.find_all("article")
    if not articles:
        return soup
    around = [[*list(article.parents)[::-1], article] for article in articles]
    return [level[0] for level in zip(*around, strict=False) if len(set(map(id, level))) == 1][-1]


class _Writer(MarkdownConverter):
    """Writes a tree as Markdown, with tables of a grid and numbers as they are shown."""

    def __init__(self) -> None:
        super().__init__(heading_style="atx", bullets="-", strip=_INLINE, wrap=True, wrap_width=None)

    def write(self, root: Any) -> str:
        """The text of an element."""
        for table in root.find_all("table"):
            if is_layout(table):
                for element in (table, *table.find_all(["tbody", "thead", "tfoot", "tr", "td", "th"])):
                    if element is table or element.find_parent("table") is table:
                        element["data-layout"] = ""
        for element in root.find_all(attrs={"data-layout": True}):
            element.name = "div"
        for items in root.find_all("ol"):
            number_items(items)
        for element in root.find_all(["sup", "sub"]):
            _raise(element)
        for element in root.find_all(_BLOCKS):
            element.name = "div"
        text = str(self.process_tag(root))  # type: ignore[attr-defined]
        lines = [line.rstrip() for line in text.strip("\n").split("\n")]
        return "\n".join(lines)

    def escape(self, text: str, parent_tags: Any) -> str:
        """Text of the page: Markdown's signs in it are signs. Whether it begins a line is seen in ``process_text``."""
        del parent_tags
        return text

    def process_text(self, el: Any, parent_tags: Any = None) -> str:
        """Text, escaped where it begins a line."""
        text = str(super().process_text(el, parent_tags=parent_tags)).translate(_SPACES)  # type: ignore[misc]
        is_plain = not {"_noformat", "_inline"} & set(parent_tags or ())
        return formats.escape(text) if is_plain and text.strip() and _begins_line(el) else text

    def convert_hN(self, n: int, el: Any, text: str, parent_tags: Any) -> str:  # noqa: N802
        del el
        if "_inline" in parent_tags or not text.strip():
            return f" {text} " if text.strip() else ""
        return f"\n\n{formats.heading(n, text)}\n\n"

    def convert_br(self, el: Any, text: str, parent_tags: Any) -> str:
        del el, text
        return " " if "_inline" in parent_tags else "\n"

    def convert_hr(self, el: Any, text: str, parent_tags: Any) -> str:
        del el, text, parent_tags
        return "\n\n"

    def convert_img(self, el: Any, text: str, parent_tags: Any) -> str:
        del el, text, parent_tags
        return ""

    convert_video = convert_img

    def convert_sup(self, el: Any, text: str, parent_tags: Any) -> str:
        del el, parent_tags
        return text

    convert_sub = convert_sup

    def convert_li(self, el: Any, text: str, parent_tags: Any) -> str:
        del parent_tags
        number, text = str(el.get("data-number") or ""), text.strip()
        if shown := _NUMBER.match(text):
            number, text = shown[1], text[shown.end() :]
        first = next((child for child in el.children if str(child).strip()), None)
        if not text.strip() or getattr(first, "name", "") in ("ul", "ol"):  # an item that only holds others
            return f"{text}\n"
        bullet = f"{number} " if _ITEM.match(number) else f"- {number} " if number else "- "
        indent = " " * (len(number) + 1 if _ITEM.match(number) else 2)
        return bullet + re.sub(r"\n(?=[^\n])", f"\n{indent}", text) + "\n"

    def convert_pre(self, el: Any, text: str, parent_tags: Any) -> str:
        del text
        for line in el.find_all("br"):
            line.replace_with("\n")
        code = el.get_text().strip("\n")
        if "_inline" in parent_tags or not code.strip():
            return f" {' '.join(code.split())} "
        around = [el, *el.find_all("code"), *list(el.parents)[:3]]
        classes = " ".join(" ".join(part.get("class") or []) for part in around if isinstance(part, Tag))
        language = match[1] if (match := _LANGUAGE.search(classes)) else ""
        ticks = "`" * max(3, 1 + max(map(len, re.findall("`+", code)), default=0))
        return f"\n\n{ticks}{language}\n{code}\n{ticks}\n\n"

    def convert_td(self, el: Any, text: str, parent_tags: Any) -> str:
        del parent_tags
        el["data-text"] = " ".join(text.split())
        return PAGE * text.count(PAGE)

    convert_th = convert_td

    def convert_tr(self, el: Any, text: str, parent_tags: Any) -> str:
        del el, parent_tags
        return PAGE * text.count(PAGE)

    def convert_table(self, el: Any, text: str, parent_tags: Any) -> str:
        rows = [[cell.replace(PAGE, "") for cell in row] for row in grid_of(el)]
        caption = text.replace(PAGE, "").strip()
        if "_inline" in parent_tags:  # a table in a cell
            return f" {' '.join([caption, *(cell for row in rows for cell in row)])} "
        return f"\n\n{caption}\n\n{formats.table_of(rows)}\n\n{PAGE * text.count(PAGE)}"


def _begins_line(node: Any) -> bool:
    """Whether nothing stands before a text on its line."""
    while True:
        before = node.previous_sibling
        while before is not None and not isinstance(before, Tag) and not str(before).strip():
            before = before.previous_sibling
        if before is not None:
            return isinstance(before, Tag) and (
                before.name in ("br", "hr", "p", "div", "table", "ul", "ol", "pre", "img", "blockquote")
                or HEADINGS.match(before.name) is not None
            )
        node = node.parent
        if node is None or node.name not in _IN_LINE:
            return True


def _raise(element: Tag) -> None:
    """Write a number above or below the line so that it stays apart from the one beside it: 10^6, log_10."""
    text = element.get_text().strip()
    link = element.find("a", href=True) or element.find_parent("a", href=True)
    before = str(element.previous_sibling or "")[-1:]
    after = str(element.next_sibling or "")[:1]
    if not text:
        return
    if link is not None and "#" in str(link["href"]) and len(text) <= _LONGEST_REFERENCE:
        element.string = f" [{text.strip('[]()')}]"
    elif element.name == "sup" and text.lower() not in _ORDINALS and (before.isalnum() or before in ")]"):
        element.string = f"^{text}"
    elif element.name == "sub" and (before.isdigit() or after.isdigit()):
        element.string = f"_{text}{' ' * after.isdigit()}"

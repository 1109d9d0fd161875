"""Names and shapes of the node metadata that the modules of this package share.

Values are flat (str, int, float, bool), because vector stores such as Chroma refuse anything else.

A header path is one string, ``"Title > Section > Subsection"``, the node's own heading included; a
separator inside a title becomes ``" / "``. A chunk of small sections has the path of the headings
above all of them.

A key that a document brought keeps its value. Where it has the name of one of our keys, ours has
the name that :func:`prefixed_key` returns, and :func:`value_of` reads it from there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from functools import lru_cache
from itertools import islice
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Final
from urllib.parse import quote, unquote

from llama_index_contextual.utils.dates import (
    Period,
    date_from_heading,
    parse_date,
    parse_day,
    parse_period,
    period_from_path,
)

# What the document is.
# relative to the indexed folder, POSIX form: the document's identity and what a citation shows
PATH: Final = "path"
TITLE: Final = "title"  # from front matter
TAGS: Final = "tags"  # from front matter, comma-separated
INLINE_TAGS: Final = (
    "inline_tags"  # from the text, #health/running, comma-separated without the sign; in no view
)
DESCRIPTION: Final = "description"  # from front matter
FRONT_MATTER: Final = (
    "front_matter"  # the values of all other keys, on the first chunk, for the keyword index
)
DATE: Final = "date"  # ISO 8601 date, "2026-04-09"
# the same as seconds since the epoch, midnight UTC: Chroma's $gt and $lt need numbers
DATE_TS: Final = "date_ts"
REF_DOC_ID: Final = "ref_doc_id"  # no metadata: a filter on it asks for the document

# What LlamaIndex's readers say.
PAGE_LABEL: Final = "page_label"  # of a document that is one page of a file
_SHEETS: Final = {".xlsx": "sheet", ".xlsm": "sheet"}
_PARTS: Final = {
    ".pptx": "slide",
    ".pptm": "slide",
    **_SHEETS,
    ".ipynb": "cell",
    ".epub": "chapter",
}  # others: pages
# The same, as LlamaParse, Unstructured, LangChain and others call it.
_PAGES: Final = (
    PAGE_LABEL,
    "page_number",
    "page",
    "page_num",
    "page_no",
    "page_idx",
    "page_index",
    "slide",
)
FILE_PATH: Final = "file_path"
FILE_NAME: Final = "file_name"
_SOURCE: Final = "source"
_FILES: Final = (
    FILE_NAME,
    "filename",
    _SOURCE,
)  # and of pages, as Unstructured and LangChain call it

MOST_CHARS: Final = 300  # of title, tags, description, header path: every chunk has them
MOST_VALUE: Final = 2_000  # characters of any other value that a document brings
MOST_KEYS: Final = 200
DEEPEST: Final = 100  # lists and mappings in one another

# Where the chunk is in it.
HEADER_PATH: Final = "header_path"
HEADING_LEVEL: Final = "heading_level"  # 1 to 6; 0 above the first heading
START_LINE: Final = "start_line"  # 1-based
END_LINE: Final = "end_line"  # 1-based, inclusive
CONTENT_TYPE: Final = "content_type"  # "text", "code", "table", "list", ... or "mixed"
TOKEN_COUNT: Final = "token_count"  # noqa: S105  a key's name, not a secret
OVERFLOW: Final = "overflow"  # True where the chunk had to exceed chunk_size; absent otherwise
ENCODED_CHARS: Final = (
    "encoded_chars"  # how many characters of it are encoded bytes, which no view shows; else absent
)
# later pieces of a split fence or table: its language or header row, for the context
CONTINUES: Final = "continues"

# What gives it context back.
CONTEXT: Final = "context"  # embedded and keyword-indexed, not displayed
CONTEXT_SOURCE: Final = "context_source"  # "headings", "pattern", "llm:<model>+pattern"
CONTEXT_VERSION: Final = (
    "context_version"  # hash of generator settings, prompt and model, to know what is outdated
)
LEXICAL_CONTEXT: Final = "lexical_context"  # more words for the keyword index only, in no view
LEFT_OUT: Final = "left_out"  # of a converted file: what its text lacks, with counts
# Front matter under these names is no filter: they are ours or LlamaIndex's, and mean something
# else there.
NAMES_TAKEN: Final = frozenset(
    {key for name, key in vars().items() if name.isupper() and isinstance(key, str)}
    | {"doc_id", "document_id", "ref_doc_id"}
)

HEADER_SEPARATOR: Final = " > "
_PREFIX: Final = "contextual_"
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d{0,14})(?:\.\d{1,14})?")


def prefixed_key(key: str) -> str:
    """Return the name of one of our keys beside a key of that name that a document brought."""
    return f"{_PREFIX}{key}"


def key_in(metadata: Mapping[str, Any], key: str) -> str:
    """Return the name that one of our keys has in a node's metadata."""
    prefixed = f"{_PREFIX}{key}"  # no call: each chunk reads some twenty keys
    return prefixed if prefixed in metadata else key


def value_of(metadata: Mapping[str, Any], key: str) -> Any:
    """Return the value of one of our keys in a node's metadata; None if there is none."""
    return metadata.get(key_in(metadata, key))


def text_value(metadata: Mapping[str, Any], key: str) -> str:
    """Return the value of one of our keys as text; "" if there is none."""
    return str(value_of(metadata, key) or "")


def is_of_our_parser(metadata: Mapping[str, Any]) -> bool:
    """Return whether our parser wrote the metadata of a node."""
    return value_of(metadata, HEADING_LEVEL) is not None


def merge_metadata(
    brought: Mapping[str, Any], ours: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Add our metadata to those that a document brought, under other names where those are taken.

    Args:
        brought: The metadata that the document brought.
        ours: Our metadata. An entry that is the same in both is not added.

    Returns:
        All metadata, and the names in it of those that were added.
    """
    values = dict(brought)
    names: dict[str, str] = {}
    for key, value in ours.items():
        if key not in brought:
            names[key] = key
        elif brought[key] != value:
            names[key] = prefixed_key(key)
        else:
            continue
        values[names[key]] = value
    return values, names


def bounded(metadata: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return metadata with bounded values and keys, and a note on each that exceeded a bound.

    Each chunk of a document has its metadata, so a value costs as often as there are chunks. A text
    is cut. A list or mapping that is too large, too deep or contains itself is left out.
    """
    values: dict[str, Any] = {}
    notes: list[str] = []
    for key, value in islice(metadata.items(), MOST_KEYS):
        most_chars = MOST_CHARS if key == TITLE else MOST_VALUE
        excess = _excess(value) if isinstance(value, list | tuple | set | dict) else ""
        if len(key) > MOST_CHARS:
            notes.append(f"{shortened(key)!r} is a key of {len(key):,} characters and is left out")
        elif excess:
            notes.append(f"{key!r} is {excess} and is left out")
        elif isinstance(value, str) and len(value) > most_chars:
            values[key] = shortened(value, most_chars)
            notes.append(f"{key!r} has {len(value):,} characters, of which {most_chars:,} are kept")
        else:
            values[key] = value
    if len(metadata) > MOST_KEYS:
        notes.append(f"{len(metadata):,} keys, of which the first {MOST_KEYS} are kept")
    return values, notes


def _excess(value: Any) -> str:
    """Return which bound a list or mapping exceeds; "" for none."""
    size = 0
    level = [value]
    for _ in range(DEEPEST + 1):
        next_level: list[Any] = []
        for part in level:
            size += len(part) if isinstance(part, str) else 1
            if isinstance(part, dict):
                next_level += [*part, *part.values()]
            elif isinstance(part, list | tuple | set):
                next_level += part
            if max(size, len(next_level)) > MOST_VALUE:
                return f"larger than {MOST_VALUE:,} characters"
        if not next_level:
            return ""
        level = next_level
    return f"nested more than {DEEPEST} levels deep"


def path_of(metadata: Mapping[str, Any]) -> str:
    """Return the path that metadata name, in POSIX form; "" for none."""
    return str(metadata.get(PATH) or metadata.get(FILE_PATH) or "").replace("\\", "/")


def file_of(metadata: Mapping[str, Any]) -> str:
    """Return the path that metadata name, or the name of the file alone; "" for neither."""
    path = path_of(metadata)
    if path:
        return path
    keys = _FILES if page_of(metadata) is not None else (FILE_NAME,)
    for key in keys:
        if metadata.get(key):
            return str(metadata[key]).replace("\\", "/")
    return ""


def page_of(metadata: Mapping[str, Any]) -> object:
    """Return the page of the file that a document is, as its reader labels it; None for none."""
    if "total_pages" in metadata and str(metadata.get(_SOURCE)).isdecimal():
        return metadata[_SOURCE]  # as PyMuPDFReader has it
    for key in _PAGES:
        label = metadata.get(key)
        if label is not None and label != "":
            return label
    return None


def date_of(metadata: Mapping[str, Any], key: str = DATE) -> date | datetime | None:
    """Return the date of a node: of its metadata, its innermost heading with one, or its path.

    Args:
        metadata: The metadata of the node.
        key: The key that holds its date. The value may be a date, ISO 8601, a day in words
            (``January 2, 2026``), or seconds since the epoch.
    """
    for name in (DATE, DATE_TS) if key == DATE else (key,):
        moment = parse_date(value_of(metadata, name))
        if moment is not None:
            return parse_day(moment) if name == DATE_TS else moment
    for title in reversed(heading_titles(metadata)):
        day = date_from_heading(title)
        if day:
            return day
    period = period_from_path(file_of(metadata))
    return period.first if period else None


def day_of(metadata: Mapping[str, Any]) -> date | None:
    """Return the day of a node, of a period the first, as :func:`date_of` reads it."""
    return parse_day(date_of(metadata))


def period_of(metadata: Mapping[str, Any]) -> Period | None:
    """Return the days of a node: one day, or all days of a weekly or monthly note."""
    day = day_of(metadata)
    if day is None:
        return None
    for period in (parse_period(value_of(metadata, DATE)), period_from_path(file_of(metadata))):
        if period and period.first == day:
            return period
    return Period(day, day)


def is_evergreen(path: str, patterns: Iterable[str]) -> bool:
    """Tell whether a path matches one of the patterns of notes that never age."""
    return any(PurePosixPath(path).match(pattern) for pattern in patterns)


def display_path(metadata: Mapping[str, Any], root: str | None = None) -> str:
    """Return the path to show for a document; never an absolute one, which names private folders.

    Args:
        metadata: The metadata of the document.
        root: The folder that an absolute path is shown relative to; None is the working directory.
            Of a path elsewhere the last two parts are shown.
    """
    path = file_of(metadata).removeprefix("file://")
    if not path or "://" in path:
        return path
    pure_path = PurePosixPath(path)
    if not is_absolute(path):
        return pure_path.as_posix()
    base = Path(root or ".").absolute().as_posix()
    if base != "/" and pure_path.is_relative_to(base):
        return pure_path.relative_to(base).as_posix()
    return "/".join(PureWindowsPath(path).parts[1:][-2:])


@lru_cache(maxsize=1024)  # the chunks of a document share its path
def is_absolute(path: str) -> bool:
    """Return whether a path of POSIX or of Windows is absolute."""
    return path.startswith("/") or PureWindowsPath(path).is_absolute()


def citation(path: str, start_line: object, end_line: object, page: object = None) -> str:
    """Return ``notes/a.md#L3-L5``, ``notes/a.md#L3`` for one line, or the path if no line is known.

    Args:
        path: The path in POSIX form.
        start_line: The first line, from 1.
        end_line: The last line.
        page: The page of the file, if the chunk is of a document that is a page. Then lines say
            nothing of the file, and the citation is as browsers open it: ``report.pdf#page=12``.
            Other parts are called by their names: ``plan.pptx#slide=3``, ``fees.xlsx#sheet=2026``.
    """
    if path and page is not None and page != "":
        part = _PARTS.get(PurePosixPath(path).suffix.lower(), "page")
        return f"{path}#{part}={quote(str(page), safe='')}"
    if not isinstance(start_line, int):
        return path
    if end_line is None or end_line == start_line:
        return f"{path}#L{start_line}"
    return f"{path}#L{start_line}-L{end_line}"


def citation_of(metadata: Mapping[str, Any]) -> str:
    """Return the citation of a node; "" if its metadata name no path."""
    path = file_of(metadata).removeprefix("file://")
    if not path:
        return ""
    start_line = value_of(metadata, START_LINE)
    return citation(path, start_line, value_of(metadata, END_LINE), page_of(metadata))


def split_page(path: str) -> tuple[str, str]:
    """Return the path and the page (or "") of a :func:`citation`."""
    file, _, part = path.rpartition("#")
    name, _, page = part.partition("=")
    is_page = file and name in {"page", *_PARTS.values()}
    return (file, unquote(page)) if is_page else (path, "")


def typed(text: str) -> str | int | float | bool:
    """Return the value of a scalar: ``4`` is a number, ``true`` a truth value, ``007`` text."""
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    if _NUMBER.fullmatch(text):
        return float(text) if "." in text else int(text)
    return text


def shortened(text: str, most: int = MOST_CHARS) -> str:
    """Return a text of at most ``most`` characters, with ``…`` where it was cut."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def short_tags(tags: str, most: int = MOST_CHARS) -> str:
    """Return the first of comma-separated tags, whole ones, of at most ``most`` characters."""
    return tags if len(tags) <= most else tags[:most].rpartition(",")[0]


def short_header_path(titles: Sequence[str], most: int = MOST_CHARS) -> str:
    """Return a header path of at most ``most`` characters; a longer one loses outer titles."""
    path = join_header_path(titles)
    for first in range(1, len(titles)):
        if len(path) <= most:
            break
        path = join_header_path(["…", *titles[first:]])
    return path if len(path) <= most else shortened(join_header_path(titles[-1:]), most)


def join_header_path(titles: Iterable[str]) -> str:
    """Return one header path of heading titles, outermost first, without empty ones."""
    return HEADER_SEPARATOR.join(
        title.replace(HEADER_SEPARATOR, " / ") for title in titles if title
    )


def heading_titles(metadata: Mapping[str, Any]) -> list[str]:
    """Return a node's headings, outermost first, of our header path or LlamaIndex's ``/A/B/``."""
    header_path = value_of(metadata, HEADER_PATH)
    if not isinstance(header_path, str):
        return []
    text = " ".join(header_path.split())
    is_stock = HEADING_LEVEL not in metadata  # a heading of this parser may be "/api/v1/"
    if is_stock and text.startswith("/") and text.endswith("/"):
        return list(filter(None, text.split("/")))  # the parents only
    return list(filter(None, text.split(HEADER_SEPARATOR)))

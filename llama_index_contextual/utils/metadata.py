"""The keys and formats of the node metadata that the modules of this package share.

Values are flat (str, int, float, bool), because vector stores such as Chroma reject anything else.

A header path is a string, ``"Title > Section > Subsection"``, that includes the node's own heading.
A separator inside a title becomes ``" / "``. A chunk of several small sections has the path of the
headings that they share.

Metadata that a document brought keeps its value. If it uses the name of one of our keys, ours is
stored under the name that :func:`prefixed_key` returns, and :func:`value_of` reads it from there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from functools import lru_cache
from itertools import islice
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from urllib.parse import quote, unquote

from llama_index_contextual.utils.dates import (
    Period,
    date_from_heading,
    parse_date,
    parse_day,
    parse_period,
    period_from_path,
)

# Metadata of the document. The path is relative to the indexed folder and in POSIX form. It
# identifies the document and is shown in citations.
PATH = "path"
TITLE = "title"  # from front matter
TAGS = "tags"  # from front matter, comma-separated
# From the text (#health/running), comma-separated and without "#". No view shows them.
INLINE_TAGS = "inline_tags"
DESCRIPTION = "description"  # from front matter
# All other front matter, on the first chunk only, for the keyword index.
FRONT_MATTER = "front_matter"
DATE = "date"  # ISO 8601, "2026-04-09"
# The date as seconds from the epoch to midnight UTC, because Chroma's $gt and $lt need numbers.
DATE_TS = "date_ts"
REF_DOC_ID = "ref_doc_id"  # not stored as metadata; a filter on it selects a document

# Metadata from LlamaIndex's readers.
PAGE_LABEL = "page_label"  # of a document that is one page of a file
# The names of the parts of a file. All other formats have pages.
_PARTS = {
    ".pptx": "slide",
    ".pptm": "slide",
    ".xlsx": "sheet",
    ".xlsm": "sheet",
    ".ipynb": "cell",
    ".epub": "chapter",
}
# The page label, under its names in LlamaParse, Unstructured, LangChain and others.
_PAGES = (
    PAGE_LABEL,
    "page_number",
    "page",
    "page_num",
    "page_no",
    "page_idx",
    "page_index",
    "slide",
)
FILE_PATH = "file_path"
FILE_NAME = "file_name"
_SOURCE = "source"
# The file of a page, under its names in LlamaIndex, Unstructured and LangChain.
_FILES = (FILE_NAME, "filename", _SOURCE)

MOST_CHARS = 300  # of title, tags, description and header path, which every chunk has
MOST_VALUE = 2_000  # characters of any other value that a document brings
MOST_KEYS = 200
DEEPEST = 100  # levels of nested lists and mappings

# The position and content of the chunk.
HEADER_PATH = "header_path"
HEADING_LEVEL = "heading_level"  # 1 to 6; 0 above the first heading
START_LINE = "start_line"  # 1-based
END_LINE = "end_line"  # 1-based, inclusive
CONTENT_TYPE = "content_type"  # "text", "code", "table", "list", ... or "mixed"
TOKEN_COUNT = "token_count"  # noqa: S105  a key's name, not a secret
OVERFLOW = "overflow"  # True if the chunk had to exceed chunk_size, else absent
# The number of characters that are encoded bytes, which no view shows. Absent if there are none.
ENCODED_CHARS = "encoded_chars"
# The language or header row for the context, on a later piece of a split fence or table.
CONTINUES = "continues"

# The context of the chunk.
CONTEXT = "context"  # embedded and indexed for keywords, but not displayed
CONTEXT_SOURCE = "context_source"  # "headings", "pattern", "llm:<model>+pattern"
# A hash of the generator's settings, prompt and model, to detect outdated contexts.
CONTEXT_VERSION = "context_version"
LEXICAL_CONTEXT = "lexical_context"  # extra words for the keyword index, in no view
LEFT_OUT = "left_out"  # what the text of a converted file lacks, with counts
# Front matter under these names cannot be used in filters, because this package or LlamaIndex uses
# the names for something else.
NAMES_TAKEN = frozenset(
    {key for name, key in vars().items() if name.isupper() and isinstance(key, str)}
    | {"doc_id", "document_id", "ref_doc_id"}
)

HEADER_SEPARATOR = " > "
_PREFIX = "contextual_"
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,14})(?:\.\d{1,14})?")


def prefixed_key(key: str) -> str:
    """Return the name of one of our keys if a document brought another key with the same name."""
    return f"{_PREFIX}{key}"


def key_in(metadata: Mapping[str, Any], key: str) -> str:
    """Return the name of one of our keys in a node's metadata."""
    prefixed = f"{_PREFIX}{key}"  # inlined for speed, as each chunk reads some twenty keys
    return prefixed if prefixed in metadata else key


def value_of(metadata: Mapping[str, Any], key: str) -> Any:
    """Return the value of one of our keys in a node's metadata, or None."""
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
    """Add our metadata to that of a document, with a prefix on names that are taken.

    Args:
        brought: The metadata that the document brought.
        ours: Our metadata. Entries that are equal in both are not added.

    Returns:
        All metadata, and the names of our keys in it.
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
    """Return metadata with bounded values and keys, and a note on each bound that was exceeded.

    Every chunk of a document has the document's metadata, so large values cost space many times.
    Long texts are shortened. Lists and mappings that are too large, too deep or contain themselves
    are left out.
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
    """Return the bound that a list or mapping exceeds; "" if there is none."""
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
    """Return the path in some metadata, in POSIX form; "" if there is none."""
    return str(metadata.get(PATH) or metadata.get(FILE_PATH) or "").replace("\\", "/")


def file_of(metadata: Mapping[str, Any]) -> str:
    """Return the path in some metadata, or else the name of the file; "" if there is neither."""
    path = path_of(metadata)
    if path:
        return path
    keys = _FILES if page_of(metadata) is not None else (FILE_NAME,)
    for key in keys:
        if metadata.get(key):
            return str(metadata[key]).replace("\\", "/")
    return ""


def page_of(metadata: Mapping[str, Any]) -> object:
    """Return the label of the page that a document is, or None if it is not a page."""
    if "total_pages" in metadata and str(metadata.get(_SOURCE)).isdecimal():
        return metadata[_SOURCE]  # from PyMuPDFReader
    for key in _PAGES:
        label = metadata.get(key)
        if label is not None and label != "":
            return label
    return None


def date_of(metadata: Mapping[str, Any], key: str = DATE) -> date | datetime | None:
    """Return the date of a node, from its metadata, its innermost dated heading or its path.

    Args:
        metadata: The metadata of the node.
        key: The key of the date. Its value can be a date, ISO 8601 text, a date in words (``January
            2, 2026``), or seconds since the epoch.
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
    """Return the day of :func:`date_of`, which is the first day of a period."""
    return parse_day(date_of(metadata))


def period_of(metadata: Mapping[str, Any]) -> Period | None:
    """Return the period of a node: one day, or all days of a weekly or monthly note."""
    day = day_of(metadata)
    if day is None:
        return None
    for period in (parse_period(value_of(metadata, DATE)), period_from_path(file_of(metadata))):
        if period and period.first == day:
            return period
    return Period(day, day)


def is_evergreen(path: str, patterns: Iterable[str]) -> bool:
    """Return whether a path matches a pattern of notes that never age."""
    return any(PurePosixPath(path).match(pattern) for pattern in patterns)


def display_path(metadata: Mapping[str, Any], root: str | None = None) -> str:
    """Return the path to show for a document, which is never absolute, to hide private folders.

    Args:
        metadata: The metadata of the document.
        root: The folder that absolute paths are shown relative to. None means the working
            directory. Paths outside it are shortened to their last two parts.
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
    """Return whether a POSIX or Windows path is absolute."""
    return path.startswith("/") or PureWindowsPath(path).is_absolute()


def citation(path: str, start_line: object, end_line: object, page: object = None) -> str:
    """Return ``notes/a.md#L3-L5``, ``notes/a.md#L3`` for one line, or the path if no line is known.

    Args:
        path: The path in POSIX form.
        start_line: The first line, counted from 1.
        end_line: The last line.
        page: The page of the file, if the document is a page. Its lines have no meaning in the
            file, so the citation has the form that browsers open: ``report.pdf#page=12``. Parts of
            other files have their own names: ``plan.pptx#slide=3``, ``fees.xlsx#sheet=2026``.
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
    """Return the citation of a node; "" if its metadata contains no path."""
    path = file_of(metadata).removeprefix("file://")
    if not path:
        return ""
    start_line = value_of(metadata, START_LINE)
    return citation(path, start_line, value_of(metadata, END_LINE), page_of(metadata))


def split_page(path: str) -> tuple[str, str]:
    """Return the path of a :func:`citation`, and its page or ""."""
    file, _, part = path.rpartition("#")
    name, _, page = part.partition("=")
    is_page = file and name in {"page", *_PARTS.values()}
    return (file, unquote(page)) if is_page else (path, "")


def typed(text: str) -> str | int | float | bool:
    """Return the value of a scalar: ``4`` is a number, ``true`` a boolean, ``007`` text."""
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    if _NUMBER.fullmatch(text):
        return float(text) if "." in text else int(text)
    return text


def shortened(text: str, most: int = MOST_CHARS) -> str:
    """Return a text of at most ``most`` characters, which ends in ``…`` if it was shortened."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def short_tags(tags: str, most: int = MOST_CHARS) -> str:
    """Return as many whole comma-separated tags as fit into ``most`` characters."""
    return tags if len(tags) <= most else tags[:most].rpartition(",")[0]


def short_header_path(titles: Sequence[str], most: int = MOST_CHARS) -> str:
    """Return a header path of at most ``most`` characters, dropping outer titles first."""
    path = join_header_path(titles)
    for first in range(1, len(titles)):
        if len(path) <= most:
            break
        path = join_header_path(["…", *titles[first:]])
    return path if len(path) <= most else shortened(join_header_path(titles[-1:]), most)


def join_header_path(titles: Iterable[str]) -> str:
    """Return the header path of some heading titles, outermost first, without empty titles."""
    return HEADER_SEPARATOR.join(
        title.replace(HEADER_SEPARATOR, " / ") for title in titles if title
    )


def heading_titles(metadata: Mapping[str, Any]) -> list[str]:
    """Return a node's headings, outermost first, from our header path or LlamaIndex's ``/A/B/``."""
    header_path = value_of(metadata, HEADER_PATH)
    if not isinstance(header_path, str):
        return []
    text = " ".join(header_path.split())
    is_stock = HEADING_LEVEL not in metadata  # in our format, "/api/v1/" can be a heading
    if is_stock and text.startswith("/") and text.endswith("/"):
        return list(filter(None, text.split("/")))  # LlamaIndex lists only the parents
    return list(filter(None, text.split(HEADER_SEPARATOR)))

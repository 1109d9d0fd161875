"""Questions with known answers: read from a file; and whether a chunk answers one."""

from __future__ import annotations

import csv
import json
import re
import warnings
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual import metadata as names
from llama_index_contextual.app.folder.files import read_file
from llama_index_contextual.errors import ContextualWarning, DocumentError, SettingError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llama_index.core.schema import BaseNode


MOST_BYTES: Final = 20_000_000
_FIELDS: Final = ("question", "path", "lines", "text", "page")
_LINES: Final = re.compile(r"\s*L?(\d+)\s*(?:[-–]\s*L?(\d+)\s*)?")


@dataclass(frozen=True, slots=True)
class Passage:
    """The place of an answer. A chunk holds it if path, lines and text all fit, as far as the place names them.

    Attributes:
        path: The file, relative to the folder. Its last parts are enough.
        lines: First and last line, 1-based and inclusive. One line in common is enough.
        text: Words that are in the chunk. Case and white space do not count. Give a sentence at most, because a chunk
            may end in the middle of a longer text.
        page: Page of the path, or slide, sheet, cell or chapter, as its chunks' ``page_label`` says it.

    Raises:
        SettingError: There is neither path nor text, the lines cannot be, or a page has no path.
    """

    path: str | None = None
    lines: tuple[int, int] | None = None
    text: str | None = None
    page: str | None = None

    def __post_init__(self) -> None:
        if not (self.path or (self.text and self.text.strip())):
            raise SettingError("a passage needs a path or a text. Cure: name the place of the answer.")
        if self.lines and not (self.path and 1 <= self.lines[0] <= self.lines[1]):
            raise SettingError(f"lines={self.lines} cannot be. Cure: give a path too, and first <= last, both from 1.")
        if self.page and not self.path:
            raise SettingError(f"page={self.page} is of no file. Cure: give a path too.")

    def __str__(self) -> str:
        first, last = self.lines or (None, None)
        place = names.citation(self.path, first, last, self.page) if self.path else ""
        return " ".join(filter(None, (place, f'"{self.text}"' if self.text else "")))

    def is_in(self, node: BaseNode) -> bool:
        """Whether a chunk holds this passage.

        Raises:
            SettingError: The passage has lines, but the chunk's metadata has none.
        """
        if self.path is not None:
            paths = (node.metadata.get(names.PATH), node.metadata.get("file_path"), node.ref_doc_id)
            if not any(path and f"/{_path(str(path))}".endswith(f"/{_path(self.path)}") for path in paths):
                return False
        if self.page and str(names.value_of(node.metadata, names.PAGE_LABEL)) != self.page:
            return False
        if self.text is not None and _normalised(self.text) not in _normalised(node.get_content()):
            return False
        if self.lines is None:
            return True
        start, end = (names.value_of(node.metadata, key) for key in (names.START_LINE, names.END_LINE))
        if start is None or end is None:
            raise SettingError(
                f"a chunk of {self.path} has no {names.START_LINE} and {names.END_LINE}, so lines={self.lines} cannot "
                "be found. Cure: use HeadingAwareMarkdownNodeParser, which writes them, or give text instead of lines."
            )
        return int(start) <= self.lines[1] and self.lines[0] <= int(end)


@dataclass(frozen=True, slots=True)
class Question:
    """A question and the passages that answer it. A retriever should find all of them."""

    text: str
    gold: tuple[Passage, ...]

    def covered_by(self, node: BaseNode) -> frozenset[Passage]:
        """Those of the passages that a chunk holds."""
        return frozenset(passage for passage in self.gold if passage.is_in(node))


def load_questions(path: str | Path) -> list[Question]:
    """Questions of a file: ``.jsonl``, an object a line, or ``.csv`` with a row of headings.

    Each entry has ``question`` and the place of its answer: ``path``, ``path`` and ``lines`` (``"12-16"`` or ``12``),
    ``path`` and ``page``, or ``text``. An answer in several places needs several entries with the same question.

    Raises:
        DocumentError: The file or one of its entries cannot be read. The message names the line.
    """
    file = Path(path)
    try:
        text = read_file(file, MOST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError(f"{file} is not UTF-8 ({error}). Cure: save it as UTF-8.") from error
    except DocumentError as error:
        raise DocumentError(f"{file}: {error} Cure: name a file of questions, each with question and path.") from error
    passages: dict[str, list[Passage]] = {}
    unread: set[str] = set()
    for number, entry in _entries(file, text):
        question, passage = _parse(entry, f"{file}:{number}")
        passages.setdefault(question, []).append(passage)
        unread |= set(map(str, entry)) - set(_FIELDS)
    if unread:
        warnings.warn(f"{file}: {', '.join(sorted(unread))} are not read", ContextualWarning, stacklevel=2)
    if not passages:
        raise DocumentError(f'{file} has no questions. Cure: write entries such as {{"question": "…", "path": "a.md"}}')
    return [Question(question, tuple(dict.fromkeys(gold))) for question, gold in passages.items()]


def _entries(file: Path, text: str) -> Iterator[tuple[int, Any]]:
    """The rows of a table, or the objects of lines of JSON, each with its number."""
    rows, number = csv.DictReader(text.splitlines(keepends=True)), 1
    try:
        if file.suffix.lower() == ".csv":
            for row in rows:
                number = rows.line_num
                yield number, {key: value for key, value in row.items() if key and value}
        elif file.suffix.lower() == ".jsonl":
            for number, line in enumerate(text.split("\n"), 1):
                if line.strip():
                    yield number, json.loads(line)
        else:
            raise DocumentError(f"{file} is no file of questions. Cure: give one that ends in .jsonl or .csv")
    except (csv.Error, ValueError, RecursionError) as error:
        kind = file.suffix[1:].upper().removesuffix("L")
        cure = "a row of headings, then rows" if kind == "CSV" else '{"question": "…", "path": "a.md"} on each line'
        raise DocumentError(f"{file}:{number} is no {kind}: {error}. Cure: {cure}") from error


def _parse(entry: Any, place: str) -> tuple[str, Passage]:
    if not isinstance(entry, dict):
        raise DocumentError(f'{place} is no object. Cure: write {{"question": "…", "path": "a.md"}}')
    question, path, text, page = (entry.get(field) or "" for field in ("question", "path", "text", "page"))
    for field, value in (("question", question), ("path", path), ("text", text)):
        if not isinstance(value, str):
            raise DocumentError(f"{place}: {field}={value!r} is no text")
    if not question.strip():
        raise DocumentError(f'{place} has no "question"')
    if not isinstance(page, int | str) or isinstance(page, bool):
        raise DocumentError(f"{place}: page={page!r} is no page. Cure: a number, or the name of a sheet")
    ends = _LINES.fullmatch(str(entry.get("lines") or ""))
    if ends is None and entry.get("lines"):
        raise DocumentError(f'{place}: lines={entry["lines"]!r} are no lines. Cure: write "12-16" or 12')
    pair = (int(ends[1]), int(ends[2] or ends[1])) if ends else None
    try:
        return question.strip(), Passage(path or None, pair, text or None, str(page) or None)
    except SettingError as error:
        raise DocumentError(f"{place}: {error}") from error


@lru_cache(maxsize=4096)  # the same few files again and again
def _path(text: str) -> str:
    return PurePosixPath(text.replace("\\", "/")).as_posix().lstrip("/")


def _normalised(text: str) -> str:
    return " ".join(text.casefold().split())

"""Questions with known answers, read from a file, and their passages in chunks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, model_validator
from pydantic_core import from_json

from llama_index_contextual.app.folder.files import read_file
from llama_index_contextual.utils import metadata as names
from llama_index_contextual.utils.errors import Checked, DocumentError, SettingError, refuse_unknown

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode
    from typing_extensions import Self

_MAX_BYTES = 20_000_000  # of a file of questions
_LONGEST_QUESTION = 10_000  # characters, all of which are embedded
_EXAMPLE = '{"question": "…", "path": "a.md", "lines": "12-16"}'
_LINES = re.compile(r"L?(\d{1,9})(?:\s*[-–]\s*L?(\d{1,9}))?")


def _first_and_last(lines: Any) -> Any:
    """Return the first and last line of a value such as ``"12-16"`` or ``12``."""
    if not isinstance(lines, str | int):
        return lines
    match = _LINES.fullmatch(str(lines))
    if match is None:
        raise ValueError("Input should be lines such as 12 or '12-16'")
    first = int(match[1])
    last = int(match[2] or first)
    if last < first:
        raise ValueError("Input should name the first line before the last one")
    return first, last


class Passage(
    Checked, BaseModel, frozen=True, coerce_numbers_to_str=True, str_strip_whitespace=True
):
    """The place of an answer.

    A chunk contains the passage if it matches all of path, lines, page and text that are set.

    Attributes:
        path: The path of the file relative to the folder, or the last parts of it.
        lines: The first and last line, 1-based and inclusive. One line in the chunk is enough.
        text: Words that the chunk contains. Case and white space are ignored. Use at most a
            sentence, because a chunk may end in the middle of a longer text.
        page: The page of the path, or its slide, sheet, cell or chapter, as in ``page_label``.

    Raises:
        SettingError: There is neither a path nor a text, or there are lines or a page without a
            path.
    """

    path: str = ""
    lines: Annotated[tuple[int, int], BeforeValidator(_first_and_last)] | None = None
    text: str = ""
    page: str = ""

    @model_validator(mode="after")
    def _is_a_place(self) -> Self:
        if not (self.path or (self.text and not self.lines and not self.page)):
            raise ValueError("a passage needs a path, or a text without lines and page")
        return self

    def __str__(self) -> str:
        first, last = self.lines or (None, None)
        place = names.citation(self.path, first, last, self.page) if self.path else ""
        return " ".join(filter(None, (place, f'"{self.text}"' if self.text else "")))

    def is_in(self, node: BaseNode) -> bool:
        """Return whether a chunk contains this passage.

        Raises:
            SettingError: The passage has lines, but the chunk's metadata has none.
        """
        paths = (node.metadata.get(names.PATH), node.metadata.get("file_path"), node.ref_doc_id)
        if self.path and not any(
            _path(str(path)).endswith(_path(self.path)) for path in paths if path
        ):
            return False
        if self.page and str(names.value_of(node.metadata, names.PAGE_LABEL)) != self.page:
            return False
        if _normalised(self.text) not in _normalised(node.get_content()):
            return False
        if self.lines is None:
            return True
        start, end = (
            names.value_of(node.metadata, key) for key in (names.START_LINE, names.END_LINE)
        )
        if start is None or end is None:
            raise SettingError(
                f"a chunk of {self.path} has no {names.START_LINE} and {names.END_LINE}, "
                f"so lines={self.lines} cannot be found. Use HeadingAwareMarkdownNodeParser, "
                "which writes them, or use text instead of lines."
            )
        return int(start) <= self.lines[1] and self.lines[0] <= int(end)


def _path(text: str) -> str:
    return f"/{text.replace(chr(92), '/').lstrip('/')}"


def _normalised(text: str) -> str:
    return " ".join(text.casefold().split())


@dataclass(frozen=True, slots=True)
class Question:
    """A question and the passages that answer it. A retriever should find all of them."""

    text: str
    gold: tuple[Passage, ...]

    def covered_by(self, node: BaseNode) -> frozenset[Passage]:
        """Return the passages that a chunk contains."""
        return frozenset(passage for passage in self.gold if passage.is_in(node))


def load_questions(path: str | Path) -> list[Question]:
    """Return the questions of a file of JSON lines.

    Each line has ``question`` and the place of its answer: ``path``, ``path`` and ``lines``
    (``"12-16"`` or ``12``), ``path`` and ``page``, or ``text``. For an answer in several places,
    repeat the question in several lines.

    Raises:
        DocumentError: The file or one of its lines cannot be read. The message names the line.
    """
    passages = dict[str, list[Passage]]()
    place = str(path)
    try:
        text = read_file(Path(path), _MAX_BYTES).decode("utf-8-sig")
        for number, line in enumerate(text.split("\n"), 1):
            place = f"{path}:{number}"
            if line.strip():
                question, passage = _entry_of(line)
                passages.setdefault(question, []).append(passage)
    except (DocumentError, ValueError) as error:
        hint = (
            ""
            if isinstance(error, SettingError)
            else f". Write UTF-8, and lines such as {_EXAMPLE}"
        )
        raise DocumentError(f"{place}: {str(error).removesuffix('.')}{hint}") from error
    if not passages:
        raise DocumentError(f"{path} has no questions. Write lines such as {_EXAMPLE}")
    return [Question(question, tuple(dict.fromkeys(gold))) for question, gold in passages.items()]


def _entry_of(line: str) -> tuple[str, Passage]:
    """Return the question and the passage of a line.

    Raises:
        DocumentError: The line is not JSON, has no question, or has one that is too long.
        ValueError: The line names no valid place.
    """
    try:
        entry = from_json(line)
    except ValueError as error:
        raise DocumentError(f"it is not JSON ({error})") from error
    if isinstance(entry, dict):
        refuse_unknown("the line", entry, ("question", *Passage.model_fields))
    question = entry.pop("question", None) if isinstance(entry, dict) else None
    if not isinstance(question, str) or not question.strip():
        raise DocumentError("it has no question")
    if len(question) > _LONGEST_QUESTION:
        length = f"{len(question):,} characters, more than {_LONGEST_QUESTION:,}"
        raise DocumentError(f"its question has {length}")
    return question.strip(), Passage(**entry)

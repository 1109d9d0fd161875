"""Questions with known answers: read from a file; whether a chunk answers one; and measures of what was found."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from llama_index_contextual import metadata as names
from llama_index_contextual.app.folder import read_file
from llama_index_contextual.errors import ContextualWarning, DocumentError, SettingError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import numpy.typing as npt
    from llama_index.core.schema import BaseNode


Interval: TypeAlias = tuple[float, float, float]

MOST_BYTES: Final = 20_000_000
_RESAMPLES: Final = 2000  # of the bootstrap
_EXAMPLE: Final = '{"question": "…", "path": "a.md", "lines": "12-16"}'


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
    """Questions of a file of JSON lines.

    Each line has ``question`` and the place of its answer: ``path``, ``path`` and ``lines`` (``"12-16"`` or ``12``),
    ``path`` and ``page``, or ``text``. An answer in several places needs several lines with the same question.

    Raises:
        DocumentError: The file or one of its lines cannot be read. The message names the line.
    """
    file = Path(path)
    try:
        text = read_file(file, MOST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError(f"{file} is not UTF-8 ({error}). Cure: save it as UTF-8.") from error
    except DocumentError as error:
        raise DocumentError(f"{file}: {error} Cure: name a file of questions, each with question and path.") from error
    passages, unread = dict[str, list[Passage]](), set[str]()
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            entry, passage = _parse(line, f"{file}:{number}")
            passages.setdefault(entry.question, []).append(passage)
            unread.update(entry.model_extra or ())
    if unread:
        warnings.warn(f"{file}: {', '.join(sorted(unread))} are not read", ContextualWarning, stacklevel=2)
    if not passages:
        raise DocumentError(f"{file} has no questions. Cure: write lines such as {_EXAMPLE}")
    return [Question(question, tuple(dict.fromkeys(gold))) for question, gold in passages.items()]


class _Entry(BaseModel, coerce_numbers_to_str=True, str_strip_whitespace=True, extra="allow"):
    question: str = Field(min_length=1)
    path: str | None = None
    lines: str | None = Field(None, pattern=r"^L?\d{1,9}(\s*[-–]\s*L?\d{1,9})?$")
    text: str | None = None
    page: str | None = None


def _parse(line: str, place: str) -> tuple[_Entry, Passage]:
    """The entry of a line, and the passage that it names."""
    try:
        entry = _Entry.model_validate_json(line)
        ends = [int(end) for end in re.findall(r"\d+", entry.lines or "")]
        return entry, Passage(entry.path, (ends[0], ends[-1]) if ends else None, entry.text, entry.page)
    except ValidationError as error:
        fault = error.errors()[0]
        what = ": ".join([*map(str, fault["loc"]), fault["msg"]])
        raise DocumentError(f"{place}: {what}. Cure: a line such as {_EXAMPLE}") from error
    except SettingError as error:
        raise DocumentError(f"{place}: {error}") from error


@lru_cache(maxsize=4096)  # the same few files again and again
def _path(text: str) -> str:
    return PurePosixPath(text.replace("\\", "/")).as_posix().lstrip("/")


def _normalised(text: str) -> str:
    return " ".join(text.casefold().split())


# Measures


def interval(values: npt.ArrayLike) -> list[Interval]:
    """Mean and 95 % bootstrap interval of each column, as ``(mean, low, high)``.

    Args:
        values: Shape ``(questions, k)``, at least one question. For a paired interval give differences.
    """
    points = np.asarray(values, float)
    sample = np.random.default_rng(0).integers(len(points), size=(_RESAMPLES, len(points)))
    low, high = np.percentile(points[sample].mean(axis=1), [2.5, 97.5], axis=0)
    return list(zip(points.mean(axis=0).tolist(), low.tolist(), high.tolist(), strict=True))


def recall_at(k: int, hits: Sequence[Collection[object]], gold: Collection[object]) -> float:
    """The share of the gold items that the first k hits cover, 0 to 1.

    Anthropic's contextual retrieval evaluation calls the mean of this over all queries *pass@k*.

    Args:
        k: How many hits count, at least 1.
        hits: For each hit, best first, the gold items that it covers. Other items are ignored.
        gold: The items to find, at least one.
    """
    return len(set(gold) & set[object]().union(*hits[:k])) / len(set(gold))


def mean_reciprocal_rank(
    hits_of_queries: Sequence[Sequence[Collection[object]]], golds: Sequence[Collection[object]]
) -> float:
    """The mean over queries of 1 / rank of the first hit that covers a gold item, or 0 where none does.

    Args:
        hits_of_queries: For each query its hits, as :func:`recall_at` takes them.
        golds: For each query its gold items.
    """
    firsts = (
        next((1 / rank for rank, hit in enumerate(hits, 1) if set(gold) & set(hit)), 0.0)
        for hits, gold in zip(hits_of_queries, golds, strict=True)
    )
    return sum(firsts) / len(golds)

"""Real documents and questions for the benchmarks, read from a folder that is not part of the project.

The folder is ``../shared/data`` beside the checkout, or the one that ``LLAMA_INDEX_CONTEXTUAL_DATA`` names. Origins and
licences are listed in ``benchmarks/README.md``.
"""

from __future__ import annotations

import json
import math
import os
import sys
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_index.core.schema import BaseNode, Document, NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

DATA = Path(os.environ.get("LLAMA_INDEX_CONTEXTUAL_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")


@dataclass(frozen=True, slots=True)
class Question:
    """A question, the gold items that answer it, and the collection it is asked of."""

    text: str
    gold: frozenset[Hashable]
    collection: str = ""
    form: str = ""


@dataclass(frozen=True, slots=True)
class DataSet:
    """Documents by collection (each is an index of its own), questions, and what a chunk covers."""

    name: str
    documents: dict[str, list[Document]]
    questions: list[Question]
    covers: Callable[[BaseNode], frozenset[Hashable]]  # the gold items of a node
    chunks: dict[str, list[TextNode]] = field(default_factory=dict)  # by document id, where the set fixes them


def codebases() -> DataSet:
    """90 source files in 737 given chunks, 248 questions; gold: chunk ids."""
    folder = _folder("codebases")
    chunks: dict[str, list[TextNode]] = {}
    for row in _rows(folder / "chunks.jsonl"):
        node = TextNode(text=row["text"], id_=row["chunk_id"], metadata={"path": row["path"]})
        node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id=row["doc_id"])
        chunks.setdefault(row["doc_id"], []).append(node)
    documents = [
        Document(text=row["text"], id_=row["doc_id"], metadata={"path": row["path"]})
        for row in _rows(folder / "documents.jsonl")
    ]
    questions = [Question(q["query"], frozenset(q["gold_chunk_ids"])) for q in queries("codebases")]
    return DataSet("codebases", {"": documents}, questions, lambda node: frozenset({node.node_id}), chunks)


def locomo_notes() -> DataSet:
    """272 dated notes of 10 conversations, each an index; 1,981 questions; gold: lines of a note."""
    questions = [
        Question(
            row["query"],
            frozenset((g["path"], line) for g in row["gold"] for line in range(g["start_line"], g["end_line"] + 1)),
            row["collection"],
            "names a date" if row["names_a_date"] else "no date",
        )
        for row in queries("locomo-notes")
        if row["gold"]
    ]
    return DataSet("locomo-notes", _collections("locomo-notes"), questions, _lines_covered)


def kubernetes_docs(pages: int | None = None) -> DataSet:
    """1,568 Markdown pages or so many, those with answers first; 200 questions in three forms; gold: the page."""
    questions = [
        Question(row["query"], frozenset(g["path"] for g in row["gold"]), "", row["form"])
        for row in queries("kubernetes-docs")
    ]
    gold = {item for question in questions for item in question.gold}
    documents = sorted(pages_of("kubernetes-docs"), key=lambda page: page.doc_id not in gold)[:pages]
    return DataSet("kubernetes-docs", {"": documents}, questions, _page_covered)


def course_lessons() -> DataSet:
    """72 Markdown lessons of a course, 360 questions; gold: the page."""
    rows = queries("course-lessons")
    questions = [Question(row["query"], frozenset(g["path"] for g in row["gold"])) for row in rows]
    return DataSet("course-lessons", {"": pages_of("course-lessons")}, questions, _page_covered)


def chat_notes() -> DataSet:
    """50 dated notes of 12 long chats with an assistant, each chat an index; 215 questions; gold: messages.

    A chunk covers a message when it holds at least one of its lines: a message can be longer than ten chunks.
    """
    messages: dict[str, set[tuple[int, int]]] = {}
    questions = []
    for row in queries("chat-notes"):
        gold = {(g["path"], g["start_line"], g["end_line"]) for g in row["gold"]}
        for path, start, end in gold:
            messages.setdefault(path, set()).add((start, end))
        questions.append(Question(row["query"], frozenset(gold), row["collection"], row["category"]))

    def covers(node: BaseNode) -> frozenset[Hashable]:
        first, last = node.metadata["start_line"], node.metadata["end_line"]
        own = node.ref_doc_id or ""
        return frozenset((own, start, end) for start, end in messages.get(own, ()) if start <= last and first <= end)

    return DataSet("chat-notes", _collections("chat-notes"), questions, covers)


@dataclass(frozen=True)
class Message:
    """What a person told an assistant."""

    text: str
    conversation: str  # the person, whose notes are an index of their own
    day: date
    earlier: tuple[str, ...]  # paths of the notes from before, which alone count
    gold: frozenset[str]  # those of them that an answer needs

    @property
    def before(self) -> MetadataFilters:
        """Admits the earlier notes."""
        notes = MetadataFilter(key="path", value=list(self.earlier), operator=FilterOperator.IN)
        return MetadataFilters(filters=[notes])

    def measure(self, notes: Iterable[str]) -> list[float]:
        """Recall of notes, best first, at 5, 10 and 20, all of them at 10 and 20, and nDCG at 10, in per cent."""
        hits = [float(note in self.gold) for note in dict.fromkeys(notes)]
        shares = [sum(hits[:depth]) / len(self.gold) for depth in (5, 10, 20)]
        gain = ndcg(hits, [1.0] * len(self.gold), 10)
        return [100 * one for one in (*shares, *(float(share == 1) for share in shares[1:]), gain)]


def realmem_notes() -> list[Message]:
    """700 messages of five people about 1,105 sessions, a note each; gold: the earlier notes that an answer needs.

    Of 15 the note in which the message was sent is among the gold; that does not count, and two messages have no other.
    """
    notes = {
        person: [one.metadata["path"] for one in documents]
        for person, documents in _collections("realmem-notes").items()
    }
    found = []
    for row in queries("realmem-notes"):
        person = row["collection"]
        earlier = tuple(one for one in notes[person] if one < row["asked_in"].split("/", 1)[1])
        gold = frozenset(one["path"].split("/", 1)[1] for one in row["gold"]).intersection(earlier)
        found.append(Message(row["query"], person, date.fromisoformat(row["asked"]), earlier, gold))
    return [one for one in found if one.gold]


def german_judgments() -> DataSet:
    """60 German judgments, 60 questions; gold: a passage, of which a chunk holds at least half."""
    return _passages("german-judgments")


def japanese_articles(questions: int | None = None) -> DataSet:
    """29 Japanese articles, 685 questions or the first so many; gold: a paragraph, of which a chunk holds half."""
    data = _passages("japanese-articles")
    return replace(data, questions=data.questions[:questions])


def _passages(name: str) -> DataSet:
    questions = [
        Question(row["query"], frozenset((g["path"], g["start"], g["end"]) for g in row["gold"]))
        for row in queries(name)
    ]
    passages: dict[str, set[tuple[str, int, int]]] = {}
    for path, start, end in (item for question in questions for item in question.gold):  # type: ignore[misc]
        passages.setdefault(path, set()).add((path, start, end))

    def covers(node: BaseNode) -> frozenset[Hashable]:
        first, last = node.start_char_idx, node.end_char_idx  # type: ignore[attr-defined]
        own = passages.get(node.ref_doc_id or "", set())
        return frozenset(one for one in own if 2 * (min(one[2], last) - max(one[1], first)) >= one[2] - one[1])

    return DataSet(name, {"": pages_of(name)}, questions, covers)


def first_collections(data: DataSet, count: int | None) -> DataSet:
    """A part of a set: its first collections, and the questions that are asked of them."""
    kept = dict(sorted(data.documents.items())[:count])
    return replace(data, documents=kept, questions=[one for one in data.questions if one.collection in kept])


def _page_covered(node: BaseNode) -> frozenset[Hashable]:
    return frozenset({node.ref_doc_id or ""})


def _lines_covered(node: BaseNode) -> frozenset[Hashable]:
    lines = range(node.metadata["start_line"], node.metadata["end_line"] + 1)
    return frozenset((node.ref_doc_id, line) for line in lines)


def _folder(name: str) -> Path:
    folder = DATA / name
    if not folder.is_dir():
        sys.exit(f"The data set {name!r} is absent: {folder}. Name its parent folder in LLAMA_INDEX_CONTEXTUAL_DATA.")
    return folder


def _rows(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def queries(name: str) -> list[dict[str, Any]]:
    """The questions of a set, as its file has them."""
    return _rows(_folder(name) / "queries.jsonl")


def pages_of(name: str) -> list[Document]:
    """The Markdown files of a set, by their paths."""
    folder = _folder(name) / "corpus"
    paths = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*.md"))]
    return [Document(text=(folder / path).read_text("utf-8"), id_=path, metadata={"path": path}) for path in paths]


def _collections(name: str) -> dict[str, list[Document]]:
    """The notes of a set by collection; the id of a note begins with the collection, and its path does not."""
    documents: dict[str, list[Document]] = {}
    for note in pages_of(name):
        collection, note.metadata["path"] = note.doc_id.split("/", 1)
        documents.setdefault(collection, []).append(note)
    return documents


def ndcg(gains: Sequence[float], best: Sequence[float], depth: int) -> float:
    """NDCG of ranked gains, by the best that there are."""

    def total(values: Sequence[float]) -> float:
        return sum(value / math.log2(place + 2) for place, value in enumerate(values[:depth]))

    return total(gains) / total(best)


def nonsense() -> dict[str, list[str]]:
    """Questions that no set answers, by kind: mashed keys, other languages, general knowledge."""
    found: dict[str, list[str]] = {}
    for line in Path(__file__).with_name("nonsense.txt").read_text("utf-8").splitlines():
        kind, _, question = line.partition(": ")
        found.setdefault(kind, []).append(question)
    return found


NONSENSE = nonsense()

"""Real documents and questions for the benchmarks, read from a folder outside the project.

The folder is ``../shared/data`` beside the checkout, or the one that
``LLAMA_INDEX_CONTEXTUAL_DATA`` names. Origins and licences are listed in ``benchmarks/README.md``.
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import sys
from collections import defaultdict
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from llama_index.core.schema import BaseNode, Document, NodeRelationship, RelatedNodeInfo, TextNode

from llama_index_contextual.app.folder.convert import DocumentReader
from llama_index_contextual.context.source_code import is_code

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

DATA = Path(
    os.environ.get("LLAMA_INDEX_CONTEXTUAL_DATA")
    or Path(__file__).resolve().parents[2] / "shared" / "data"
)

THREE_REPORTS = ("AMAZON_2019_10K.pdf", "JPMORGAN_2021Q1_10Q.pdf", "VERIZON_2021_10K.pdf")
MEETINGS = 24
LONGEST_PASSAGES = 6000  # characters
_NO_SPEECH = re.compile(r"\s*\{\w+\}")  # {disfmarker}
_SPACE_BEFORE_MARK = re.compile(r"\s+(?=[,.?!])")


class Span(NamedTuple):
    """Characters of a document.

    Attributes:
        path: The id of the document.
        start: The first character.
        end: The end.
    """

    path: str
    start: int
    end: int

    @property
    def length(self) -> int:
        """Return the number of characters."""
        return self.end - self.start

    def shared(self, other: Span) -> int:
        """Return the number of characters that are in another span of the same document too."""
        return min(self.end, other.end) - max(self.start, other.start)

    def contains(self, other: Span) -> bool:
        """Return whether the other span is inside this one."""
        if self.path != other.path:
            return False
        return self.start <= other.start and other.end <= self.end

    def touches(self, other: Span) -> bool:
        """Return whether the two overlap, or one begins where the other ends."""
        if self.path != other.path:
            return False
        return self.start <= other.end and other.start <= self.end


@dataclass(frozen=True, slots=True)
class Question:
    """A question, the gold items that answer it, and the collection it is asked of."""

    text: str
    gold: frozenset[Hashable]
    collection: str = ""
    form: str = ""


@dataclass(frozen=True, slots=True)
class DataSet:
    """Documents and questions about them.

    Attributes:
        name: The name of the set.
        documents: The documents of each collection, which is an index of its own.
        questions: The questions.
        covers: Returns the gold items of a chunk.
        chunks: The chunks of each document, if the set fixes them.
        context: The context of chunks.
    """

    name: str
    documents: dict[str, list[Document]]
    questions: list[Question]
    covers: Callable[[BaseNode], frozenset[Hashable]]
    chunks: dict[str, list[TextNode]] = field(default_factory=dict)
    context: str = "headings"


# Files and pages


def codebases() -> DataSet:
    """Return 90 source files in 737 given chunks, and 248 questions; gold: chunk ids."""
    folder = _folder("codebases")
    chunks = defaultdict[str, list[TextNode]](list)
    for row in _rows(folder / "chunks.jsonl"):
        document_id = row["doc_id"]
        node = TextNode(
            text=row["text"],
            id_=row["chunk_id"],
            metadata={"path": row["path"]},
        )
        node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id=document_id)
        chunks[document_id].append(node)
    documents = []
    for row in _rows(folder / "documents.jsonl"):
        document = _document(row["text"], row["doc_id"], row["path"])
        documents.append(document)
    questions = []
    for row in queries("codebases"):
        gold = frozenset(row["gold_chunk_ids"])
        questions.append(Question(row["query"], gold))
    return DataSet(
        "codebases",
        documents={"": documents},
        questions=questions,
        covers=lambda node: frozenset({node.node_id}),
        chunks=dict(chunks),
        context="pattern",
    )


def code_search() -> DataSet:
    """Return the source files of seven repositories, each an index, and 141 questions.

    Questions have three categories. Gold: the file.
    """
    documents = defaultdict[str, list[Document]](list)
    folder = _folder("code-search") / "corpus"
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        repository, _, path = name.partition("/")
        if is_code(path) and file.is_file():
            text = file.read_bytes().decode("utf-8", "ignore")
            documents[repository].append(_document(text, name, path))
    questions = []
    for row in queries("code-search"):
        repository = row["collection"]
        gold = {f"{repository}/{file['path']}" for file in row["gold"]}
        question = Question(
            row["query"],
            gold=frozenset(gold),
            collection=repository,
            form=row["category"],
        )
        questions.append(question)
    return DataSet(
        "code-search",
        documents=dict(documents),
        questions=questions,
        covers=_page_covered,
        context="pattern",
    )


def kubernetes_docs(pages: int | None = None) -> DataSet:
    """Return Markdown pages and 200 questions in three forms; gold: the page.

    Args:
        pages: The number of pages, those with answers first. None is all 1,568.
    """
    data = _of_pages("kubernetes-docs")
    gold: set[Hashable] = set()
    for question in data.questions:
        gold |= question.gold
    documents = sorted(data.documents[""], key=lambda page: page.doc_id not in gold)
    return replace(data, documents={"": documents[:pages]})


def course_lessons() -> DataSet:
    """Return 72 Markdown lessons of a course, and 360 questions; gold: the page."""
    return _of_pages("course-lessons")


def obsidian_help() -> DataSet:
    """Return 171 notes of Obsidian's help, and 58 questions, six of them Russian; gold: the note.

    Nothing is chosen by them.
    """
    return _of_pages("obsidian-help")


def _of_pages(name: str) -> DataSet:
    questions = []
    for row in queries(name):
        gold = frozenset(page["path"] for page in row["gold"])
        questions.append(Question(row["query"], gold))
    documents = {"": pages_of(name)}
    return DataSet(name, documents, questions, _page_covered)


def pdf_reports(reports: Sequence[str] = THREE_REPORTS) -> DataSet:
    """Return PDF reports, a document for each page, and 250 to 272 questions; gold: pages.

    Args:
        reports: The names of the reports. If it is empty, all 17.
    """
    folder = _folder("pdf-reports") / "corpus"
    reports = reports or sorted(path.name for path in folder.glob("*.pdf"))
    reader = DocumentReader()
    documents = []
    gold_of_page = {}
    for name in reports:
        for page in reader.load_data(folder / name):
            path = page.metadata["file_name"]
            number = page.metadata["page"]
            page.metadata = {"path": path, **page.metadata}
            page.id_ = f"{path}#page={number}"
            gold_of_page[page.doc_id] = frozenset({(path, number)})
            documents.append(page)

    questions = []
    for row in queries("pdf-reports"):
        gold = {(page["path"], page["page"]) for page in row["gold"]}
        paths = {path for path, _ in gold}
        if paths.issubset(reports):
            question = Question(
                row["query"],
                gold=frozenset(gold),
                form=row["source"],
            )
            questions.append(question)

    def covers(node: BaseNode) -> frozenset[Hashable]:
        return gold_of_page[node.ref_doc_id or ""]

    return DataSet("pdf-reports", {"": documents}, questions, covers)


# Passages


def locomo_notes() -> DataSet:
    """Return 272 dated notes of 10 conversations, each an index, and 1,981 questions.

    Gold: lines of a note.
    """
    documents = _collections("locomo-notes")
    span_of_lines = _line_spans(documents)
    questions = []
    for row in queries("locomo-notes"):
        gold = set()
        for passage in row["gold"]:
            first_line = passage["start_line"]
            last_line = passage["end_line"]
            for line in range(first_line, last_line + 1):
                gold.add(span_of_lines(passage["path"], line, line))
        if gold:
            question = Question(
                row["query"],
                gold=frozenset(gold),
                collection=row["collection"],
                form="names a date" if row["names_a_date"] else "no date",
            )
            questions.append(question)
    covers = _passages_covered(questions, least_share=0)
    return DataSet("locomo-notes", documents, questions, covers)


def chat_notes() -> DataSet:
    """Return 50 dated notes of 12 long chats with an assistant, each an index, and 215 questions.

    Gold: messages. A chunk covers a message if it holds at least a character of it, because a
    message can be longer than ten chunks.
    """
    documents = _collections("chat-notes")
    span_of_lines = _line_spans(documents)
    questions = []
    for row in queries("chat-notes"):
        gold = set()
        for message in row["gold"]:
            first_line = message["start_line"]
            last_line = message["end_line"]
            gold.add(span_of_lines(message["path"], first_line, last_line))
        question = Question(
            row["query"],
            gold=frozenset(gold),
            collection=row["collection"],
            form=row["category"],
        )
        questions.append(question)
    covers = _passages_covered(questions, least_share=0)
    return DataSet("chat-notes", documents, questions, covers)


def german_judgments() -> DataSet:
    """Return 60 German judgments and 60 questions; gold: a passage, of which a chunk holds half."""
    return _of_passages("german-judgments")


def japanese_articles(questions: int | None = None) -> DataSet:
    """Return 29 Japanese articles and 685 questions, or the first so many.

    Gold: a paragraph, of which a chunk holds half.
    """
    data = _of_passages("japanese-articles")
    return replace(data, questions=data.questions[:questions])


def meeting_transcripts() -> DataSet:
    """Return 24 transcripts without headings, each an index, and 112 questions about them.

    The folder ``qmsum`` is a clone of Yale-LILY/QMSum, of which the first meetings about products
    are taken. Gold: a passage, of which a chunk holds half, or which holds half of a chunk.
    """
    documents = {}
    questions = []
    passages = defaultdict[str, set[Span]](set)
    folder = _folder("qmsum") / "data" / "Product" / "all"
    for file in sorted(folder.glob("*.json"))[:MEETINGS]:
        name = file.stem
        meeting = json.loads(file.read_text("utf-8"))
        text, turns = _transcript(meeting["meeting_transcripts"])
        documents[name] = [_document(text, name, f"{name}.txt")]
        for row in meeting["specific_query_list"]:
            gold = _passages_of_turns(name, turns, row["relevant_text_span"])
            if gold:
                questions.append(Question(row["query"], gold, collection=name))
                passages[name] |= gold

    def covers(node: BaseNode) -> frozenset[Hashable]:
        chunk = span_of(node)
        covered = set()
        for passage in passages[chunk.path]:
            shorter = min(passage.length, chunk.length)
            if passage.shared(chunk) >= shorter / 2:
                covered.add(passage)
        return frozenset(covered)

    return DataSet("meeting-transcripts", documents, questions, covers)


def _passages_of_turns(
    path: str,
    turns: Sequence[Span],
    ranges: Sequence[tuple[str, str]],
) -> frozenset[Span]:
    """Return the places of ranges of turns; none if they are very long together."""
    passages = set[Span]()
    for first, last in ranges:
        turns_in_range = turns[int(first) : int(last) + 1]
        if turns_in_range:
            start = turns_in_range[0].start
            end = turns_in_range[-1].end
            passages.add(Span(path, start, end))
    length = sum(passage.length for passage in passages)
    return frozenset(passages) if length <= LONGEST_PASSAGES else frozenset()


def _transcript(turns: Sequence[dict[str, str]]) -> tuple[str, list[Span]]:
    """Return the text of a meeting, ``Speaker: words``, and the place of each turn."""
    text = ""
    places = []
    for turn in turns:
        words = _NO_SPEECH.sub("", turn["content"])
        words = _SPACE_BEFORE_MARK.sub("", words).strip()
        start = len(text)
        text += f"{turn['speaker']}: {words}"
        places.append(Span("", start, len(text)))
        text += "\n\n"
    return text, places


def _of_passages(name: str) -> DataSet:
    questions = []
    for row in queries(name):
        gold = set()
        for passage in row["gold"]:
            span = Span(passage["path"], passage["start"], passage["end"])
            gold.add(span)
        questions.append(Question(row["query"], frozenset(gold)))
    documents = {"": pages_of(name)}
    covers = _passages_covered(questions, least_share=0.5)
    return DataSet(name, documents, questions, covers)


def _line_spans(collections: dict[str, list[Document]]) -> Callable[[str, int, int], Span]:
    """Return a function that returns the place of lines, counted from 1, of a document."""
    lines_of = {}
    for documents in collections.values():
        for document in documents:
            lines_of[document.doc_id] = document.text.split("\n")

    def span(path: str, first: int, last: int) -> Span:
        lines = lines_of[path]
        lines_before = lines[: first - 1]
        passage = "\n".join(lines[first - 1 : last]).rstrip()
        start = sum(len(line) + 1 for line in lines_before)
        return Span(path, start, start + len(passage))

    return span


def _passages_covered(
    questions: Sequence[Question],
    least_share: float,
) -> Callable[[BaseNode], frozenset[Hashable]]:
    """Return the function for passages of which a chunk holds this share and a character."""
    passages = defaultdict[str, set[Span]](set)
    for question in questions:
        for passage in cast("frozenset[Span]", question.gold):
            passages[passage.path].add(passage)

    def covers(node: BaseNode) -> frozenset[Hashable]:
        chunk = span_of(node)
        covered = set()
        for passage in passages.get(chunk.path, ()):
            least = max(1, least_share * passage.length)
            if passage.shared(chunk) >= least:
                covered.add(passage)
        return frozenset(covered)

    return covers


def span_of(node: BaseNode) -> Span:
    """Return the place of a chunk."""
    node = cast("TextNode", node)
    start = node.start_char_idx or 0
    end = node.end_char_idx or 0
    return Span(node.ref_doc_id or "", start, end)


# Messages


@dataclass(frozen=True)
class Message:
    """What a person told an assistant."""

    text: str
    conversation: str  # the person, whose notes are an index of their own
    day: date
    earlier: tuple[str, ...]  # paths of the notes from before, which alone count
    gold: frozenset[str]  # those of them that an answer needs

    def measure(self, notes: Iterable[str]) -> list[float]:
        """Return recall at 5, 10 and 20, of all at 10 and 20, and nDCG at 10, in per cent."""
        different_notes = dict.fromkeys(notes)
        hits = [float(note in self.gold) for note in different_notes]
        gold_count = len(self.gold)
        recall_at_5 = sum(hits[:5]) / gold_count
        recall_at_10 = sum(hits[:10]) / gold_count
        recall_at_20 = sum(hits[:20]) / gold_count
        shares = [
            recall_at_5,
            recall_at_10,
            recall_at_20,
            float(recall_at_10 == 1),
            float(recall_at_20 == 1),
            ndcg(hits, [1.0] * gold_count, depth=10),
        ]
        return [100 * share for share in shares]


def realmem_notes() -> list[Message]:
    """Return 700 messages of five people about 1,105 sessions, a note each.

    Gold: the earlier notes that an answer needs. Of 15 messages the gold has the note in which the
    message was sent. That note does not count, and two messages have no other.
    """
    notes = {}
    for person, documents in _collections("realmem-notes").items():
        notes[person] = [document.metadata["path"] for document in documents]
    messages = []
    for row in queries("realmem-notes"):
        person = row["collection"]
        own_note = _path_in_collection(row["asked_in"])
        earlier = tuple(path for path in notes[person] if path < own_note)
        needed = {_path_in_collection(note["path"]) for note in row["gold"]}
        gold = frozenset(needed.intersection(earlier))
        if gold:
            message = Message(
                row["query"],
                conversation=person,
                day=date.fromisoformat(row["asked"]),
                earlier=earlier,
                gold=gold,
            )
            messages.append(message)
    return messages


def _path_in_collection(path: str) -> str:
    return path.partition("/")[2]


# Files of a set


def first_collections(data: DataSet, count: int | None, sample: int | None = None) -> DataSet:
    """Return the first collections of a set with their questions, or a fixed sample of these."""
    collections = sorted(data.documents)[:count]
    documents = {name: data.documents[name] for name in collections}
    questions = [question for question in data.questions if question.collection in documents]
    if sample and sample < len(questions):
        questions = random.Random(0).sample(questions, sample)  # noqa: S311
    return replace(data, documents=documents, questions=questions)


def _document(text: str, document_id: str, path: str) -> Document:
    return Document(text=text, id_=document_id, metadata={"path": path})


def _page_covered(node: BaseNode) -> frozenset[Hashable]:
    return frozenset({node.ref_doc_id or ""})


def _folder(name: str) -> Path:
    folder = DATA / name
    if not folder.is_dir():
        sys.exit(
            f"The data set {name!r} is absent: {folder}. Name its parent folder in "
            "LLAMA_INDEX_CONTEXTUAL_DATA."
        )
    return folder


def _rows(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def queries(name: str) -> list[dict[str, Any]]:
    """Return the questions of a set, as its file has them."""
    return _rows(_folder(name) / "queries.jsonl")


def pages_of(name: str) -> list[Document]:
    """Return the Markdown files of a set, by their paths."""
    folder = _folder(name) / "corpus"
    pages = []
    for file in sorted(folder.rglob("*.md")):
        path = file.relative_to(folder).as_posix()
        page = _document(file.read_text("utf-8"), path, path)
        pages.append(page)
    return pages


def _collections(name: str) -> dict[str, list[Document]]:
    """Return the notes of a set by collection.

    The id of a note begins with the collection, and its path does not.
    """
    documents = defaultdict[str, list[Document]](list)
    for note in pages_of(name):
        collection, _, path = note.doc_id.partition("/")
        note.metadata["path"] = path
        documents[collection].append(note)
    return dict(documents)


def ndcg(gains: Sequence[float], best: Sequence[float], depth: int) -> float:
    """Return NDCG of ranked gains, by the best that there are."""

    def discounted(values: Sequence[float]) -> float:
        total = 0.0
        for rank, value in enumerate(values[:depth]):
            total += value / math.log2(rank + 2)
        return total

    return discounted(gains) / discounted(best)


def nonsense() -> dict[str, list[str]]:
    """Return questions that no set answers, by kind.

    They are mashed keys, other languages and general knowledge.
    """
    questions = defaultdict[str, list[str]](list)
    file = Path(__file__).with_name("nonsense.txt")
    for line in file.read_text("utf-8").splitlines():
        kind, _, question = line.partition(": ")
        questions[kind].append(question)
    return dict(questions)


NONSENSE = nonsense()

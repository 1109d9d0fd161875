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
from typing import TYPE_CHECKING, Any, TypeAlias

from llama_index.core.schema import BaseNode, Document, NodeRelationship, RelatedNodeInfo, TextNode

from llama_index_contextual.app.folder.convert import DocumentReader
from llama_index_contextual.context.source_code import is_code

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

Span: TypeAlias = tuple[str, int, int]  # document id, first character, end
DATA = Path(
    os.environ.get("LLAMA_INDEX_CONTEXTUAL_DATA")
    or Path(__file__).resolve().parents[2] / "shared" / "data"
)

THREE_REPORTS = ("AMAZON_2019_10K.pdf", "JPMORGAN_2021Q1_10Q.pdf", "VERIZON_2021_10K.pdf")
MEETINGS = 24
LONGEST_PASSAGES = 6000  # characters
_NO_SPEECH = re.compile(r"\s*\{\w+\}")  # {disfmarker}
_SPACE_BEFORE_MARK = re.compile(r"\s+(?=[,.?!])")


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
    chunks: dict[str, list[TextNode]] = field(
        default_factory=dict
    )  # by document id, where the set fixes them
    context: str = "headings"


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
    return DataSet(
        "codebases",
        {"": documents},
        questions,
        lambda node: frozenset({node.node_id}),
        chunks,
        context="pattern",
    )


def code_search() -> DataSet:
    """Source files of seven repositories, each an index; 141 questions in three categories.

    Gold: the file.
    """
    documents: dict[str, list[Document]] = {}
    folder = _folder("code-search") / "corpus"
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        repository, inside = name.split("/", 1)
        if is_code(inside):
            text = path.read_bytes().decode("utf-8", "ignore")
            documents.setdefault(repository, []).append(
                Document(text=text, id_=name, metadata={"path": inside})
            )
    questions = [
        Question(
            row["query"],
            frozenset(f"{row['collection']}/{file['path']}" for file in row["gold"]),
            row["collection"],
            row["category"],
        )
        for row in queries("code-search")
    ]
    return DataSet("code-search", documents, questions, _page_covered, context="pattern")


def kubernetes_docs(pages: int | None = None) -> DataSet:
    """1,568 Markdown pages or so many, those with answers first; 200 questions in three forms.

    Gold: the page.
    """
    data = _of_pages("kubernetes-docs")
    gold = {item for question in data.questions for item in question.gold}
    documents = sorted(data.documents[""], key=lambda page: page.doc_id not in gold)[:pages]
    return replace(data, documents={"": documents})


def course_lessons() -> DataSet:
    """72 Markdown lessons of a course, 360 questions; gold: the page."""
    return _of_pages("course-lessons")


def obsidian_help() -> DataSet:
    """171 notes of Obsidian's help, 58 questions, six of them Russian; gold: the note.

    Nothing is chosen by them.
    """
    return _of_pages("obsidian-help")


def _of_pages(name: str) -> DataSet:
    questions = [
        Question(row["query"], frozenset(g["path"] for g in row["gold"])) for row in queries(name)
    ]
    return DataSet(name, {"": pages_of(name)}, questions, _page_covered)


def pdf_reports(reports: Sequence[str] = THREE_REPORTS) -> DataSet:
    """Three PDF reports, or those named, or all 17; a document for each page.

    250 to 272 questions; gold: pages.
    """
    folder = _folder("pdf-reports") / "corpus"
    reports = reports or sorted(path.name for path in folder.glob("*.pdf"))
    documents = [page for name in reports for page in DocumentReader().load_data(folder / name)]
    for page in documents:
        page.metadata = {"path": page.metadata["file_name"], **page.metadata}
        page.id_ = f"{page.metadata['path']}#page={page.metadata['page']}"
    questions = [
        Question(
            row["query"], frozenset((g["path"], g["page"]) for g in row["gold"]), "", row["source"]
        )
        for row in queries("pdf-reports")
        if {g["path"] for g in row["gold"]} <= {*reports}
    ]

    pages = {
        page.doc_id: frozenset({(page.metadata["path"], page.metadata["page"])})
        for page in documents
    }
    return DataSet(
        "pdf-reports", {"": documents}, questions, lambda node: pages[node.ref_doc_id or ""]
    )


# Passages


def locomo_notes() -> DataSet:
    """272 dated notes of 10 conversations, each an index; 1,981 questions.

    Gold: lines of a note.
    """
    documents = _collections("locomo-notes")
    span_of_lines = _line_spans(documents)
    questions = []
    for row in queries("locomo-notes"):
        gold = set()
        for passage in row["gold"]:
            for line in range(passage["start_line"], passage["end_line"] + 1):
                gold.add(span_of_lines(passage["path"], line, line))
        if gold:
            form = "names a date" if row["names_a_date"] else "no date"
            questions.append(Question(row["query"], frozenset(gold), row["collection"], form))
    return DataSet("locomo-notes", documents, questions, _passages_covered(questions, 0))


def chat_notes() -> DataSet:
    """50 dated notes of 12 long chats with an assistant, each chat an index; 215 questions.

    Gold: messages.

    A chunk covers a message when it holds at least a character of it: a message can be longer than
    ten chunks.
    """
    documents = _collections("chat-notes")
    span_of_lines = _line_spans(documents)
    questions = []
    for row in queries("chat-notes"):
        gold = frozenset(
            span_of_lines(message["path"], message["start_line"], message["end_line"])
            for message in row["gold"]
        )
        questions.append(Question(row["query"], gold, row["collection"], row["category"]))
    return DataSet("chat-notes", documents, questions, _passages_covered(questions, 0))


def german_judgments() -> DataSet:
    """60 German judgments, 60 questions; gold: a passage, of which a chunk holds at least half."""
    return _of_passages("german-judgments")


def japanese_articles(questions: int | None = None) -> DataSet:
    """29 Japanese articles, 685 questions or the first so many.

    Gold: a paragraph, of which a chunk holds half.
    """
    data = _of_passages("japanese-articles")
    return replace(data, questions=data.questions[:questions])


def meeting_transcripts() -> DataSet:
    """24 transcripts without headings, each an index; 112 questions about what was said.

    The folder ``qmsum`` is a clone of Yale-LILY/QMSum, of which the first meetings about products
    are taken. Gold: a passage, of which a chunk holds half, or which holds half of a chunk.
    """
    documents, questions = dict[str, list[Document]](), list[Question]()
    folder = _folder("qmsum") / "data" / "Product" / "all"
    for file in sorted(folder.glob("*.json"))[:MEETINGS]:
        meeting = json.loads(file.read_text("utf-8"))
        text, turns = _transcript(meeting["meeting_transcripts"])
        metadata = {"path": f"{file.stem}.txt"}
        documents[file.stem] = [Document(text=text, id_=file.stem, metadata=metadata)]
        for row in meeting["specific_query_list"]:
            gold = _passages_of_turns(file.stem, turns, row["relevant_text_span"])
            if gold:
                questions.append(Question(row["query"], gold, file.stem))
    passages = defaultdict[str, set[Any]](set)
    for question in questions:
        passages[question.collection] |= question.gold

    def covers(node: BaseNode) -> frozenset[Any]:
        first, last = node.start_char_idx, node.end_char_idx  # type: ignore[attr-defined]
        covered = set()
        for path, start, end in passages[node.ref_doc_id or ""]:
            if min(end, last) - max(start, first) >= min(end - start, last - first) / 2:
                covered.add((path, start, end))
        return frozenset(covered)

    return DataSet("meeting-transcripts", documents, questions, covers)


def _passages_of_turns(
    path: str, turns: Sequence[tuple[int, int]], ranges: Sequence[tuple[str, str]]
) -> frozenset[Span]:
    """Return the places of ranges of turns; none where they are very long together."""
    passages = set[Span]()
    for first, last in ranges:
        places = turns[int(first) : int(last) + 1]
        if places:
            passages.add((path, places[0][0], places[-1][1]))
    length = sum(end - start for _, start, end in passages)
    return frozenset(passages) if length <= LONGEST_PASSAGES else frozenset()


def _transcript(turns: Sequence[dict[str, str]]) -> tuple[str, list[tuple[int, int]]]:
    """Return the text of a meeting, ``Speaker: words``, and the place of each turn."""
    text, places = "", []
    for turn in turns:
        words = _NO_SPEECH.sub("", turn["content"])
        line = f"{turn['speaker']}: {_SPACE_BEFORE_MARK.sub('', words).strip()}"
        places.append((len(text), len(text) + len(line)))
        text += f"{line}\n\n"
    return text, places


def _of_passages(name: str) -> DataSet:
    questions = [
        Question(row["query"], frozenset((g["path"], g["start"], g["end"]) for g in row["gold"]))
        for row in queries(name)
    ]
    return DataSet(name, {"": pages_of(name)}, questions, _passages_covered(questions, 0.5))


def _line_spans(collections: dict[str, list[Document]]) -> Callable[[str, int, int], Span]:
    """Return a function that returns the place of lines, counted from 1, of a document."""
    texts = {}
    for documents in collections.values():
        for document in documents:
            texts[document.doc_id] = document.text.split("\n")

    def span(path: str, first: int, last: int) -> Span:
        start = sum(len(line) + 1 for line in texts[path][: first - 1])
        lines = "\n".join(texts[path][first - 1 : last])
        return path, start, start + len(lines.rstrip())

    return span


def _passages_covered(
    questions: Sequence[Question], least: float
) -> Callable[[BaseNode], frozenset[Hashable]]:
    """Return the passages of which a chunk holds at least this share, and a character."""
    passages = defaultdict[str, set[Any]](set)
    for question in questions:
        for passage in question.gold:
            passages[passage[0]].add(passage)  # type: ignore[index]

    def covers(node: BaseNode) -> frozenset[Hashable]:
        covered = set()
        for passage in passages.get(node.ref_doc_id or "", ()):
            _, start, end = passage
            shared = min(end, node.end_char_idx) - max(start, node.start_char_idx)  # type: ignore[attr-defined]
            if shared >= max(1, least * (end - start)):
                covered.add(passage)
        return frozenset(covered)

    return covers


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
        hits = [float(note in self.gold) for note in dict.fromkeys(notes)]
        recalls = [sum(hits[:depth]) / len(self.gold) for depth in (5, 10, 20)]
        finds_all = [float(recall == 1) for recall in recalls[1:]]
        gain = ndcg(hits, [1.0] * len(self.gold), 10)
        return [100 * value for value in (*recalls, *finds_all, gain)]


def realmem_notes() -> list[Message]:
    """700 messages of five people about 1,105 sessions, a note each.

    Gold: the earlier notes that an answer needs.

    Of 15 the note in which the message was sent is among the gold; that does not count, and two
    messages have no other.
    """
    notes = {}
    for person, documents in _collections("realmem-notes").items():
        notes[person] = [document.metadata["path"] for document in documents]
    messages = []
    for row in queries("realmem-notes"):
        person = row["collection"]
        own_note = _path_in_collection(row["asked_in"])
        earlier = tuple(path for path in notes[person] if path < own_note)
        needed = frozenset(_path_in_collection(note["path"]) for note in row["gold"])
        gold = needed.intersection(earlier)
        if gold:
            day = date.fromisoformat(row["asked"])
            messages.append(Message(row["query"], person, day, earlier, gold))
    return messages


def _path_in_collection(path: str) -> str:
    return path.partition("/")[2]


def first_collections(data: DataSet, count: int | None, sample: int | None = None) -> DataSet:
    """Return the first collections of a set with their questions, or a fixed sample of these."""
    documents = dict(sorted(data.documents.items())[:count])
    questions = [question for question in data.questions if question.collection in documents]
    if sample and sample < len(questions):
        questions = random.Random(0).sample(questions, sample)  # noqa: S311
    return replace(data, documents=documents, questions=questions)


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
    paths = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*.md"))]
    return [
        Document(text=(folder / path).read_text("utf-8"), id_=path, metadata={"path": path})
        for path in paths
    ]


def _collections(name: str) -> dict[str, list[Document]]:
    """Return the notes of a set by collection.

    The id of a note begins with the collection, and its path does not.
    """
    documents: dict[str, list[Document]] = {}
    for note in pages_of(name):
        collection, note.metadata["path"] = note.doc_id.split("/", 1)
        documents.setdefault(collection, []).append(note)
    return documents


def ndcg(gains: Sequence[float], best: Sequence[float], depth: int) -> float:
    """Return NDCG of ranked gains, by the best that there are."""

    def total(values: Sequence[float]) -> float:
        return sum(value / math.log2(place + 2) for place, value in enumerate(values[:depth]))

    return total(gains) / total(best)


def nonsense() -> dict[str, list[str]]:
    """Return questions that no set answers, by kind.

    They are mashed keys, other languages and general knowledge.
    """
    questions = defaultdict[str, list[str]](list)
    for line in Path(__file__).with_name("nonsense.txt").read_text("utf-8").splitlines():
        kind, _, question = line.partition(": ")
        questions[kind].append(question)
    return dict(questions)


NONSENSE = nonsense()

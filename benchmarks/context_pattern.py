"""What each part of a pattern context is worth, in the vector arm and in the keyword arm.

    python benchmarks/context_pattern.py

Recall of the gold chunks on 248 questions about 90 source files (the data set ``codebases``), the local embedding.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from common import RememberingEmbedding, machine, markdown_table
from datasets import codebases
from llama_index.core.schema import MetadataMode

from llama_index_contextual.app.evaluation import recall_at
from llama_index_contextual.context.documents import group_by_document, position
from llama_index_contextual.context.source_code import read_code
from llama_index_contextual.metadata import CONTEXT, LEXICAL_CONTEXT
from llama_index_contextual.retrieval import ContextualBM25Retriever, ContextualNodePostprocessor

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from llama_index.core.schema import BaseNode, TextNode

RESULT = Path(__file__).parent / "results" / "context_pattern.md"
CUTS = (5, 10, 20)


def main() -> None:
    """Measure and write the tables."""
    data = codebases()
    documents = data.documents[""]
    chunks = [chunk for document in documents for chunk in data.chunks[document.doc_id]]
    patterns = _with(ContextualNodePostprocessor("pattern", documents=documents), chunks)
    headings = _with(ContextualNodePostprocessor("headings", documents=documents), chunks)
    purposes = _purposes(chunks, documents)
    nothing = [""] * len(chunks)
    short = [str(node.metadata[CONTEXT]) for node in patterns]
    long = [str(node.metadata.get(LEXICAL_CONTEXT, "")) for node in patterns]
    files = [context.partition(". ")[0].rstrip(".") for context in short]
    vectors = {
        "no context": nothing,
        "headings (here: the path)": [str(node.metadata[CONTEXT]) for node in headings],
        "pattern: file": files,
        "**pattern: file, enclosing and defined names**": short,
        "the same and the chunk's first comment": [
            " ".join(pair).strip() for pair in zip(short, purposes, strict=True)
        ],
        "the same and all that the keyword arm gets": [" ".join(pair) for pair in zip(short, long, strict=True)],
    }
    keywords = {
        "no context": (nothing, nothing),
        "pattern: file": (files, nothing),
        "pattern: file, enclosing and defined names": (short, nothing),
        "**the same and the extra words**": (short, long),
    }
    questions = [question.text for question in data.questions]
    gold = [question.gold for question in data.questions]
    vector_rows = [[name, *_recall(_nearest(chunks, context, questions), gold)] for name, context in vectors.items()]
    keyword_rows = [[name, *_recall(_matching(chunks, *texts, questions), gold)] for name, texts in keywords.items()]
    cuts = [f"@{cut}" for cut in CUTS]
    RESULT.write_text(
        f"# What a pattern context is worth\n\n`python benchmarks/context_pattern.py`; {machine()}.\n"
        f"Recall in % on {len(questions)} questions, {len(chunks)} given chunks of code; the default in bold.\n\n"
        f"{markdown_table(['vector arm alone', *cuts], vector_rows)}\n\n"
        f"{markdown_table(['keyword arm alone', *cuts], keyword_rows)}\n\n"
        f"The extra words have {np.mean([len(words) for words in long]):.0f} characters a chunk.\n",
        "utf-8",
    )
    print(RESULT.read_text("utf-8"))


def _with(step: ContextualNodePostprocessor, chunks: Sequence[TextNode]) -> list[BaseNode]:
    return step([chunk.model_copy(deep=True) for chunk in chunks])


def _purposes(chunks: Sequence[BaseNode], documents: Sequence[BaseNode]) -> list[str]:
    purposes = {}
    for group in group_by_document(chunks, documents=documents):
        code = read_code(group.document.text, group.document.path)
        for node in group.nodes:
            purposes[id(node)] = code.purpose(*position(node, group.document)) if code else ""
    return [purposes[id(chunk)] for chunk in chunks]


def _nearest(chunks: Sequence[BaseNode], contexts: Iterable[str], questions: Sequence[str]) -> list[list[str]]:
    embedding = RememberingEmbedding()
    plain = (chunk.get_content(metadata_mode=MetadataMode.NONE) for chunk in chunks)
    pairs = zip(contexts, plain, strict=True)
    texts = [f"context: {context}\n\n{text}" if context else text for context, text in pairs]
    matrix = np.array(embedding.get_text_embedding_batch(texts))
    asked = np.array([embedding.get_query_embedding(question) for question in questions])
    order = np.argsort(-(asked @ matrix.T), axis=1, kind="stable")[:, : max(CUTS)]
    return [[chunks[place].node_id for place in row] for row in order]


def _matching(
    chunks: Sequence[TextNode], contexts: Sequence[str], lexical: Sequence[str], questions: Sequence[str]
) -> list[list[str]]:
    nodes = []
    for chunk, context, more in zip(chunks, contexts, lexical, strict=True):
        node = chunk.model_copy(deep=True)
        node.metadata = {**({CONTEXT: context} if context else {}), **({LEXICAL_CONTEXT: more} if more else {})}
        node.excluded_embed_metadata_keys = [LEXICAL_CONTEXT]
        nodes.append(node)
    retriever = ContextualBM25Retriever(nodes, similarity_top_k=max(CUTS))
    return [[hit.node.node_id for hit in retriever.retrieve(question)] for question in questions]


def _recall(found: Sequence[Sequence[str]], gold: Sequence[frozenset[object]]) -> list[float]:
    return [
        100 * float(np.mean([recall_at(cut, [{i} for i in ids], g) for ids, g in zip(found, gold, strict=True)]))
        for cut in CUTS
    ]


if __name__ == "__main__":
    main()

"""Ask one question without contexts, and then run ``pipeline.py``, which asks it with contexts.

Run it with ``make demo``, or with ``python examples/demo.py`` after ``pip install -e
'.[pipeline]'``. It works on a copy of ``examples/notes`` in a temporary folder. It needs no key and
no network.
"""

from __future__ import annotations

import os
import runpy
import shutil
import tempfile
from pathlib import Path

from llama_index.core import SimpleDirectoryReader, VectorStoreIndex
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser import MarkdownNodeParser, SentenceSplitter
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.retrievers.bm25 import BM25Retriever

from llama_index_contextual.app import LocalEmbedding

EXAMPLES = Path(__file__).parent
QUESTION = "What is the default number of retries of the scheduler?"


def without_contexts() -> None:
    """Print what LlamaIndex's own parser, retrievers and fusion find."""
    documents = SimpleDirectoryReader("examples/notes", recursive=True).load_data()
    nodes = SentenceSplitter(chunk_size=512)(MarkdownNodeParser()(documents))
    vectors = VectorStoreIndex(nodes, embed_model=LocalEmbedding()).as_retriever(
        similarity_top_k=10
    )
    keywords = BM25Retriever.from_defaults(nodes=nodes, similarity_top_k=10)
    fusion = QueryFusionRetriever(
        [vectors, keywords],
        llm=MockLLM(),
        num_queries=1,
        mode="reciprocal_rerank",
        similarity_top_k=3,
    )
    for hit in fusion.retrieve(QUESTION):
        text = " ".join(hit.node.get_content().split())
        print(f"{hit.score:.2f} {hit.node.metadata['file_name']}  {text[:68]}")


def main() -> None:
    """Print the hits without and with contexts, and the commands for a folder."""
    print(f"\n{QUESTION}\n\n1. LlamaIndex without contexts")
    without_contexts()
    print(
        "\n2. LlamaIndex's fusion, then that of this package, with contexts (examples/pipeline.py)"
    )
    runpy.run_path(str(EXAMPLES / "pipeline.py"))
    print(
        "\nMany chunks say “The default value is … and can be adjusted via the config "
        "file”. The context says\n"
        "which value: “Document: examples/notes/docs/scheduler.md > Scheduler > "
        "Retries”. It is embedded and\n"
        "indexed with the chunk, and never displayed.\n\n"
        "To search a folder of your own:\n"
        "  llama-index-contextual index FOLDER\n"
        '  llama-index-contextual search "a question" --folder FOLDER'
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        shutil.copytree(EXAMPLES / "notes", Path(folder) / "examples" / "notes")
        os.chdir(folder)
        main()
        os.chdir(EXAMPLES)  # Windows cannot delete the working directory

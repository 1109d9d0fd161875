"""One question to a LlamaIndex pipeline: without contexts, and then the pipeline of ``pipeline.py`` as it stands.

Run it with ``make demo``, or with ``python examples/demo.py`` after ``pip install -e '.[pipeline]'``. It
works on a copy of ``examples/notes`` in a temporary folder, with a real Chroma, and without a key or the network.
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
QUESTION = "What is the default timeout of the gateway?"


def without_contexts() -> None:
    """Print what LlamaIndex's own parser, arms and fusion find."""
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
    """Print all three answers, and the commands for a folder."""
    print(f"\n{QUESTION}\n\n1. LlamaIndex's parser and hybrid, without contexts")
    without_contexts()
    print(
        "\n2. The same hybrid over our chunks and contexts, and 3. our retrievers over them (examples/pipeline.py)"
    )
    runpy.run_path(str(EXAMPLES / "pipeline.py"))
    print(
        "\nTwo notes say “The default value is … and can be adjusted via the config file”. The context says whose it\n"
        "is: “Document: examples/notes/docs/gateway.md > Gateway > Timeout”. It is embedded and keyword-indexed, and\n"
        "never displayed.\n\n"
        "The same for a folder of your own, with an index that is kept up to date:\n"
        "  .venv/bin/llama-index-contextual index FOLDER\n"
        '  .venv/bin/llama-index-contextual search "a question" --folder FOLDER'
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        shutil.copytree(EXAMPLES / "notes", Path(folder) / "examples" / "notes")
        os.chdir(folder)
        main()
        os.chdir(EXAMPLES)  # a temporary folder that somebody works in cannot be deleted on Windows

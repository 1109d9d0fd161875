"""What contexts from a language model cost: ours beside LlamaIndex's DocumentContextExtractor.

Same document, same chunks, same server, each inside an IngestionPipeline with its cache. Four runs each: from nothing,
once more, with one chunk edited, with another prompt. The server counts requests and prompt tokens, and among these
those that its prefix cache spares it: it has one slot and compares each prompt with the one before, as llama.cpp and
Ollama do.

    python benchmarks/context_cost.py                  # a server that counts exactly and writes nothing: seconds
    python benchmarks/context_cost.py --read llama.cpp   # SmolLM2 reads every prompt (see tests/servers.py): minutes
    python benchmarks/context_cost.py --read llama.cpp --no-prefix-cache  # every prompt whole: longer

In all, a stand-in words the answers, one line of 25 tokens per chunk, because a model small enough to run anywhere
cannot be relied on to number its answers; SmolLM2 writes as many tokens, which are thrown away, so that the wall time
is that of reading and writing. Nothing here says anything about the quality of contexts.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import machine, markdown_table
from counting_server import Cost, Server, serve
from datasets import DATA
from llama_index.core.extractors import DocumentContextExtractor
from llama_index.core.ingestion import IngestionCache, IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.prompts import PromptTemplate
from llama_index.core.schema import BaseNode, Document, TransformComponent
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.utils import get_tokenizer
from llama_index.llms.openai_like import OpenAILike

from llama_index_contextual.app.settings.llm import NamedModel
from llama_index_contextual.context.prompts import CONTEXT_PROMPT
from llama_index_contextual.retrieval import ContextualNodePostprocessor

if TYPE_CHECKING:
    from collections.abc import Callable

RESULTS = Path(__file__).parent / "results"
WINDOW = 32768
CHAPTER = "ch20-01-unsafe-rust.md"
SHORT_CHAPTER = "ch17-01-futures-and-syntax.md"  # for SmolLM2, which has a window of 8k and reads slowly
CHUNKS = 24
READING_RATE, WRITING_RATE = 320.0, 25.0  # tokens a second of SmolLM2 on two cores, to turn tokens into time
OTHER_PROMPT = "Name the subject of the chunk in one short sentence. Answer only with it."
OURS_OTHER_PROMPT = PromptTemplate(  # opens as ours does: what a user changes is the instruction, as in theirs
    CONTEXT_PROMPT.partition("Chunks of")[0] + "{chunks}\nName the subject of each chunk in one short sentence. "
    "Answer with one line per chunk, its number first:\n1: subject of chunk 1"
)


def load(chapter: str, *, edited: bool) -> tuple[Document, list[BaseNode]]:
    """Read the chapter and cut it into chunks; perhaps with one word of one chunk changed."""
    path = next((DATA / "markdown" / "rust-book").rglob(chapter))
    document = Document(text=path.read_text("utf-8"), id_=chapter, metadata={"path": chapter})
    size = max(40, len(get_tokenizer()(document.text)) // CHUNKS)
    while True:
        splitter = SentenceSplitter(
            chunk_size=size, chunk_overlap=0, include_metadata=False, id_func=lambda i, _: f"{chapter}#{i}"
        )
        nodes = splitter.get_nodes_from_documents([document])
        if len(nodes) <= CHUNKS:
            break
        size += 2
    if edited:
        middle = nodes[len(nodes) // 2]
        old, new = middle.get_content(), middle.get_content() + " Edited."
        document.set_content(document.text.replace(old, new))
        middle.set_content(new)
    return document, nodes


def measure(server: Server, step: TransformComponent, cache: Any, nodes: list[BaseNode]) -> Cost:
    """Run a step in a pipeline with a cache and say what that cost."""
    before = Cost(**vars(server.total))
    started = time.monotonic()
    result = IngestionPipeline(transformations=[step], cache=cache).run(nodes=nodes)
    cost = Cost(**vars(server.total)) - before
    cost.seconds = time.monotonic() - started
    sources = {str(node.metadata.get("context_source", "")) for node in result}  # theirs name none
    assert all(node.metadata["context"] for node in result)
    assert not {source for source in sources if source and not source.startswith("llm:")}, sources
    return cost


def runs(make: Callable[[Document, bool], TransformComponent], server: Server, chapter: str) -> list[Cost]:
    """From nothing, once more, one chunk edited, another prompt; without a prefix cache from nothing only."""
    cache, costs = IngestionCache(), []
    for edited, other_prompt in ((False, False), (False, False), (True, False), (False, True)):
        document, nodes = load(chapter, edited=edited)
        costs.append(measure(server, make(document, other_prompt), cache, nodes))
        if not server.prefix_cache:
            break
    return costs


def ours(server: Server, cache: Path) -> Callable[[Document, bool], TransformComponent]:
    """Our step for a document and, perhaps, another prompt."""

    def make(document: Document, other_prompt: bool) -> TransformComponent:
        return ContextualNodePostprocessor(
            "llm",
            llm=NamedModel(f"openai:counting@{server.api_base}", 800, 3600.0),
            cache=cache,
            prompt=OURS_OTHER_PROMPT if other_prompt else None,
            documents=[document],
            context_window=WINDOW,
            timeout=3600.0,  # so that a busy machine changes seconds and not counts
        )

    return make


def theirs(server: Server) -> Callable[[Document, bool], TransformComponent]:
    """LlamaIndex's step."""

    def make(document: Document, other_prompt: bool) -> TransformComponent:
        docstore = SimpleDocumentStore()
        docstore.add_documents([document])
        llm = OpenAILike(
            model="counting", api_base=server.api_base, api_key="none", is_chat_model=True, temperature=0.0,
            context_window=WINDOW, timeout=3600.0,
        )  # fmt: skip
        prompt = OTHER_PROMPT if other_prompt else DocumentContextExtractor.ORIGINAL_CONTEXT_PROMPT
        return DocumentContextExtractor(docstore=docstore, llm=llm, prompt=prompt, max_context_length=WINDOW)

    return make


def main() -> None:
    """Measure both and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--read", choices=("count", "llama.cpp"), default="count")
    parser.add_argument("--no-prefix-cache", action="store_true")
    parser.add_argument("--out", type=Path, help="write the table to this file too")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    chapter = CHAPTER if given.read == "count" else SHORT_CHAPTER
    prefix_cache = not given.no_prefix_cache

    with serve(given.read, prefix_cache=prefix_cache) as server, tempfile.TemporaryDirectory() as folder:
        our_costs = runs(ours(server, Path(folder) / "contexts.sqlite"), server, chapter)
        size = server.size(load(chapter, edited=False)[0].text)
    with serve(given.read, prefix_cache=prefix_cache) as server:
        their_costs = runs(theirs(server), server, chapter)
    result = report(our_costs, their_costs, chapter, size)
    print(result)
    if given.out:
        given.out.write_text(result, "utf-8")


def report(ours: list[Cost], theirs: list[Cost], chapter: str, size: int) -> str:
    """Draw the table."""
    names = ("cold", "second run", "one chunk edited", "another prompt")
    rows: list[list[object]] = []
    for what, our, their in zip(names, ours, theirs, strict=False):
        for who, cost in (("DocumentContextExtractor", their), ("ours", our)):
            read = cost.sent - cost.cached
            rows.append(
                [what, who, cost.calls, cost.sent, f"{cost.sent / size:.1f}", read, f"{read / size:.1f}", cost.written,
                 f"{_seconds(cost.sent, cost.written):.0f} s", f"{_seconds(read, cost.written):.0f} s",
                 f"{cost.seconds:.1f} s"]
            )  # fmt: skip
    header = (
        "run", "who", "calls", "prompt tokens sent", "in documents", "of these to be read", "in documents",
        "tokens written", "time without a prefix cache", "with one", "wall time here",
    )  # fmt: skip
    chunks = len(load(chapter, edited=False)[1])
    table = markdown_table(header, rows)
    return f"{machine()}.\n`{chapter}`, {size} tokens in {chunks} chunks.\n\n{table}\n"


def _seconds(read: int, written: int) -> float:
    return read / READING_RATE + written / WRITING_RATE


if __name__ == "__main__":
    main()

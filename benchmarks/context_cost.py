"""What contexts from a language model cost: ours beside LlamaIndex's DocumentContextExtractor.

    python benchmarks/context_cost.py

Same document, same chunks, same server, each inside an IngestionPipeline with its cache. Four runs each: from nothing,
once more, with one chunk edited, with another prompt. The server counts requests and prompt tokens, and among these
those that its prefix cache spares it: it has one slot and compares each prompt with the one before, as llama.cpp and
Ollama do. It answers one line of 25 tokens per chunk. Nothing here says anything about the quality of contexts.
"""

from __future__ import annotations

import json
import re
import tempfile
import threading
import time
import warnings
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import machine, markdown_table, send_json
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
from llama_index_contextual.context.prompts import CONTEXT_PROMPT, count_tokens
from llama_index_contextual.retrieval import ContextualNodePostprocessor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Step = Callable[[Document, bool], TransformComponent]  # of a document and perhaps another prompt

WINDOW = 32768
CHAPTER = "ch20-01-unsafe-rust.md"
CHUNKS = 24
READING_RATE, WRITING_RATE = 320.0, 25.0  # tokens a second of SmolLM2 on two cores, to turn tokens into time
RUNS = ("cold", "second run", "one chunk edited", "another prompt")
ANSWER = (
    "Explains this part of the chapter to readers who look for what it is about and for how it fits the whole book."
)
OTHER_PROMPT = "Name the subject of the chunk in one short sentence. Answer only with it."
OURS_OTHER_PROMPT = PromptTemplate(  # opens as ours does: what a user changes is the instruction, as in theirs
    CONTEXT_PROMPT.partition("Chunks of")[0] + "{chunks}\nName the subject of each chunk in one short sentence. "
    "Answer with one line per chunk, its number first:\n1: subject of chunk 1"
)


class Server(ThreadingHTTPServer):
    """OpenAI's chat interface, which counts calls, tokens sent, tokens in its cache, and tokens written."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.api_base = f"http://127.0.0.1:{self.server_port}/v1"
        self.total = Counter[str]()
        self.lock = threading.Lock()  # one slot: one request after the other
        self.before: list[int] = []

    def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        """Count a prompt and answer it."""
        prompt = "\n".join(_text(message) for message in body["messages"])
        numbers = re.findall(r'<chunk number="(\d+)"', prompt) or [""]
        answer = "\n".join(f"{number}: {ANSWER}" if number else ANSWER for number in numbers)
        tokens, written = get_tokenizer()(prompt), count_tokens(answer)
        with self.lock:
            pairs = zip(tokens, self.before, strict=False)
            cached = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            self.before = tokens
            self.total.update(calls=1, sent=len(tokens), cached=cached, written=written)
        usage = {"prompt_tokens": len(tokens), "completion_tokens": written, "total_tokens": len(tokens) + written}
        message = {"role": "assistant", "content": answer}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        head = {"id": "1", "object": "chat.completion", "created": 0, "model": "counting"}
        return {**head, "choices": [choice], "usage": {**usage, "prompt_tokens_details": {"cached_tokens": cached}}}


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        send_json(self, {"data": []})

    def do_POST(self) -> None:
        send_json(self, self.server.chat(json.loads(self.rfile.read(int(self.headers["Content-Length"])))))


def _text(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)


@contextmanager
def serve() -> Iterator[Server]:
    """A server that has read nothing yet."""
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def load(*, edited: bool) -> tuple[Document, list[BaseNode]]:
    """The chapter and its chunks, perhaps with one word of one chunk changed."""
    path = next((DATA / "markdown" / "rust-book").rglob(CHAPTER))
    document = Document(text=path.read_text("utf-8"), id_=CHAPTER, metadata={"path": CHAPTER})
    size = max(40, len(get_tokenizer()(document.text)) // CHUNKS)
    while True:
        splitter = SentenceSplitter(
            chunk_size=size, chunk_overlap=0, include_metadata=False, id_func=lambda i, _: f"{CHAPTER}#{i}"
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


def measure(make: Step, server: Server) -> Iterator[tuple[Counter[str], float]]:
    """Counts and seconds of each of the four runs."""
    cache = IngestionCache()
    for edited, other_prompt in ((False, False), (False, False), (True, False), (False, True)):
        document, nodes = load(edited=edited)
        before, started = Counter(server.total), time.monotonic()
        pipeline = IngestionPipeline(transformations=[make(document, other_prompt)], cache=cache)
        result = pipeline.run(nodes=nodes)
        sources = {str(node.metadata.get("context_source", "")) for node in result}  # theirs name none
        assert all(node.metadata["context"] for node in result)
        assert not {source for source in sources if source and not source.startswith("llm:")}, sources
        yield server.total - before, time.monotonic() - started


def ours(server: Server, cache: Path) -> Step:
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


def theirs(server: Server) -> Step:
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
    """Measure both and print the table."""
    warnings.simplefilter("ignore")
    with serve() as server, tempfile.TemporaryDirectory() as folder:
        our_costs = list(measure(ours(server, Path(folder) / "contexts.sqlite"), server))
    with serve() as server:
        their_costs = list(measure(theirs(server), server))
    document, nodes = load(edited=False)
    size, rows = count_tokens(document.text), list[list[object]]()
    for run, *both in zip(RUNS, their_costs, our_costs, strict=True):
        for name, (cost, seconds) in zip(("DocumentContextExtractor", "ours"), both, strict=True):
            read = cost["sent"] - cost["cached"]
            times = [tokens / READING_RATE + cost["written"] / WRITING_RATE for tokens in (cost["sent"], read)]
            documents = [f"{tokens / size:.1f}" for tokens in (cost["sent"], read)]
            rows.append(
                [run, name, cost["calls"], cost["sent"], documents[0], read, documents[1], cost["written"],
                 *(f"{one:.0f} s" for one in times), f"{seconds:.1f} s"]
            )  # fmt: skip
    header = (
        "run", "who", "calls", "prompt tokens sent", "in documents", "of these to be read", "in documents",
        "tokens written", "time without a prefix cache", "with one", "wall time here",
    )  # fmt: skip
    print(f"{machine()}.\n`{CHAPTER}`, {size} tokens in {len(nodes)} chunks.\n\n{markdown_table(header, rows)}\n")


if __name__ == "__main__":
    main()

"""What contexts from a language model cost: ours beside LlamaIndex's DocumentContextExtractor.

Same document, same chunks, same server, each inside an IngestionPipeline with its cache. Four runs each: from nothing,
once more, with one chunk edited, with another prompt. The server counts requests and prompt tokens, and among these
those that its prefix cache spares it: it has one slot and compares each prompt with the one before, as llama.cpp and
Ollama do.

    python benchmarks/context_cost.py                  # a server that counts exactly and writes nothing: seconds
    python benchmarks/context_cost.py --read llama.cpp   # SmolLM2 reads every prompt (see tests/servers.py): minutes

In both, a stand-in writes the answers, one line of 25 tokens per chunk, because a model small enough to run
anywhere cannot be relied on to number its answers. Nothing here says anything about the quality of contexts.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import threading
import time
import urllib.request
import warnings
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import machine, markdown_table
from datasets import DATA
from llama_index.core.extractors import DocumentContextExtractor
from llama_index.core.ingestion import IngestionCache, IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.prompts import PromptTemplate
from llama_index.core.schema import BaseNode, Document, TransformComponent
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.utils import get_tokenizer
from llama_index.llms.openai_like import OpenAILike

from llama_index_contextual.context.capacity import count_tokens
from llama_index_contextual.postprocessor import ContextualNodePostprocessor
from llama_index_contextual.postprocessor.contextual import count_by_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RESULTS = Path(__file__).parent / "results"
WINDOW = 32768
CHAPTER = "ch20-01-unsafe-rust.md"
SHORT_CHAPTER = "ch12-01-accepting-command-line-arguments.md"  # for a model that reads 100 tokens a second
CHUNKS = 24
ANSWER = (
    "Explains this part of the chapter to readers who look for what it is about and for how it fits the whole book."
)
READING_RATE, WRITING_RATE = 320.0, 25.0  # tokens a second of SmolLM2 on two cores, to turn tokens into time
OTHER_PROMPT = "Name the subject of the chunk in one short sentence. Answer only with it."
OURS_OTHER_PROMPT = PromptTemplate(
    "<document>\n{document}\n</document>\n{chunks}\nName the subject of each chunk in one short sentence. "
    "Answer with one line per chunk, its number first:\n1: subject of chunk 1"
)


@dataclass
class Cost:
    """What one run cost."""

    calls: int = 0
    sent: int = 0
    cached: int = 0
    written: int = 0
    seconds: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def __sub__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, field.name) - getattr(other, field.name) for field in fields(self)))


class Server(ThreadingHTTPServer):
    """OpenAI's chat interface: counts what it is asked, and has a stand-in answer.

    Args:
        upstream: A llama.cpp server that reads the prompts; without one they are only counted.
    """

    daemon_threads = True

    def __init__(self, upstream: str | None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = upstream
        self.total = Cost()
        self.lock = threading.Lock()  # one slot: one request after the other
        self.before: list[int] = []

    @property
    def api_base(self) -> str:
        """Base URL for clients."""
        return f"http://127.0.0.1:{self.server_port}/v1"

    def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        """Read a prompt and answer it."""
        prompt = "\n".join(_text(message) for message in body["messages"])
        numbers = re.findall(r'<chunk number="(\d+)"', prompt) or [""]
        answer = "\n".join(f"{number}: {ANSWER}" if number else ANSWER for number in numbers)
        with self.lock:
            sent, cached = self._read(prompt) if self.upstream is None else self._have_read(body)
            written = count_tokens(answer)
            self.total += Cost(1, sent, cached, written)
        usage = {"prompt_tokens": sent, "completion_tokens": written, "total_tokens": sent + written}
        message = {"role": "assistant", "content": answer}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        head = {"id": "1", "object": "chat.completion", "created": 0, "model": "counting"}
        return {**head, "choices": [choice], "usage": {**usage, "prompt_tokens_details": {"cached_tokens": cached}}}

    def _read(self, prompt: str) -> tuple[int, int]:
        tokens = get_tokenizer()(prompt)
        pairs = zip(tokens, self.before, strict=False)
        cached = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        self.before = tokens
        return len(tokens), cached

    def _have_read(self, body: dict[str, Any]) -> tuple[int, int]:
        data = json.dumps({"messages": body["messages"], "max_tokens": 1}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.upstream}/v1/chat/completions", data, headers)  # noqa: S310
        with urllib.request.urlopen(request, timeout=3600) as answer:  # noqa: S310
            usage = json.load(answer)["usage"]
        return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._send({"data": []})

    def do_POST(self) -> None:
        self._send(self.server.chat(json.loads(self.rfile.read(int(self.headers["Content-Length"])))))

    def _send(self, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _text(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)


@contextmanager
def serve(reader: str) -> Iterator[Server]:
    """Start a server that has read nothing yet."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    local = import_module("servers").llama_cpp  # the tests' own

    with nullcontext(None) if reader == "count" else local() as upstream:
        server = Server(upstream)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


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
    sources = count_by_source(result)  # theirs do not say where a context is from
    assert all(node.metadata["context"] for node in result)
    assert not {source for source in sources if source and not source.startswith("llm:")}, sources
    return cost


def runs(make: Callable[[Document, bool], TransformComponent], server: Server, chapter: str) -> list[Cost]:
    """From nothing, once more, one chunk edited, another prompt."""
    cache, costs = IngestionCache(), []
    for edited, other_prompt in ((False, False), (False, False), (True, False), (False, True)):
        document, nodes = load(chapter, edited=edited)
        costs.append(measure(server, make(document, other_prompt), cache, nodes))
    return costs


def main() -> None:
    """Measure both and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--read", choices=("count", "llama.cpp"), default="count")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    chapter = CHAPTER if given.read == "count" else SHORT_CHAPTER

    with serve(given.read) as server, tempfile.TemporaryDirectory() as folder:

        def ours(document: Document, other_prompt: bool) -> TransformComponent:
            return ContextualNodePostprocessor(
                "llm",
                llm=f"openai:counting@{server.api_base}",
                cache=Path(folder) / "contexts.sqlite",
                prompt=OURS_OTHER_PROMPT if other_prompt else None,
                documents=[document],
                context_window=WINDOW,
                chunk_timeout=600.0,  # so that a busy machine changes seconds and not counts
            )

        our_costs = runs(ours, server, chapter)

    with serve(given.read) as server:

        def theirs(document: Document, other_prompt: bool) -> TransformComponent:
            docstore = SimpleDocumentStore()
            docstore.add_documents([document])
            llm = OpenAILike(
                model="counting", api_base=server.api_base, api_key="none", is_chat_model=True, temperature=0.0,
                context_window=WINDOW, timeout=3600.0,
            )  # fmt: skip
            prompt = OTHER_PROMPT if other_prompt else DocumentContextExtractor.ORIGINAL_CONTEXT_PROMPT
            return DocumentContextExtractor(docstore=docstore, llm=llm, prompt=prompt, max_context_length=WINDOW)

        their_costs = runs(theirs, server, chapter)
    result = RESULTS / ("context_cost.md" if given.read == "count" else "context_cost_llama_cpp.md")
    result.write_text(report(our_costs, their_costs, chapter, given.read), "utf-8")
    print(result.read_text("utf-8"))


def report(ours: list[Cost], theirs: list[Cost], chapter: str, reader: str) -> str:
    """Draw the table."""
    document, nodes = load(chapter, edited=False)
    size = count_tokens(document.text)
    names = ("cold", "second run", "one chunk edited", "another prompt")
    rows: list[list[object]] = []
    for what, our, their in zip(names, ours, theirs, strict=True):
        for who, cost in (("DocumentContextExtractor", their), ("ours", our)):
            read = cost.sent - cost.cached
            without, cached = _seconds(cost.sent, cost.written), _seconds(read, cost.written)
            rows.append(
                [what, who, cost.calls, cost.sent, f"{cost.sent / size:.1f}", read, f"{read / size:.1f}", cost.written,
                 f"{without:.0f} s", f"{cached:.0f} s", f"{cost.seconds:.1f} s"]
            )  # fmt: skip
    header = (
        "run", "who", "calls", "prompt tokens sent", "in documents", "of these to be read", "in documents",
        "tokens written", "time without a prefix cache", "with one", "wall time here",
    )  # fmt: skip
    how = "counts prompts" if reader == "count" else "reads prompts by llama.cpp, SmolLM2-135M, one thread"
    command = "python benchmarks/context_cost.py" + ("" if reader == "count" else f" --read {reader}")
    return f"""# Cost of contexts from a language model

`{command}`; {machine()}.
`{chapter}`, {size} tokens in {len(nodes)} chunks; each side inside an IngestionPipeline with its cache.
The server {how} and has one slot, whose prefix cache spares what a prompt shares with
the one before; a stand-in writes the answers. "To be read" is what is left. The times are tokens at
{READING_RATE:.0f} read and {WRITING_RATE:.0f} written a second, as SmolLM2 did on two idle cores; the wall
time is that of
everything but writing, on this machine, which was not idle.

{markdown_table(header, rows)}
"""


def _seconds(read: int, written: int) -> float:
    return read / READING_RATE + written / WRITING_RATE


if __name__ == "__main__":
    main()

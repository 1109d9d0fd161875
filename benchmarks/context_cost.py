"""What contexts from a language model cost: ours beside LlamaIndex's DocumentContextExtractor.

Same document, same chunks, same server, same limit for an answer, each inside an IngestionPipeline with its cache. A
proxy between client and server counts requests and adds up what the server says it read. Four runs each: from
nothing, once more, with one chunk edited, with another prompt.

    python benchmarks/context_cost.py                                     # llama.cpp with SmolLM2, see tests/servers.py
    python benchmarks/context_cost.py --api-base http://HOST/v1 --model M   # a server of yours

The bundled model is small: it shows what is asked and read, and says nothing about the quality of contexts.
"""

from __future__ import annotations

import argparse
import json
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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import machine, markdown_table
from datasets import DATA
from llama_index.core.extractors import DocumentContextExtractor
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.prompts import PromptTemplate
from llama_index.core.schema import BaseNode, Document, TransformComponent
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.utils import get_tokenizer
from llama_index.llms.openai_like import OpenAILike

from llama_index_contextual.postprocessor import ContextualNodePostprocessor
from llama_index_contextual.postprocessor.contextual import count_by_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RESULT = Path(__file__).parent / "results" / "context_cost.md"
CHAPTER = "ch12-01-accepting-command-line-arguments.md"
CHUNKS = 24
ANSWER_TOKENS = 24
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
    contexts: int = 0

    def __sub__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, field.name) - getattr(other, field.name) for field in fields(self)))


class CountingProxy(ThreadingHTTPServer):
    """Passes requests on and counts what comes back."""

    daemon_threads = True

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = upstream
        self.total = Cost()
        self.lock = threading.Lock()

    @property
    def api_base(self) -> str:
        """Base URL for clients."""
        return f"http://127.0.0.1:{self.server_port}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: CountingProxy

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._pass(None)

    def do_POST(self) -> None:
        self._pass(self.rfile.read(int(self.headers["Content-Length"])))

    def _pass(self, body: bytes | None) -> None:
        url = self.server.upstream + self.path.removeprefix("/v1")
        keep = ("Content-Type", "Authorization")
        headers = {name: self.headers[name] for name in keep if name in self.headers}
        request = urllib.request.Request(url, body, headers)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=3600) as answer:  # noqa: S310
                status, data = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, data = error.code, error.read()
        if body is not None:
            self._count(data)
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:  # the client has given up
            pass

    def _count(self, data: bytes) -> None:
        usage = json.loads(data).get("usage") or {}
        with self.server.lock:
            total = self.server.total
            total.calls += 1
            total.sent += usage.get("prompt_tokens", 0)
            total.cached += (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
            total.written += usage.get("completion_tokens", 0)


@contextmanager
def proxy(api_base: str | None) -> Iterator[CountingProxy]:
    """Count what goes to a server: the given one, or a fresh llama.cpp that has read nothing yet."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    local = import_module("servers").llama_cpp  # the tests' own

    with nullcontext(api_base) if api_base else local() as found:
        server = CountingProxy(str(found) if api_base else f"{found}/v1")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def load(edited: bool) -> tuple[Document, list[BaseNode]]:
    """Read the chapter and cut it into chunks; perhaps with one word of one chunk changed."""
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


def measure(server: CountingProxy, step: TransformComponent, cache: Any, nodes: list[BaseNode]) -> Cost:
    """Run a step in a pipeline with a cache and say what that cost."""
    before = Cost(**vars(server.total))
    started = time.monotonic()
    result = IngestionPipeline(transformations=[step], cache=cache).run(nodes=nodes)
    cost = Cost(**vars(server.total)) - before
    cost.seconds = time.monotonic() - started
    cost.contexts = sum(bool(node.metadata.get("context")) for node in result)
    sources = count_by_source(result)
    if "" not in sources:  # ours: a context that fell back is none from the model
        cost.contexts = sum(count for source, count in sources.items() if source.startswith("llm:"))
    return cost


def runs(make: Callable[[Document, bool], TransformComponent], server: CountingProxy) -> list[Cost]:
    """From nothing, once more, one chunk edited, another prompt."""
    from llama_index.core.ingestion import IngestionCache

    cache, costs = IngestionCache(), []
    for edited, other_prompt in ((False, False), (False, False), (True, False), (False, True)):
        document, nodes = load(edited)
        costs.append(measure(server, make(document, other_prompt), cache, nodes))
        print(costs[-1], flush=True)
    return costs


def main() -> None:
    """Measure both and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--api-base")
    parser.add_argument("--model", default="smollm2:135m")
    given = parser.parse_args()
    warnings.simplefilter("ignore")

    with proxy(given.api_base) as server, tempfile.TemporaryDirectory() as folder:

        def ours(document: Document, other_prompt: bool) -> TransformComponent:
            return ContextualNodePostprocessor(
                "llm",
                llm=f"openai:{given.model}@{server.api_base}",
                cache=Path(folder) / "contexts.sqlite",
                prompt=OURS_OTHER_PROMPT if other_prompt else None,
                documents=[document],
                max_output_tokens=ANSWER_TOKENS,
                chunk_timeout=600.0,  # so that a busy machine changes seconds and not counts
            )

        print("ours", flush=True)
        our_costs = runs(ours, server)

    with proxy(given.api_base) as server:

        def theirs(document: Document, other_prompt: bool) -> TransformComponent:
            docstore = SimpleDocumentStore()
            docstore.add_documents([document])
            llm = OpenAILike(
                model=given.model, api_base=server.api_base, api_key="none", is_chat_model=True, temperature=0.0,
                context_window=8192, timeout=3600.0,
            )  # fmt: skip
            prompt = OTHER_PROMPT if other_prompt else DocumentContextExtractor.ORIGINAL_CONTEXT_PROMPT
            return DocumentContextExtractor(
                docstore=docstore, llm=llm, prompt=prompt, max_context_length=8192, max_output_tokens=ANSWER_TOKENS
            )

        print("theirs", flush=True)
        their_costs = runs(theirs, server)
    RESULT.write_text(report(our_costs, their_costs, given.model), "utf-8")
    print(RESULT.read_text("utf-8"))


def report(ours: list[Cost], theirs: list[Cost], model: str) -> str:
    """Draw the table."""
    document, nodes = load(edited=False)
    size = len(get_tokenizer()(document.text))
    rows: list[list[object]] = []
    for what, our, their in zip(
        ("cold", "second run", "one chunk edited", "another prompt"), ours, theirs, strict=True
    ):
        for who, cost in (("DocumentContextExtractor", their), ("ours", our)):
            read = cost.sent - cost.cached
            ratio = f"{their.seconds / our.seconds:.1f}" if who == "ours" and their.seconds > 1 else ""
            rows.append(
                [what, who, cost.calls, cost.sent, f"{cost.sent / size:.1f}", read, f"{read / size:.1f}", cost.written,
                 f"{cost.contexts} of {len(nodes)}", ratio]
            )  # fmt: skip
    header = (
        "run", "who", "calls", "prompt tokens sent", "documents' worth", "of them not in the server's cache",
        "documents' worth", "tokens written", "contexts from the model", "times faster",
    )  # fmt: skip
    return f"""# Cost of contexts from a language model

`python benchmarks/context_cost.py`; {machine()}; model {model} on loopback.
One document of {size} tokens in {len(nodes)} chunks, {ANSWER_TOKENS} tokens per context for both, both inside an
IngestionPipeline with its cache. Tokens are the server's own count; a document's worth is LlamaIndex's.
"Contexts from the model" says how many chunks got one: DocumentContextExtractor takes any answer, ours refuses empty
ones, refusals and copies of the chunk, and gives those chunks a pattern context.
SmolLM2-135M shows plumbing, never quality.

{markdown_table(header, rows)}
"""


if __name__ == "__main__":
    main()

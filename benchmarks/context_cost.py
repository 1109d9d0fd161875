"""What contexts from a language model cost: ours beside LlamaIndex's DocumentContextExtractor.

    python benchmarks/context_cost.py

Same document, same chunks, same model, each inside an IngestionPipeline with its cache. Four runs
each: from nothing, once more, with one chunk edited, with another prompt. The model is a stand-in
that counts requests and prompt tokens, and among these those that a prefix cache would spare it: it
has one slot and compares each prompt with the one before, as llama.cpp and Ollama do. It answers
one line of 25 tokens per chunk. Nothing here says anything about the quality of contexts.
"""

from __future__ import annotations

import re
import tempfile
import time
import warnings
from collections import Counter
from itertools import count, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import machine, markdown_table
from datasets import DATA
from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.extractors import DocumentContextExtractor
from llama_index.core.ingestion import IngestionCache, IngestionPipeline
from llama_index.core.llms import CompletionResponse, LLMMetadata, MockLLM
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.prompts import PromptTemplate
from llama_index.core.schema import BaseNode, Document, TransformComponent
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.utils import get_tokenizer

from llama_index_contextual.context.postprocessor import ContextualNodePostprocessor
from llama_index_contextual.context.prompts import CONTEXT_PROMPT, count_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Step = Callable[
        ["CountingLLM", Document, bool], TransformComponent
    ]  # of a document and perhaps another prompt

WINDOW = 32768
CHAPTER = "ch20-01-unsafe-rust.md"
CHUNKS = 24
READING_RATE, WRITING_RATE = (
    320.0,
    25.0,
)  # tokens a second of SmolLM2 on two cores, to turn tokens into time
RUNS = ("cold", "second run", "one chunk edited", "another prompt")
ANSWER = "Explains this part of the chapter to readers who look for what it is about and for how it fits the whole book."  # noqa: E501
OTHER_PROMPT = "Name the subject of the chunk in one short sentence. Answer only with it."
# opens as ours does: what a user changes is the instruction, as in theirs
OURS_OTHER_PROMPT = PromptTemplate(
    CONTEXT_PROMPT.partition("Chunks of")[0]
    + "{chunks}\nName the subject of each chunk in one short sentence. "
    "Answer with one line per chunk, its number first:\n1: subject of chunk 1"
)


class CountingLLM(MockLLM):
    """Answers at once; counts calls, tokens sent, tokens in its cache, and tokens written."""

    total: Any = Field(default_factory=Counter)
    _before: list[int] = PrivateAttr(default_factory=list)

    @property
    def metadata(self) -> LLMMetadata:
        """A window that the chapter fits into."""
        return LLMMetadata(model_name="counting", context_window=WINDOW)

    def complete(self, prompt: str, formatted: bool = False, **_: Any) -> CompletionResponse:  # noqa: ARG002
        """One line for each chunk."""
        numbers = re.findall(r'<chunk number="(\d+)"', prompt) or [""]
        answer = "\n".join(f"{number}: {ANSWER}" if number else ANSWER for number in numbers)
        tokens = get_tokenizer()(prompt)
        pairs = zip(tokens, self._before, strict=False)
        cached = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        self._before = tokens
        self.total.update(calls=1, sent=len(tokens), cached=cached, written=count_tokens(answer))
        return CompletionResponse(text=answer)


def counting_llm() -> CountingLLM:
    """Return a model that has read nothing yet, and gets messages without role names."""
    return CountingLLM(
        messages_to_prompt=lambda messages: "\n".join(message.content or "" for message in messages)
    )


def load(*, edited: bool) -> tuple[Document, list[BaseNode]]:
    """Return the chapter and its chunks, perhaps with one word of one chunk changed."""
    path = next((DATA / "markdown" / "rust-book").rglob(CHAPTER))
    document = Document(text=path.read_text("utf-8"), id_=CHAPTER, metadata={"path": CHAPTER})
    size = max(40, len(get_tokenizer()(document.text)) // CHUNKS)
    options: dict[str, Any] = {
        "include_metadata": False,
        "id_func": lambda number, _: f"{CHAPTER}#{number}",
    }
    splitters = (
        SentenceSplitter(chunk_size=chunk_size, chunk_overlap=0, **options)
        for chunk_size in count(size, 2)
    )
    nodes = next(nodes for splitter in splitters if len(nodes := splitter([document])) <= CHUNKS)
    if edited:
        middle = nodes[len(nodes) // 2]
        old, new = middle.get_content(), middle.get_content() + " Edited."
        document.set_content(document.text.replace(old, new))
        middle.set_content(new)
    return document, nodes


def measure(make: Step, llm: CountingLLM) -> Iterator[tuple[Counter[str], float]]:
    """Return counts and seconds of each of the four runs."""
    cache = IngestionCache()
    for edited, other_prompt in ((False, False), (False, False), (True, False), (False, True)):
        document, nodes = load(edited=edited)
        before, started = Counter(llm.total), time.monotonic()
        pipeline = IngestionPipeline(
            transformations=[make(llm, document, other_prompt)], cache=cache
        )
        result = pipeline.run(nodes=nodes)
        sources = {
            str(node.metadata.get("context_source", "")) for node in result
        }  # theirs name none
        assert all(node.metadata["context"] for node in result)
        assert not {source for source in sources if source and not source.startswith("llm:")}, (
            sources
        )
        yield llm.total - before, time.monotonic() - started


def theirs(llm: CountingLLM, document: Document, other_prompt: bool) -> TransformComponent:
    """LlamaIndex's step."""
    docstore = SimpleDocumentStore()
    docstore.add_documents([document])
    prompt = OTHER_PROMPT if other_prompt else DocumentContextExtractor.ORIGINAL_CONTEXT_PROMPT
    return DocumentContextExtractor(
        docstore=docstore, llm=llm, prompt=prompt, max_context_length=WINDOW
    )


def main() -> None:
    """Measure both and print the table."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "contexts.sqlite"

        def ours(llm: CountingLLM, document: Document, other_prompt: bool) -> TransformComponent:
            prompt = OURS_OTHER_PROMPT if other_prompt else None
            return ContextualNodePostprocessor(
                "llm", llm=llm, cache=cache, prompt=prompt, documents=[document]
            )

        our_costs, their_costs = (list(measure(make, counting_llm())) for make in (ours, theirs))
    document, nodes = load(edited=False)
    size, rows = count_tokens(document.text), list[list[object]]()
    for run, *costs in zip(RUNS, their_costs, our_costs, strict=True):
        for name, (cost, seconds) in zip(("DocumentContextExtractor", "ours"), costs, strict=True):
            read = cost["sent"] - cost["cached"]
            times = [
                tokens / READING_RATE + cost["written"] / WRITING_RATE
                for tokens in (cost["sent"], read)
            ]
            documents = [f"{tokens / size:.1f}" for tokens in (cost["sent"], read)]
            rows.append(
                [run, name, cost["calls"], cost["sent"], documents[0], read, documents[1],
                cost["written"],
                 *(f"{duration:.0f} s" for duration in times), f"{seconds:.1f} s"]
            )  # fmt: skip
    header = (
        "run", "who", "calls", "prompt tokens sent", "in documents", "of these to be read",
        "in documents",
        "tokens written", "time without a prefix cache", "with one", "wall time here",
    )  # fmt: skip
    print(
        f"{machine()}.\n`{CHAPTER}`, {size} tokens in {len(nodes)} chunks.\n\n"
        f"{markdown_table(header, rows)}\n"
    )


if __name__ == "__main__":
    main()

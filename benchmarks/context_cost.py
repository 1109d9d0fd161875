"""Compare the cost of contexts with that of LlamaIndex's DocumentContextExtractor.

    python benchmarks/context_cost.py

Both get the same document, the same chunks and the same model, in an IngestionPipeline with its
cache. Each has four runs: a first one, a second one, one with an edited chunk, and one with another
prompt. The model is a stand-in that counts requests and prompt tokens. It also counts the tokens
that a prefix cache would save: like llama.cpp and Ollama, it has one slot and compares each prompt
with the one before. It answers one line of 25 tokens per chunk. The quality of contexts is not
measured.
"""

from __future__ import annotations

import re
import tempfile
import time
import warnings
from collections import Counter
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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
    from collections.abc import Callable

    # Returns the step that writes contexts, given a document and whether to use another prompt.
    StepMaker = Callable[["CountingLLM", Document, bool], TransformComponent]

WINDOW = 32768
CHAPTER = "ch20-01-unsafe-rust.md"
CHUNKS = 24
# Tokens per second of SmolLM2 on two cores, to convert tokens to time.
READING_RATE = 320.0
WRITING_RATE = 25.0


class Run(NamedTuple):
    """A run of the pipeline, after the earlier ones."""

    name: str
    is_edited: bool = False
    has_other_prompt: bool = False


RUNS = (
    Run("cold"),
    Run("second run"),
    Run("one chunk edited", is_edited=True),
    Run("another prompt", has_other_prompt=True),
)
ANSWER = "Explains this part of the chapter to readers who look for what it is about and for how it fits the whole book."  # noqa: E501
OTHER_PROMPT = "Name the subject of the chunk in one short sentence. Answer only with it."
# It starts like the default prompt, because users only change the instruction.
OURS_OTHER_PROMPT = PromptTemplate(
    CONTEXT_PROMPT.partition("Chunks of")[0]
    + "{chunks}\nName the subject of each chunk in one short sentence. "
    "Answer with one line per chunk, its number first:\n1: subject of chunk 1"
)


class CountingLLM(MockLLM):
    """A model that answers at once, and counts calls and tokens.

    Attributes:
        total: The numbers of ``calls``, and of tokens ``sent``, ``cached`` and ``written``.
    """

    total: Any = Field(default_factory=Counter)
    _before: list[int] = PrivateAttr(default_factory=list)

    @property
    def metadata(self) -> LLMMetadata:
        """Return a context window that the chapter fits into."""
        return LLMMetadata(model_name="counting", context_window=WINDOW)

    def complete(self, prompt: str, formatted: bool = False, **_: Any) -> CompletionResponse:  # noqa: ARG002
        """Return one line for each chunk."""
        numbers = re.findall(r'<chunk number="(\d+)"', prompt) or [""]
        answer = "\n".join(f"{number}: {ANSWER}" if number else ANSWER for number in numbers)
        tokens = get_tokenizer()(prompt)
        cached = 0
        for token, token_before in zip(tokens, self._before, strict=False):
            if token != token_before:
                break
            cached += 1
        self._before = tokens
        self.total.update(calls=1, sent=len(tokens), cached=cached, written=count_tokens(answer))
        return CompletionResponse(text=answer)


def counting_llm() -> CountingLLM:
    """Return a new model, which gets messages without role names."""
    return CountingLLM(
        messages_to_prompt=lambda messages: "\n".join(message.content or "" for message in messages)
    )


def chapter_in_chunks(*, is_edited: bool) -> tuple[Document, list[BaseNode]]:
    """Return the chapter and its chunks, perhaps with a word added to one of them."""
    path = next((DATA / "markdown" / "rust-book").rglob(CHAPTER))
    document = Document(text=path.read_text("utf-8"), id_=CHAPTER, metadata={"path": CHAPTER})
    nodes = split_into(CHUNKS, document)
    if is_edited:
        middle = nodes[len(nodes) // 2]
        before = middle.get_content()
        after = f"{before} Edited."
        document.set_content(document.text.replace(before, after))
        middle.set_content(after)
    return document, nodes


def split_into(chunk_count: int, document: Document) -> list[BaseNode]:
    """Return a document in at most so many chunks of equal size."""
    token_count = len(get_tokenizer()(document.text))
    for size in count(max(40, token_count // chunk_count), 2):
        splitter = SentenceSplitter(
            chunk_size=size,
            chunk_overlap=0,
            include_metadata=False,
            id_func=lambda number, _: f"{CHAPTER}#{number}",
        )
        nodes = splitter([document])
        if len(nodes) <= chunk_count:
            return list(nodes)
    raise AssertionError("unreachable")


class Cost(NamedTuple):
    """The cost of a run.

    Attributes:
        counts: The numbers of :class:`CountingLLM`.
        seconds: The time of the run on this machine.
    """

    counts: Counter[str]
    seconds: float

    def cells(self, document_tokens: int) -> list[object]:
        """Return the cells of a row, given the length of the document."""
        sent = self.counts["sent"]
        read = sent - self.counts["cached"]
        writing_seconds = self.counts["written"] / WRITING_RATE
        return [
            self.counts["calls"],
            sent,
            f"{sent / document_tokens:.1f}",
            read,
            f"{read / document_tokens:.1f}",
            self.counts["written"],
            f"{sent / READING_RATE + writing_seconds:.0f} s",
            f"{read / READING_RATE + writing_seconds:.0f} s",
            f"{self.seconds:.1f} s",
        ]


def measure(step_maker: StepMaker) -> list[Cost]:
    """Return the cost of each run."""
    llm = counting_llm()
    cache = IngestionCache()
    costs = []
    for run in RUNS:
        document, nodes = chapter_in_chunks(is_edited=run.is_edited)
        counts_before = Counter(llm.total)
        started = time.monotonic()
        step = step_maker(llm, document, run.has_other_prompt)
        result = IngestionPipeline(transformations=[step], cache=cache).run(nodes=nodes)
        for node in result:
            assert node.metadata["context"]
            # LlamaIndex's step names no source.
            assert str(node.metadata.get("context_source", "llm:")).startswith("llm:")
        costs.append(Cost(llm.total - counts_before, time.monotonic() - started))
    return costs


def llama_index_step(
    llm: CountingLLM, document: Document, has_other_prompt: bool
) -> TransformComponent:
    """Return LlamaIndex's step."""
    docstore = SimpleDocumentStore()
    docstore.add_documents([document])
    prompt = OTHER_PROMPT if has_other_prompt else DocumentContextExtractor.ORIGINAL_CONTEXT_PROMPT
    return DocumentContextExtractor(
        docstore=docstore, llm=llm, prompt=prompt, max_context_length=WINDOW
    )


def main() -> None:
    """Measure both steps and print a table."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "contexts.sqlite"

        def our_step(
            llm: CountingLLM, document: Document, has_other_prompt: bool
        ) -> TransformComponent:
            prompt = OURS_OTHER_PROMPT if has_other_prompt else None
            return ContextualNodePostprocessor(
                "llm", llm=llm, cache=cache, prompt=prompt, documents=[document]
            )

        our_costs = measure(our_step)
        their_costs = measure(llama_index_step)
    document, nodes = chapter_in_chunks(is_edited=False)
    document_tokens = count_tokens(document.text)
    rows: list[list[object]] = []
    for run, their_cost, our_cost in zip(RUNS, their_costs, our_costs, strict=True):
        rows.append([run.name, "DocumentContextExtractor", *their_cost.cells(document_tokens)])
        rows.append([run.name, "ours", *our_cost.cells(document_tokens)])
    header = [
        "run",
        "who",
        "calls",
        "prompt tokens sent",
        "in documents",
        "of these to be read",
        "in documents",
        "tokens written",
        "time without a prefix cache",
        "with one",
        "wall time here",
    ]
    print(f"{machine()}.\n`{CHAPTER}`, {document_tokens} tokens in {len(nodes)} chunks.\n")
    print(markdown_table(header, rows))


if __name__ == "__main__":
    main()

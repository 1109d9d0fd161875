"""``ContextualNodePostprocessor("llm")`` where ``DocumentContextExtractor`` stood, on one model."""

from __future__ import annotations

import asyncio
import re
import warnings

import pytest
from llama_index.core import Document
from llama_index.core.base.llms.types import ChatMessage, ChatResponse
from llama_index.core.extractors import DocumentContextExtractor
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import MetadataMode, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from side_by_side import Case, compare, refusal

from llama_index_contextual import ContextualNodePostprocessor

ABOUT = "About the harbour and its pilots."
TEXT = " ".join(f"Ship number {number} waits for the tide." for number in range(24))
CALLS: list[str] = []


@pytest.fixture(autouse=True)
def _one_attempt(monkeypatch):
    monkeypatch.setattr("llama_index_contextual.context.calls.ATTEMPTS", 1)


class Situates(MockLLM):
    """Says the same of each chunk that it is asked about: alone, or by number in our prompt."""

    @classmethod
    def class_name(cls):
        return "Situates"

    def chat(self, messages, **_):
        asked = "\n".join(str(message.content) for message in messages)
        CALLS.append(asked)
        numbers = re.findall(r'<chunk number="(\d+)"', asked)
        said = "\n".join(f"{number}: {ABOUT}" for number in numbers) or ABOUT
        return ChatResponse(message=ChatMessage(role="assistant", content=said))

    async def achat(self, messages, **options):
        return self.chat(messages, **options)


class Fails(Situates):
    """Cannot be reached."""

    def chat(self, messages, **_):
        raise ConnectionError


def harbour(**metadata):
    return Document(text=TEXT, id_="log.txt", metadata={"author": "Ana", **metadata})


def store():
    docstore = SimpleDocumentStore()
    docstore.add_documents([harbour()])
    return docstore


def stock(llm=None, docstore=None):
    return DocumentContextExtractor(
        docstore=docstore or store(), llm=llm or Situates(), num_workers=1
    )


def ours(llm=None, docstore=None):
    options = {"cache": False}
    return ContextualNodePostprocessor(
        "llm", llm=llm or Situates(), docstore=docstore or store(), **options
    )


def chunks(**metadata):
    splitter = SentenceSplitter(
        chunk_size=64, chunk_overlap=0, id_func=lambda number, _: str(number)
    )
    return splitter([harbour(**metadata)])


def contexts(made):
    return [node.metadata.get("context") for node in made]


def in_a_pipeline(make, **options):
    splitter = SentenceSplitter(chunk_size=64, chunk_overlap=0)
    return IngestionPipeline(transformations=[splitter, make(**options)]).run(documents=[harbour()])


def calls(make):
    CALLS.clear()
    make()(chunks())
    return len(CALLS)


def again(make):
    step, made = make(), chunks()
    step(made)
    CALLS.clear()
    step(made)
    return len(CALLS)


def broken(make):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ours says how many fell back, and why
        made = make(Fails())(chunks(path="log.txt"))
    return set(contexts(made))


def loose(make):
    return contexts(make()([TextNode(text="A chunk of no document.", id_="1")]))


def shown(made, mode):
    return [ABOUT in node.get_content(metadata_mode=mode) for node in made]


CASES = [
    Case("each chunk has a context", lambda make: contexts(make()(chunks()))),
    Case("so it has in a pipeline", lambda make: contexts(in_a_pipeline(make))),
    Case(
        "acall gives what a call gives", lambda make: contexts(asyncio.run(make().acall(chunks())))
    ),
    Case(
        "nodes keep their ids and order", lambda make: [node.node_id for node in make()(chunks())]
    ),
    Case("texts stay as they are", lambda make: [node.get_content() for node in make()(chunks())]),
    Case("a context is embedded", lambda make: shown(make()(chunks()), MetadataMode.EMBED)),
    Case("a context is not displayed", lambda make: shown(make()(chunks()), MetadataMode.NONE)),
    Case(
        "what documents brought stays",
        lambda make: [node.metadata["author"] for node in make()(chunks())],
    ),
    Case(
        "a key of the document's own stays", lambda make: contexts(make()(chunks(context="mine")))
    ),
    Case(
        "the prompt holds the document",
        lambda make: (calls(make), TEXT in " ".join(CALLS[0].split()))[1],
        gives=True,
    ),
    Case("no nodes need no call", lambda make: make()([]), gives=[]),
    Case("a second run over the same nodes makes no call", again, gives=0),
    Case(
        "the name in a serialised pipeline is its class's",
        lambda make: make().to_dict()["class_name"] == make().class_name(),
    ),
    Case(
        "it can be copied", lambda make: type(make().model_copy()).__name__ == type(make()).__name__
    ),
    Case(
        "no documents at all is no error",
        lambda make: contexts(make(docstore=SimpleDocumentStore())([])),
        gives=[],
    ),
    Case(
        "where the document brought a context, ours stands beside it",
        lambda make: {
            node.metadata.get("contextual_context") for node in make()(chunks(context="mine"))
        },
        stock={None},
        gives={ABOUT},
        differs="extractor-taken-key",
    ),
    Case(
        "what a model that answers sees",
        lambda make: set(shown(make()(chunks()), MetadataMode.LLM)),
        stock={True},
        gives={False},
        differs="extractor-llm-view",
    ),
    Case(
        "how often a model is asked about four chunks",
        calls,
        stock=4,
        gives=1,
        differs="extractor-calls",
    ),
    Case(
        "a chunk whose call failed",
        broken,
        stock={None},
        gives={"Document: log.txt"},
        differs="extractor-failure",
    ),
    Case(
        "a chunk of a document that is in no docstore",
        loose,
        stock=[None],
        gives=[ABOUT],
        differs="extractor-docstore",
    ),
    Case(
        "without llm= and Settings.llm",
        lambda make: refusal(lambda: type(make.bare()).__name__),
        stock="AssertionError",
        gives="'ContextualNodePostprocessor'",
        differs="extractor-no-llm",
    ),
]
stock.bare = lambda: DocumentContextExtractor(docstore=store(), llm=None)
ours.bare = lambda: ContextualNodePostprocessor("llm", cache=False)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_document_context_extractor(case, monkeypatch):
    from llama_index.core import Settings

    monkeypatch.setattr(Settings, "_llm", None)
    compare(case, stock, ours)

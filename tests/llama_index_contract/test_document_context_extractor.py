"""``ContextualNodePostprocessor("llm")`` in place of ``DocumentContextExtractor``, on one model."""

from __future__ import annotations

import asyncio
import re
import warnings

import pytest
from llama_index.core import Document, Settings
from llama_index.core.base.llms.types import ChatMessage, ChatResponse
from llama_index.core.extractors import DocumentContextExtractor
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import MetadataMode, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from side_by_side import comparison, refusal

from llama_index_contextual import ContextualNodePostprocessor

ABOUT = "About the harbour and its pilots."
TEXT = " ".join(f"Ship number {number} waits for the tide." for number in range(24))
CALLS: list[str] = []


@pytest.fixture(autouse=True)
def _one_attempt_and_no_default_model(monkeypatch):
    monkeypatch.setattr(Settings, "_llm", None)
    monkeypatch.setattr("llama_index_contextual.context.calls.ATTEMPTS", 1)


class Situates(MockLLM):
    """A model that writes the same about each chunk: alone, or by number in our prompt."""

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
    """A model that cannot be reached."""

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


def shown(made, mode):
    return [ABOUT in node.get_content(metadata_mode=mode) for node in made]


stock.bare = lambda: DocumentContextExtractor(docstore=store(), llm=None)
ours.bare = lambda: ContextualNodePostprocessor("llm", cache=False)


compared = comparison(stock, ours)


@compared()
def test_each_chunk_has_a_context(make):
    return contexts(make()(chunks()))


@compared()
def test_each_chunk_has_a_context_in_a_pipeline(make):
    return contexts(in_a_pipeline(make))


@compared()
def test_acall_gives_what_a_call_gives(make):
    return contexts(asyncio.run(make().acall(chunks())))


@compared()
def test_nodes_keep_their_ids_and_order(make):
    return [node.node_id for node in make()(chunks())]


@compared()
def test_texts_stay_as_they_are(make):
    return [node.get_content() for node in make()(chunks())]


@compared()
def test_a_context_is_embedded(make):
    return shown(make()(chunks()), MetadataMode.EMBED)


@compared()
def test_a_context_is_not_displayed(make):
    return shown(make()(chunks()), MetadataMode.NONE)


@compared()
def test_metadata_of_documents_stay(make):
    return [node.metadata["author"] for node in make()(chunks())]


@compared()
def test_the_documents_own_key_stays(make):
    return contexts(make()(chunks(context="mine")))


@compared(gives=True)
def test_the_prompt_holds_the_document(make):
    return (calls(make), TEXT in " ".join(CALLS[0].split()))[1]


@compared(gives=[])
def test_no_nodes_need_no_call(make):
    return make()([])


@compared(gives=0)
def test_a_second_run_over_the_same_nodes_makes_no_call(make):
    step, made = make(), chunks()
    step(made)
    CALLS.clear()
    step(made)
    return len(CALLS)


@compared()
def test_a_serialised_pipeline_has_the_class_name(make):
    return make().to_dict()["class_name"] == make().class_name()


@compared()
def test_it_can_be_copied(make):
    return type(make().model_copy()).__name__ == type(make()).__name__


@compared(gives=[])
def test_no_documents_at_all_is_no_error(make):
    return contexts(make(docstore=SimpleDocumentStore())([]))


@compared(stock={None}, ours={ABOUT}, differs="extractor-taken-key")
def test_a_context_of_the_document_is_kept_beside_ours(make):
    return {node.metadata.get("contextual_context") for node in make()(chunks(context="mine"))}


@compared(stock={True}, ours={False}, differs="extractor-llm-view")
def test_what_a_model_that_answers_sees(make):
    return set(shown(make()(chunks()), MetadataMode.LLM))


@compared(stock=4, ours=1, differs="extractor-calls")
def test_how_often_a_model_is_asked_about_four_chunks(kind):
    return calls(kind)


@compared(stock={None}, ours={"Document: log.txt"}, differs="extractor-failure")
def test_a_chunk_whose_call_failed(make):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ours says how many fell back, and why
        made = make(Fails())(chunks(path="log.txt"))
    return set(contexts(made))


@compared(stock=[None], ours=[ABOUT], differs="extractor-docstore")
def test_a_chunk_of_a_document_that_is_in_no_docstore(make):
    return contexts(make()([TextNode(text="A chunk of no document.", id_="1")]))


@compared(stock="AssertionError", ours="'ContextualNodePostprocessor'", differs="extractor-no-llm")
def test_without_llm_and_settings_llm(make):
    return refusal(lambda: type(make.bare()).__name__)

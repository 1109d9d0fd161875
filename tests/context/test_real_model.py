"""Contexts from a real model on this machine: requests, caching and counts, but not its words."""

from __future__ import annotations

import asyncio

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import Document, TextNode
from llama_index.core.utils import get_tokenizer
from llama_index.llms.ollama import Ollama
from llm_runs import count_by_source
from servers import llama_cpp

from llama_index_contextual.app.settings.models import NamedModel
from llama_index_contextual.context import calls
from llama_index_contextual.context.documents import group_by_document
from llama_index_contextual.context.generators.llm import LLMContextGenerator
from llama_index_contextual.context.postprocessor import ContextualNodePostprocessor

pytestmark = pytest.mark.server

# CI's machines are slow and shared.
PATIENT = {"batch_size": 2}
# Reasons for rejecting a context that are the small model's fault, and not the client's.
WORDS = {
    "empty", "refused", "repetition", "invented", "copy of the prompt", "copy",
}  # fmt: skip
TEXT = (
    "# Harbour log\n\n"
    "The ferry Aurora left the harbour of Bergen at seven in the morning with forty passengers. "
    "Captain Solveig reported calm water and good sight all the way to the island of Fedje. "
) + "\n\n".join(
    f"On day {day} the crew painted cabin {day} and counted the ropes on deck twice."
    for day in range(8)
)


@pytest.fixture(autouse=True)
def short_answers(monkeypatch):
    """Let the model write little, because its words do not matter and each token takes time."""
    monkeypatch.setattr(calls, "OUTPUT_TOKENS", 16)


@pytest.fixture
def document():
    return Document(text=TEXT, metadata={"path": "log.md"})


@pytest.fixture
def nodes(document):
    return SentenceSplitter(chunk_size=64, chunk_overlap=0)([document])[:4]


def run(step, nodes):
    """Check that each chunk has a context, whatever the small model writes."""
    step(nodes)
    assert all(node.metadata["context"] for node in nodes)


@pytest.mark.filterwarnings("ignore::llama_index_contextual.utils.errors.ContextualWarning")
def test_anthropic_by_object(llama_server, document, nodes):
    anthropic = pytest.importorskip("llama_index.llms.anthropic")
    llm = anthropic.Anthropic(
        model="claude-haiku-4-5", base_url=llama_server.url, api_key="none", max_retries=0
    )
    asyncio.run(llm.achat([ChatMessage("Hello.")], max_tokens=2))  # on a loop that ends afterwards
    step = ContextualNodePostprocessor("llm", llm=llm, cache=False, documents=[document], **PATIENT)
    run(step, nodes)
    assert step.usage.calls >= 2
    assert set(step.usage.failed) <= WORDS
    assert step.usage.tokens.prompt > step.usage.tokens.cached > 0
    step.close()
    run(step, nodes)  # a closed generator opens again
    assert set(step.usage.failed) <= WORDS


@pytest.mark.filterwarnings("ignore::llama_index_contextual.utils.errors.ContextualWarning")
def test_openai_interface_by_name(llama_server, document, nodes, tmp_path):
    llm = NamedModel(f"openai:{llama_server.model}@{llama_server.api_base}", 48, 600.0)
    step = ContextualNodePostprocessor(
        "llm", llm=llm, cache=tmp_path / "c.sqlite", documents=[document], **PATIENT
    )
    run(step, nodes)
    usage = step.usage
    assert usage.calls >= 2
    assert set(count_by_source(nodes)) <= {f"llm:{llama_server.model}+pattern", "pattern"}
    assert usage.generated + usage.failed.total() == len(nodes)
    # The document comes first in every prompt, so after the first call the server has read it
    # already.
    assert usage.tokens.cached > (usage.calls - 1) * 0.8 * len(get_tokenizer()(TEXT))
    step.close()


@pytest.mark.filterwarnings("ignore::llama_index_contextual.utils.errors.ContextualWarning")
@pytest.mark.parametrize("by", ["name", "object"])
def test_ollama_interface(ollama_server, nodes, by):
    named = NamedModel(f"ollama:{ollama_server.model}@{ollama_server.url}", 48, 600.0)
    given = Ollama(
        model=ollama_server.model,
        base_url=ollama_server.url,
        context_window=ollama_server.context,
        request_timeout=120,
        additional_kwargs={"num_predict": 24},
    )
    llm = named if by == "name" else given
    step = ContextualNodePostprocessor("llm", llm=llm, cache=False, **PATIENT)
    run(step, nodes[:1])
    assert step.usage.tokens.prompt > 0
    assert step.usage.generated + step.usage.failed.total() == 1


def test_a_model_that_ollama_lacks_is_named_with_a_hint(ollama_server):
    generator = LLMContextGenerator(
        NamedModel(f"ollama:qwen3:0.6b@{ollama_server.url}", 48), cache=False, fallback=None
    )
    generator.generate_all(group_by_document([TextNode(text="The ferry left at seven.")]))
    assert generator.usage.failed == {
        "HTTP 404 (check the name of the model and the address of its server)": 1
    }


def test_overflow_as_llama_cpp_reports_it_names_the_setting(llama_server):
    with llama_cpp("--context", "1024") as url:
        llm = NamedModel(f"openai:{llama_server.model}@{url}/v1", 24, 600.0)()
        llm.context_window = 99_000
        generator = LLMContextGenerator(llm, cache=False, batch_size=1, fallback=None)
        long = "\n\n".join(f"Entry {number}: {TEXT}" for number in range(10))
        nodes = SentenceSplitter(chunk_size=128, chunk_overlap=0)([Document(text=long)])
        [chunks] = group_by_document(nodes)
        generator.generate(chunks.nodes[:1], chunks.document)
        assert generator.usage.calls == 1
        assert generator.usage.failed == {"prompt too long (set the model's context_window)": 1}

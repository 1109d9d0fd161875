"""The statements of the five documents that this package began with, one test a statement.

The documents are a feature request ("contextual retrieval", FEATURE), a decision record (ADR), the
description of ``memory_context`` (MEMORY), a scope assessment of semantic chunking (CHUNKING) and a
design document (DESIGN). A test is named by its document and the row of its statement there.
"""

from __future__ import annotations

import re
import time
from datetime import date
from pathlib import Path

import chromadb
import pytest
from fake_model import Reply, always
from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.core.schema import MetadataMode, TextNode
from llama_index.vector_stores.chroma import ChromaVectorStore

from llama_index_contextual import (
    ContextualBM25Retriever,
    ContextualFusionRetriever,
    ContextualNodePostprocessor,
    ContextualVectorRetriever,
    HeadingAwareMarkdownNodeParser,
    MemoryContext,
)
from llama_index_contextual.app import LocalEmbedding
from llama_index_contextual.app.folder.sources import stamp_if_stable
from llama_index_contextual.app.settings.models import NamedModel
from llama_index_contextual.context.base import ContextGenerator
from llama_index_contextual.context.generators.llm import LLMContextGenerator
from llama_index_contextual.memory.gate import derive_queries
from llama_index_contextual.memory.ranking import derived_score
from llama_index_contextual.retrievers.query_dates import lexicon_of

NOTE = """# Morning Check-in

Coffee with Ana.

## Task Updates

The default value is 60 and can be adjusted via the config file.
"""
PATH = "memory/2026-01-28.md"
CODE = '''"""Hybrid search."""


class Engine:
    def search(self, query):
        """Run BM25 and vectors, and fuse their ranks."""
        return fuse(query)
'''
FENCE = (
    "```python\n"
    + "".join(f"value_{number} = compute({number})\n" for number in range(120))
    + "```"
)


def chunks(text, path=PATH, **settings):
    given = {"chunk_size": 30, "chunk_overlap": 0, "min_chunk_size": 1} | settings
    return HeadingAwareMarkdownNodeParser(**given)([Document(text=text, metadata={"path": path})])


def contextual(text, context="headings", path=PATH, **settings):
    return ContextualNodePostprocessor(context)(chunks(text, path, **settings))


@pytest.fixture(scope="module")
def embedding():
    return LocalEmbedding()


@pytest.fixture
def generator(fake_model, tmp_path):
    return LLMContextGenerator(
        NamedModel(fake_model.llm, 800), cache=tmp_path / "contexts.sqlite3", fallback="pattern"
    )


# FEATURE: contexts before chunks


def test_feature_1_the_prefix_is_document_and_headings():
    [_, node] = contextual(NOTE)
    first, *_ = node.metadata["context"].splitlines()
    assert first == "Document: memory/2026-01-28.md > Morning Check-in > Task Updates"


def test_feature_2_the_context_is_embedded_and_the_raw_text_displayed():
    [_, node] = contextual(NOTE)
    assert "Morning Check-in > Task Updates" in node.get_content(MetadataMode.EMBED)
    assert node.get_content(MetadataMode.NONE) == NOTE[node.start_char_idx : node.end_char_idx]
    assert "Document:" not in node.get_content(MetadataMode.NONE)


@pytest.mark.parametrize("name", ["headers", "headings"])
def test_feature_3_the_mode_headers(name):
    assert ContextualNodePostprocessor(name).generator.name == "headings"


def test_feature_4_the_mode_llm_writes_one_or_two_sentences(generator, fake_model):
    fake_model.reply = always(Reply())
    [*_, node] = ContextualNodePostprocessor(generator)(chunks(NOTE))
    assert node.metadata["context_source"].startswith("llm:")
    assert len(node.metadata["context"]) > len("Document: memory/2026-01-28.md")


def test_feature_5_headers_mode_calls_no_model(monkeypatch):
    monkeypatch.setattr(
        "llama_index.core.settings._Settings.llm",
        property(lambda _: pytest.fail("a model was asked")),
    )
    assert all(node.metadata["context"] for node in contextual(NOTE))


def test_feature_6_it_can_be_switched_off():
    [*_, node] = contextual(NOTE, "off")
    assert "context" not in node.metadata
    assert "Task Updates >" not in node.get_content(MetadataMode.EMBED)


def test_feature_7_a_context_changes_what_is_embedded_so_that_an_index_sees_it():
    plain, with_context = contextual(NOTE, "off")[1], contextual(NOTE)[1]
    assert plain.get_content(MetadataMode.EMBED) != with_context.get_content(MetadataMode.EMBED)
    assert plain.text == with_context.text


def test_feature_8_a_chunk_that_names_nothing_is_found_by_its_document(embedding):
    text = "# {}\n\nThe default value is {} and can be adjusted via the config file.\n"
    pages = {
        "gateway.md": text.format("Gateway timeout", 60),
        "scheduler.md": text.format("Scheduler timeout", 900),
    }
    nodes = [node for path, page in pages.items() for node in contextual(page, path=path)]
    for node in nodes:
        node.text = node.text.split("\n\n")[-1]  # as if the heading stood in an earlier chunk
    retriever = VectorStoreIndex(nodes, embed_model=embedding).as_retriever(similarity_top_k=1)
    assert "is 60" in retriever.retrieve("default of the gateway")[0].text
    assert "is 900" in retriever.retrieve("default of the scheduler")[0].text


# ADR: generation of contexts


def test_adr_1_the_pattern_says_file_symbols_and_doc_comments():
    [node, *_] = contextual(CODE, "pattern", "search/engine.py", chunk_size=200)
    context = node.metadata["context"]
    assert context.startswith("From file: search/engine.py")
    assert "function search" in context
    assert "Hybrid search" in context + node.text


def test_adr_2_the_default_model_is_small_and_on_ollama():
    from llama_index_contextual.app.settings import models

    assert "qwen3:0.6b" in Path(models.__file__).read_text("utf-8")


def test_adr_3_the_fallback_is_the_pattern_where_no_model_answers(generator, fake_model):
    fake_model.reply = always(Reply(status=503, body="no"))
    with pytest.warns(UserWarning, match="fell back"):
        [*_, node] = ContextualNodePostprocessor(generator)(chunks(NOTE))
    assert node.metadata["context_source"] == "pattern"
    assert node.metadata["context"]


def test_adr_4_chunks_of_a_file_are_asked_about_in_batches_of_eight(generator, fake_model):
    text = "# Page\n\n" + "\n\n".join(
        f"Paragraph {number} of the page says something of its own." for number in range(8)
    )
    nodes = chunks(text, chunk_size=14)
    assert len(nodes) == 8
    ContextualNodePostprocessor(generator)(nodes)
    assert [len(request.numbers) for request in fake_model.requests] == [8]


def test_adr_5_the_document_stands_first_so_that_a_prompt_cache_works(generator, fake_model):
    ContextualNodePostprocessor(generator)(chunks(NOTE))
    prompt = fake_model.requests[0].prompt
    assert prompt.index("Coffee with Ana") < prompt.index('<chunk number="1"')


def test_adr_6_a_context_is_generated_once_at_index_time(generator, fake_model):
    for _ in range(2):
        ContextualNodePostprocessor(generator)(chunks(NOTE))
    assert len(fake_model.requests) == 1


@pytest.mark.parametrize("part", ["generate", "generate_all", "available", "model_name"])
def test_adr_7_a_generator_generates_one_or_many_and_names_its_model(part):
    assert hasattr(ContextGenerator, part)


def test_adr_8_a_generator_of_a_model_closes(generator):
    assert generator.model_name == "fake"
    generator.close()


def test_adr_9_the_text_is_kept_for_the_keyword_index():
    [*_, node] = contextual(NOTE)
    assert ContextualBM25Retriever([node]).retrieve("adjusted config")[0].score > 0


# MEMORY: the digest of an agent's notes


@pytest.fixture(scope="module")
def notes(embedding):
    texts = {
        "memory/2026-04-09.md": "# Thursday\n\nJC's dog Cookie loves carrots.\n",
        "memory/2026-03-10.md": "# Tuesday\n\nJC ordered ginger tea.\n",
        "MEMORY.md": "# Facts\n\nColor preference: blue.\n",
    }
    nodes = [node for path, text in texts.items() for node in contextual(text, path=path)]
    index = VectorStoreIndex(nodes, embed_model=embedding)
    return ContextualFusionRetriever(
        [ContextualVectorRetriever(index), ContextualBM25Retriever(nodes)]
    )


@pytest.mark.parametrize(
    "message", ["/status", "/help", "/agent:doctor", "hola", "thanks", "two words", "ok"]
)
def test_memory_1_commands_greetings_and_short_messages_are_skipped(notes, message):
    digest = MemoryContext(notes).get(message)
    assert not digest.applicable
    assert digest.markdown == "(No relevant prior context for this message.)"


def test_memory_2_a_short_question_is_not_skipped(notes):
    assert MemoryContext(notes).get("JC's dog?").applicable


def test_memory_3_the_queries_are_the_message_its_keywords_and_its_names():
    message = "¿le gusta el jengibre a JC?"
    assert derive_queries(message, lexicon_of(message)) == (message, "gusta jengibre", "JC")


def test_memory_4_the_message_is_trimmed_to_500_characters():
    assert len(derive_queries("word " * 300, lexicon_of("word"))[0]) <= 500


def test_memory_5_the_keywords_are_the_top_five_without_stop_words():
    queries = derive_queries(
        "the gateway timeout of the scheduler retries and budget limits", lexicon_of("the")
    )
    assert len(queries[1].split()) == 5
    assert "the" not in queries[1].split()


def test_memory_6_keywords_and_names_are_queries_only_where_they_differ():
    assert derive_queries("ginger tea", lexicon_of("ginger tea")) == ("ginger tea",)


def test_memory_7_a_score_starts_as_the_best_of_its_queries():
    assert derived_score([0.3, 0.8], None) / 1.15 == pytest.approx(0.8)


def test_memory_8_thirty_days_halve_a_score():
    assert derived_score([1.0], 30.0, 30.0) == pytest.approx(0.5)


def test_memory_9_undated_files_are_left_as_they_are():
    assert derived_score([1.0], None) == 1.0


def test_memory_10_two_queries_multiply_by_1_15():
    assert derived_score([1.0, 0.1], None) == pytest.approx(1.15)


def test_memory_11_a_digest_has_four_entries_and_a_half_life_of_30_days(notes):
    settings = MemoryContext(notes).settings
    assert (settings.max_results, settings.half_life_days, settings.include_recency) == (
        4,
        30,
        True,
    )


def test_memory_12_an_entry_is_a_citation_with_lines_and_its_text(notes):
    digest = MemoryContext(notes, ranking="derived").get(
        "what does the dog of JC love?", now=date(2026, 4, 10)
    )
    header, first, *_ = digest.markdown.splitlines()
    assert header == "## Relevant prior context"
    assert re.fullmatch(r"- \[memory/2026-04-09\.md#L1-L3\] .+", first)


def test_memory_13_json_has_entries_and_the_queries_that_ran(notes):
    data = (
        MemoryContext(notes, ranking="derived")
        .get("what does the dog of JC love?", now=date(2026, 4, 10))
        .to_dict()
    )
    assert data["entries"][0]["path"] == "memory/2026-04-09.md"
    assert len(data["queries"]) >= 2


def test_memory_14_switched_off_it_says_so(notes):
    assert (
        "switched off"
        in MemoryContext(notes, enabled=False).get("what does the dog love?").markdown
    )


# CHUNKING: semantic chunks


def test_chunking_1_code_blocks_are_never_split():
    [whole] = [
        node
        for node in chunks(f"# Code\n\n{FENCE}\n", chunk_size=200, keep_blocks=True)
        if "```" in node.text
    ]
    assert FENCE in whole.text
    assert whole.metadata["overflow"] is True


def test_chunking_2_headings_begin_chunks():
    text = "".join(
        f"## Section {number}\n\n" + "Some words of this section. " * 8 + "\n\n"
        for number in range(4)
    )
    assert all(node.text.startswith("## Section") for node in chunks(text, chunk_size=60))


def test_chunking_3_paragraphs_stay_whole_unless_too_large():
    text = "\n\n".join(
        f"Paragraph {number} has a few words that belong together." for number in range(6)
    )
    for node in chunks(text, chunk_size=25):
        assert node.text.endswith("together.")


def test_chunking_4_tables_are_atomic():
    table = "| Date | Decision |\n|---|---|\n" + "".join(
        f"| 2026-01-{day} | Redis |\n" for day in range(10, 20)
    )
    nodes = chunks(f"# Decisions\n\n{table}\nMore text.\n", chunk_size=20, keep_blocks=True)
    assert any(table.strip() in node.text for node in nodes)


def test_chunking_5_a_sentence_is_not_cut_where_it_fits():
    text = " ".join(f"Sentence number {number} ends here." for number in range(30))
    assert all(node.text.endswith(".") for node in chunks(text, chunk_size=25))


def test_chunking_6_a_day_stays_with_its_content():
    text = "# 2026-01-30\n\n" + "Old words. " * 20 + "\n\n# 2026-01-31\n\nDecided Redis.\n"
    [last] = [node for node in chunks(text, "notes.md", chunk_size=60) if "Redis" in node.text]
    assert last.metadata["date"] == "2026-01-31"


def test_chunking_7_horizontal_rules_are_boundaries():
    text = "First part, one line.\n\n---\n\nSecond part, one line.\n"
    assert len(chunks(text, chunk_size=100)) == 2


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("chunk_size", 400),
        ("chunk_overlap", 80),
        ("min_chunk_size", 50),
        ("semantic", True),
        ("preserve_headers", True),
    ],
)
def test_chunking_8_the_defaults(name, default):
    assert HeadingAwareMarkdownNodeParser.model_fields[name].default == default


def test_chunking_9_semantic_chunks_can_be_switched_off():
    assert not any(
        node.metadata.get("header_path")
        for node in chunks(NOTE, semantic=False, preserve_headers=False)
    )


def test_chunking_10_chunks_know_their_lines():
    [first, second] = chunks(NOTE)
    assert (first.metadata["start_line"], first.metadata["end_line"]) == (1, 3)
    assert (second.metadata["start_line"], second.metadata["end_line"]) == (5, 7)


def test_chunking_11_an_overlap_does_not_cut_a_sentence():
    text = " ".join(f"Sentence number {number} ends here." for number in range(30))
    for node in chunks(text, chunk_size=40, chunk_overlap=10):
        assert node.text.startswith("Sentence number")


# DESIGN: hybrid retrieval


def test_design_1_context_and_chunk_are_in_both_indexes(tmp_path, embedding):
    nodes = contextual(NOTE)
    store = ChromaVectorStore(chromadb.PersistentClient(str(tmp_path)).create_collection("notes"))
    index = VectorStoreIndex(
        nodes,
        storage_context=StorageContext.from_defaults(vector_store=store),
        embed_model=embedding,
    )
    for retriever in (ContextualVectorRetriever(index), ContextualBM25Retriever(nodes)):
        assert "is 60" in retriever.retrieve("Task Updates")[0].text


def test_design_2_rank_fusion_of_vectors_and_keywords():
    fusion = ContextualFusionRetriever(
        [
            ContextualBM25Retriever([TextNode(id_=name, text="tea") for name in names])
            for names in ("ab", "bc")
        ],
        mode="reciprocal_rerank",
    )
    assert fusion.retrieve("tea")[0].node.node_id == "b"


def test_design_3_an_optional_reranker_sees_the_context():
    from llama_index.core.postprocessor.types import BaseNodePostprocessor

    seen = []

    class Reranker(BaseNodePostprocessor):
        def _postprocess_nodes(self, nodes, query_bundle=None):
            seen.extend(hit.node.get_content(MetadataMode.EMBED) for hit in nodes)
            return nodes

    fusion = ContextualFusionRetriever(
        [ContextualBM25Retriever(contextual(NOTE))], node_postprocessors=[Reranker()]
    )
    fusion.retrieve("config file")
    assert any("Document: memory/2026-01-28.md" in text for text in seen)


def test_design_4_the_exact_identifier_is_found():
    nodes = [
        TextNode(text="An error E4711 of the pump."),
        TextNode(text="Another error of the pump."),
    ]
    assert "E4711" in ContextualBM25Retriever(nodes).retrieve("E4711")[0].text


def test_design_5_a_stored_context_names_its_model(generator):
    [*_, node] = ContextualNodePostprocessor(generator)(chunks(NOTE))
    assert node.metadata["context_source"].startswith("llm:fake")
    assert node.metadata["context_version"]


def test_a_file_that_changed_just_now_is_read_again_by_the_next_refresh():
    """On some file systems a second change within two seconds would not alter its times."""
    now = time.time_ns()
    old = now - 10**10
    assert stamp_if_stable(f"5 {old} {old}") == f"5 {old} {old}"
    assert stamp_if_stable(f"5 {now} {old}") == ""
    assert stamp_if_stable(f"5 {old} {now}") == ""

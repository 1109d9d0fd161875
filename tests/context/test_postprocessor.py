"""Contexts in nodes: what is embedded and displayed, also in pipelines and query engines."""

from __future__ import annotations

import pickle
import re
from pathlib import PurePosixPath

import pytest
from llama_index.core import Document, SimpleDirectoryReader
from llama_index.core.bridge.pydantic import Field
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.ingestion.pipeline import get_transformation_hash
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser import MarkdownNodeParser, SentenceSplitter
from llama_index.core.prompts import PromptTemplate
from llama_index.core.schema import MetadataMode, NodeWithScore, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.embeddings.ollama import OllamaEmbedding

from llama_index_contextual.context.base import ContextGenerator, ContextUsage
from llama_index_contextual.context.documents import group_by_document
from llama_index_contextual.context.generators.headings import HeadingContextGenerator
from llama_index_contextual.context.postprocessor import ContextualNodePostprocessor
from llama_index_contextual.context.views import remove_context
from llama_index_contextual.node_parser.parser import HeadingAwareMarkdownNodeParser
from llama_index_contextual.utils.errors import ContextError, ContextualWarning, SettingError

TEXT = "# Guide\n\nHello.\n\n## Install\n\nRun it.\n"


@pytest.fixture
def document():
    return Document(text=TEXT, id_="guide.md", metadata={"file_name": "guide.md", "author": "Ana"})


@pytest.fixture
def nodes(document):
    return MarkdownNodeParser().get_nodes_from_documents([document])


class Paid(ContextGenerator):
    """A generator that is not free, and on request fails for chunks whose text contains "Run"."""

    free = False
    name = "llm:test"
    version = "1"

    def __init__(self):
        self.asked = 0
        self.fails = False

    def generate(self, nodes, document):
        self.asked += len(nodes)
        return [None if self.fails and "Run" in node.text else "paid" for node in nodes]


def test_embedded_but_not_displayed(nodes):
    [_, node] = ContextualNodePostprocessor()(nodes)
    text = "## Install\n\nRun it."
    assert (
        node.get_content(MetadataMode.EMBED)
        == f"author: Ana\ncontext: Document: guide.md > Guide\n\n{text}"
    )
    assert node.get_content(MetadataMode.NONE) == text
    assert (
        node.get_content(MetadataMode.LLM)
        == f"file_name: guide.md\nauthor: Ana\nheader_path: /Guide/\n\n{text}"
    )
    assert node.metadata["context_source"] == "headings"


def test_shown_to_the_llm_when_asked_for(nodes):
    [_, node] = ContextualNodePostprocessor(show_context_to_llm=True)(nodes)
    assert "context: Document: guide.md > Guide" in node.get_content(MetadataMode.LLM)


def test_shown_to_the_llm_at_query_time_when_the_index_hides_it(nodes):
    hits = [NodeWithScore(node=node, score=1.0) for node in ContextualNodePostprocessor()(nodes)]
    [_, hit] = ContextualNodePostprocessor(show_context_to_llm=True).postprocess_nodes(hits)
    assert "context: Document: guide.md > Guide" in hit.node.get_content(MetadataMode.LLM)
    assert "context:" not in nodes[1].get_content(MetadataMode.LLM)


def test_a_generator_that_skips_a_chunk_is_named(nodes):
    class Short(HeadingContextGenerator):
        def generate(self, nodes, document):
            return super().generate(nodes[1:], document)

    with pytest.raises(
        ContextError, match=r"headings returned 1 context for 2 chunks\. Return one per chunk"
    ):
        ContextualNodePostprocessor(Short())(nodes)


def test_a_root_that_is_not_a_path_is_a_setting_error(tmp_path):
    for root in (tmp_path, PurePosixPath(tmp_path), str(tmp_path)):
        assert ContextualNodePostprocessor(root=root).root == str(tmp_path)
    with pytest.raises(SettingError, match="`root` must be a valid string"):
        ContextualNodePostprocessor(root=5)


def test_the_label_before_a_context_is_the_documents_template():
    labelled, bare = (Document(text="It is 60.", metadata={"path": "gateway.md"}) for _ in range(2))
    bare.metadata_template = "{value}"
    nodes = ContextualNodePostprocessor()(HeadingAwareMarkdownNodeParser()([labelled, bare]))
    embedded = [node.get_content(MetadataMode.EMBED) for node in nodes]
    assert embedded == [
        "context: Document: gateway.md\n\nIt is 60.",
        "Document: gateway.md\n\nIt is 60.",
    ]


def test_the_text_template_is_unchanged(nodes):
    template = nodes[0].text_template
    ContextualNodePostprocessor()(nodes)
    assert nodes[0].text_template == template


def test_a_second_pass_changes_nothing(nodes):
    step = ContextualNodePostprocessor()
    once = [node.to_dict() for node in step(nodes)]
    assert [node.to_dict() for node in step(nodes)] == once


def test_off_removes_contexts(nodes):
    ContextualNodePostprocessor()(nodes)
    ContextualNodePostprocessor("off")(nodes)
    assert not any(key.startswith("context") for node in nodes for key in node.metadata)
    assert "author: Ana" in nodes[0].get_content(MetadataMode.EMBED)


def without_hashes(node):
    """Return a node as data without the hashes of its neighbours, which stock parsers get wrong."""
    data = node.to_dict()
    for related in data["relationships"].values():
        related.pop("hash")
    return data


@pytest.mark.parametrize(
    "parser", [HeadingAwareMarkdownNodeParser(), SentenceSplitter(), MarkdownNodeParser()]
)
def test_off_restores_the_nodes(parser, tmp_path):
    (tmp_path / "a.md").write_text("# Title\n\nSome text.\n\n## Part\n\nMore of it.\n", "utf-8")
    nodes = parser(
        SimpleDirectoryReader(str(tmp_path)).load_data()
    )  # which excludes file sizes and such
    nodes[0].excluded_llm_metadata_keys.append("file_path")
    before = [without_hashes(node) for node in nodes]
    ContextualNodePostprocessor()(nodes)
    ContextualNodePostprocessor("pattern", show_context_to_llm=True)(nodes)
    assert "file_path" not in nodes[0].get_content(MetadataMode.LLM)
    after = ContextualNodePostprocessor("off")(nodes)
    if isinstance(parser, HeadingAwareMarkdownNodeParser):  # whose headings are a context, too
        assert not any("Title" in node.get_metadata_str(MetadataMode.EMBED) for node in after)
        for node in after:
            remove_context(node)
    assert [without_hashes(node) for node in after] == before


def test_off_embeds_no_heading_that_our_parser_found():
    text = (
        "# Gateway\n\nIt accepts requests.\n\n## Timeout\n\n"
        + "The default value is sixty seconds. " * 20
    )
    parser = HeadingAwareMarkdownNodeParser(chunk_size=60, chunk_overlap=0, min_chunk_size=5)
    nodes = ContextualNodePostprocessor("off")(
        parser([Document(text=text, metadata={"author": "Ana"})])
    )
    last = nodes[-1]
    assert last.metadata["header_path"] == "Gateway > Timeout"
    assert last.get_content(MetadataMode.EMBED) == f"author: Ana\n\n{last.text}"
    ContextualNodePostprocessor("headers")(nodes)
    assert "Gateway > Timeout" in last.get_content(MetadataMode.EMBED)


def test_a_context_that_comes_after_the_embedding_is_named(nodes):
    for node in nodes:
        node.embedding = [1.0]
    step = ContextualNodePostprocessor()
    with pytest.warns(
        ContextualWarning,
        match=r"^2 nodes had a vector before the context was written.*Put this step before",
    ):
        step(nodes)
    step(nodes)  # nothing changes, so there is no warning
    hits = [NodeWithScore(node=node, score=0.5) for node in nodes]
    step.postprocess_nodes(hits, query_str="install")


def test_off_leaves_plain_nodes_alone(nodes):
    before = [node.to_dict() for node in nodes]
    assert [node.to_dict() for node in ContextualNodePostprocessor("off")(nodes)] == before


def test_at_query_time_copies_get_contexts(nodes):
    hits = [NodeWithScore(node=node, score=0.5) for node in nodes]
    before = [node.hash for node in nodes]
    result = ContextualNodePostprocessor().postprocess_nodes(hits, query_str="install")
    assert [hit.node.metadata["context"] for hit in result] == [
        "Document: guide.md",
        "Document: guide.md > Guide",
    ]
    assert [hit.score for hit in result] == [0.5, 0.5]
    assert [node.hash for node in nodes] == before
    assert "context" not in nodes[0].metadata


def test_at_query_time_existing_contexts_are_kept(nodes):
    ContextualNodePostprocessor(Paid())(nodes)
    hits = [NodeWithScore(node=nodes[0], score=None)]
    [hit] = ContextualNodePostprocessor().postprocess_nodes(hits)
    assert hit.node is nodes[0]


def test_at_query_time_no_model_is_called(nodes):
    paid = Paid()
    ContextualNodePostprocessor(paid).postprocess_nodes(
        [NodeWithScore(node=node) for node in nodes]
    )
    assert paid.asked == 0


def test_at_query_time_a_generator_that_cannot_run_is_skipped(nodes):
    class Silent(ContextGenerator):
        name, version = "silent", "1"

        def generate(self, nodes, document):
            return [None for _ in nodes]

    hits = ContextualNodePostprocessor(Silent()).postprocess_nodes(
        [NodeWithScore(node=nodes[0], score=1.0)]
    )
    assert [hit.score for hit in hits] == [1.0]


def test_at_query_time_a_step_without_a_free_generator_returns_the_hits_unchanged(nodes):
    hits = [NodeWithScore(node=node, score=0.5) for node in nodes]
    for context in ("off", Paid()):
        assert ContextualNodePostprocessor(context).postprocess_nodes(hits) == hits


async def test_async_contexts_are_the_same(document):
    def fresh():
        return MarkdownNodeParser(id_func=lambda i, _: str(i)).get_nodes_from_documents([document])

    step = ContextualNodePostprocessor()
    assert [n.to_dict() for n in await step.acall(fresh())] == [n.to_dict() for n in step(fresh())]
    hits = await step.apostprocess_nodes([NodeWithScore(node=node) for node in fresh()])
    assert hits[1].node.metadata["context"] == "Document: guide.md > Guide"


def test_paid_contexts_are_kept_until_the_generator_or_its_version_changes(nodes):
    paid = Paid()
    step = ContextualNodePostprocessor(paid)
    step(nodes)
    step(nodes)
    assert paid.asked == 2
    paid.version = "2"
    step(nodes)
    assert paid.asked == 4


def test_a_context_of_another_generator_is_replaced_although_its_version_is_equal(nodes):
    ContextualNodePostprocessor(Paid())(nodes)
    other = Paid()
    other.name = "llm:other"
    ContextualNodePostprocessor(other)(nodes)
    assert other.asked == 2
    assert {node.metadata["context_source"] for node in nodes} == {"llm:other"}


def test_only_outdated_contexts_are_part_of_an_estimate(nodes):
    step = ContextualNodePostprocessor(Paid())
    step(nodes[:1])
    assert step.estimate(nodes).chunks == 1
    assert ContextualNodePostprocessor().estimate(nodes).chunks == 2
    assert ContextualNodePostprocessor("off").estimate(nodes).chunks == 0


def test_without_contexts_nothing_is_counted(nodes):
    step = ContextualNodePostprocessor("off")
    step(nodes)
    assert step.usage == ContextUsage()


def test_closing_a_step_closes_its_generator():
    closed = []

    class Opened(Paid):
        def close(self):
            closed.append(self)

    step = ContextualNodePostprocessor(Opened())
    step.close()
    assert closed == [step.generator]
    ContextualNodePostprocessor("off").close()


def test_progress_is_drawn_only_on_request(nodes, capsys):
    step = ContextualNodePostprocessor()
    step(nodes)
    assert capsys.readouterr().err == ""
    step(nodes, show_progress=True)
    assert re.search(r"Contexts: 100%.* 2/2 ", capsys.readouterr().err)


def test_a_function_is_told_the_progress(nodes):
    counts = []
    ContextualNodePostprocessor()(nodes, progress=counts.append)
    assert counts == [(2, 2)]


def test_a_failure_without_fallback_is_an_error_and_keeps_what_was_paid(nodes):
    paid = Paid()
    paid.fails = True
    step = ContextualNodePostprocessor(paid)
    with pytest.raises(ContextError, match="1 of 2 chunks got no context"):
        step(nodes)
    assert [node.metadata.get("context_source") for node in nodes] == ["llm:test", None]
    paid.fails = False
    step(nodes)
    assert paid.asked == 3


def test_in_a_pipeline_with_its_cache(document):
    pipeline = IngestionPipeline(
        transformations=[MarkdownNodeParser(), ContextualNodePostprocessor()]
    )
    first = pipeline.run(documents=[document])
    assert [n.to_dict() for n in pipeline.run(documents=[document])] == [n.to_dict() for n in first]
    assert first[1].metadata["context"] == "Document: guide.md > Guide"


async def test_in_a_pipeline_with_workers_and_async(document):
    other = Document(text=TEXT, id_="other.md", metadata={"file_name": "other.md"})
    pipeline = IngestionPipeline(
        transformations=[MarkdownNodeParser(), ContextualNodePostprocessor()]
    )
    expected = {
        "Document: guide.md > Guide",
        "Document: other.md > Guide",
        "Document: guide.md",
        "Document: other.md",
    }
    nodes = await pipeline.arun(documents=[document, other], num_workers=2)
    assert {node.metadata["context"] for node in nodes} == expected


def test_pipeline_hash_follows_the_settings(nodes):
    plain, other = ContextualNodePostprocessor(), ContextualNodePostprocessor("pattern")
    assert get_transformation_hash(nodes, plain) == get_transformation_hash(
        nodes, ContextualNodePostprocessor()
    )
    assert get_transformation_hash(nodes, plain) != get_transformation_hash(nodes, other)


@pytest.mark.parametrize(
    "step", [ContextualNodePostprocessor("pattern"), ContextualNodePostprocessor("off")]
)
def test_survives_serialisation_and_pickling(step, nodes):
    for copy in (
        ContextualNodePostprocessor.from_dict(step.to_dict()),
        ContextualNodePostprocessor.from_json(step.to_json()),
        pickle.loads(pickle.dumps(step)),  # noqa: S301
    ):
        assert copy.to_dict() == step.to_dict()
        assert copy.fingerprint == step.fingerprint
    assert step.class_name() == step.to_dict()["class_name"] == "ContextualNodePostprocessor"


class Coloured(ContextualNodePostprocessor):
    """A step with its own fields, which pydantic checks."""

    colour: str = "red"
    size: int = Field(default=1, ge=1)


def test_a_subclass_can_have_its_own_fields():
    step = Coloured("headings", colour="blue")
    assert (step.colour, step.size, step.context) == ("blue", 1, "headings")
    assert Coloured.from_dict(step.to_dict()).to_dict() == step.to_dict()
    assert pickle.loads(pickle.dumps(step)).colour == "blue"  # noqa: S301
    with pytest.raises(SettingError, match=r"size` must be "):
        Coloured(size=0)
    with pytest.raises(SettingError, match="does not take color"):
        Coloured(color="blue")


def test_a_prompt_can_be_a_text():
    text = "{document}\nSay where {chunks} stand."
    step = ContextualNodePostprocessor("llm", llm=MockLLM(), cache=False, prompt=text)
    assert step.generator.prompts == (text,)
    same = ContextualNodePostprocessor(
        "llm", llm=MockLLM(), cache=False, prompt=PromptTemplate(text)
    )
    assert step.fingerprint == same.fingerprint


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"context": "lm"}, "must be one of .*'lm'"),
        ({"context": "headings", "colour": 1}, "does not take colour"),
        ({"context": "headings", "include": ["*.txt"]}, "does not take include. It takes "),
        ({"context": HeadingContextGenerator(), "template": "x"}, "already made"),
        ({"context": ["x"]}, r"must be one of .*\['x'\]"),
        ({"documents": Document(text="x")}, r"`documents` must be a list.*\(got Document\)"),
        ({"documents": "guide.md"}, r"`documents` must be a list.*\(got str\)"),
        ({"documents": 5}, r"`documents` must be a list.*\(got int\)"),
        (
            {"context": "llm", "prompt": "{document} {chunks"},
            "must contain .document. and, after it, .chunks.",
        ),
        (
            {"context": "llm", "prompt": "{chunks} {document}"},
            "must contain .document. and, after it, .chunks.",
        ),
        (
            {"context": "llm", "prompt": 5},
            "a text with {document} and {chunks} .*got 5",
        ),
    ],
)
def test_wrong_setting_is_named(arguments, message):
    with pytest.raises(SettingError, match=message):
        ContextualNodePostprocessor(**arguments)


def test_an_estimate_refuses_objects_that_are_not_documents(document, nodes):
    with pytest.raises(SettingError, match=r"`documents` must be a list.*\(got Document\)"):
        ContextualNodePostprocessor().estimate(nodes, documents=document)


# Where a chunk's document comes from


def test_document_from_slices_that_tile_it(document):
    nodes = SentenceSplitter(chunk_size=12, chunk_overlap=0)([document])
    [chunks] = group_by_document(nodes)
    assert chunks.document.text.split() == TEXT.split()
    assert list(chunks.nodes) == nodes


def test_some_chunks_of_a_document_do_not_make_up_the_document(document):
    nodes = SentenceSplitter(chunk_size=12, chunk_overlap=0)([document])
    [chunks] = group_by_document(nodes[1:])
    assert chunks.document.text != TEXT
    [chunks] = group_by_document(nodes[1:], documents=[document])
    assert chunks.document.text == TEXT


def test_a_stale_document_is_not_used(document):
    nodes = SentenceSplitter(chunk_size=12, chunk_overlap=0)([document])
    edited = Document(text="# Guide\n\nSomething else.", id_=document.id_)
    [chunks] = group_by_document(nodes[1:], documents=[edited])
    assert chunks.document.text not in (edited.text, TEXT)


def test_nodes_of_several_documents_in_any_order():
    nodes = [TextNode(text=f"{i}", metadata={"path": f"{i % 2}.md"}) for i in range(5)]
    groups = [
        (group.document.path, [node.text for node in group.nodes])
        for group in group_by_document(nodes)
    ]
    assert groups == [("0.md", ["0", "2", "4"]), ("1.md", ["1", "3"])]


def test_a_document_is_found_by_path_if_the_nodes_name_none():
    page = Document(text="One.\n\nTwo.\n\nThree.", metadata={"path": "a.md"})
    [chunks] = group_by_document(
        [TextNode(text="Two.", metadata={"path": "a.md"})], documents=[page]
    )
    assert chunks.document.text == page.text


@pytest.mark.parametrize(
    ("stored", "is_stale"), [(TEXT, False), ("# Guide\n\nAn older text.", True)]
)
def test_document_from_a_docstore_unless_it_is_stale(document, stored, is_stale):
    docstore = SimpleDocumentStore()
    docstore.add_documents([Document(text=stored, id_=document.id_)])
    nodes = SentenceSplitter(chunk_size=12, chunk_overlap=0)([document])
    [chunks] = group_by_document(nodes[1:], docstore=docstore)
    assert (chunks.document.text == TEXT) != is_stale


def test_instruction_prefixes_go_around_context_and_text(nodes):
    [_, node] = ContextualNodePostprocessor()(nodes)
    text = node.get_content(MetadataMode.EMBED)
    embedding = OllamaEmbedding(model_name="nomic-embed-text", text_instruction="search_document:")
    expected = (
        "search_document: author: Ana\ncontext: Document: guide.md > Guide\n\n## Install\n\nRun it."
    )
    assert embedding._format_text(text) == expected


def test_absolute_paths_do_not_get_into_contexts():
    [node] = ContextualNodePostprocessor()(
        [TextNode(text="x", metadata={"file_path": "/home/ana/notes/plan.md"})]
    )
    assert node.metadata["context"] == "Document: notes/plan.md"


@pytest.mark.parametrize("where", ["working directory", "root", "elsewhere"])
def test_files_with_the_same_name_are_distinguished_in_a_plain_pipeline(
    where, tmp_path, monkeypatch
):
    for folder in ("project/a", "project/b"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "README.md").write_text("# Readme\n\nWords.\n")
    monkeypatch.chdir({"working directory": tmp_path}.get(where, "/"))
    step = ContextualNodePostprocessor(root=tmp_path / "project" if where == "root" else None)
    documents = SimpleDirectoryReader(str(tmp_path), recursive=True).load_data()
    nodes = IngestionPipeline(transformations=[HeadingAwareMarkdownNodeParser(), step]).run(
        documents=documents
    )
    top = "project/" if where == "working directory" else ""
    assert sorted(node.metadata["context"].splitlines()[0] for node in nodes) == [
        f"Document: {top}a/README.md > Readme",
        f"Document: {top}b/README.md > Readme",
    ]
    assert ContextualNodePostprocessor.from_dict(step.to_dict()).root == step.root


def test_descriptions_of_folders_are_part_of_every_context_below_them():
    said = {
        "/": "Atlas, a shop",
        "api/": "REST reference",
        "api/v2": "Version two",
        "ap": "never",
        "api/v2/pay.md": "Money",
    }
    parser, step = HeadingAwareMarkdownNodeParser(), ContextualNodePostprocessor(descriptions=said)

    def context(path):
        [node] = step(
            parser.get_nodes_from_documents(
                [Document(text="# Pay\n\nBy card.", metadata={"path": path})]
            )
        )
        assert "REST" not in node.get_content(MetadataMode.NONE)
        assert node.metadata["context"] in node.get_content(MetadataMode.EMBED)
        return node.metadata["context"].splitlines()[1:]

    assert context("api/v2/pay.md") == [
        "Atlas, a shop",
        "api: REST reference",
        "api/v2: Version two",
        "api/v2/pay.md: Money",
    ]
    assert context("apis/pay.md") == ["Atlas, a shop"]


def test_new_descriptions_reuse_paid_contexts_from_the_cache(fake_model, tmp_path):
    document = Document(text="# Pay\n\nBy card.", metadata={"path": "api/pay.md"})
    nodes = HeadingAwareMarkdownNodeParser().get_nodes_from_documents([document])
    for text in ("REST reference", "Reference of the API"):
        options = {
            "llm": fake_model.model,
            "cache": str(tmp_path / "cache"),
            "descriptions": {"api": text},
        }
        step = ContextualNodePostprocessor("llm", **options)
        step(nodes)
        assert nodes[0].metadata["context"].endswith(f"\napi: {text}")
        assert nodes[0].metadata["context"].count("api: ") == 1
        assert len(fake_model.requests) == 1
        step.close()


def test_descriptions_are_ordered_by_path_whatever_the_order_of_the_setting():
    texts = {"api": "REST", "/": "A shop", "api/v2": "Version two"}
    reversed_texts = dict(reversed(texts.items()))
    steps = [ContextualNodePostprocessor(descriptions=said) for said in (texts, reversed_texts)]
    for step in steps:
        [node] = step([TextNode(text="By card.", metadata={"path": "api/v2/pay.md"})])
        lines = node.metadata["context"].splitlines()
        assert lines[1:] == ["A shop", "api: REST", "api/v2: Version two"]
    assert steps[0].fingerprint == steps[1].fingerprint


def test_descriptions_change_the_fingerprint_and_survive_a_copy():
    step = ContextualNodePostprocessor(descriptions={"api": "x"})
    assert step.fingerprint != ContextualNodePostprocessor().fingerprint
    assert ContextualNodePostprocessor.from_dict(step.to_dict()).fingerprint == step.fingerprint


TEXT_NODE = TextNode(text="It is 60.")


@pytest.mark.parametrize(
    "nodes",
    [["a text"], "a text", TEXT_NODE, [TEXT_NODE, NodeWithScore(node=TEXT_NODE)]],
    ids=["texts", "text", "node", "hits"],
)
@pytest.mark.parametrize("context", ["headings", "off"])
def test_an_argument_that_is_not_a_list_of_nodes_is_an_error_with_a_hint(context, nodes):
    with pytest.raises(
        SettingError, match=r"must be a list of nodes \(got .*Pass the nodes of a node parser"
    ):
        ContextualNodePostprocessor(context)(nodes)


async def test_texts_are_refused_by_every_method():
    step = ContextualNodePostprocessor()
    with pytest.raises(SettingError, match=r"`nodes` must be a list of nodes.*\(got str\)"):
        await step.acall(["a text"])
    with pytest.raises(SettingError, match=r"`nodes` must be a list of nodes.*\(got str\)"):
        step.estimate(["a text"])
    for hits in (["a text"], "a text", [TEXT_NODE]):
        with pytest.raises(SettingError, match=r"must be a list of NodeWithScore.*Pass what a"):
            step.postprocess_nodes(hits)
    with pytest.raises(SettingError, match=r"`documents` must be a list of documents.*got str"):
        step([TEXT_NODE], documents=["a text"])

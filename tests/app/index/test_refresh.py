"""A refresh does only what is needed, and reports what it did."""

import pytest
from llama_index.core import Document, SimpleDirectoryReader
from llama_index.core.llms import CompletionResponse, MockLLM
from llama_index.core.schema import MetadataMode

from llama_index_contextual.context.generators import headings as free
from llama_index_contextual.node_parser.parser import HeadingAwareMarkdownNodeParser
from llama_index_contextual.retrievers import node_index
from llama_index_contextual.utils.errors import SettingError, StorageError


def texts(index, question, **options):
    return [hit.node.text for hit in index.as_retriever(**options).retrieve(question)]


def test_a_folder_is_indexed_and_found_with_its_lines(opened):
    index = opened()
    report = index.refresh()
    assert report.added == ["faq.md", "guide.md", "memory/2026-01-28.md", "memory/2026-04-09.md"]
    assert report.embedded == report.chunks > 0
    best = index.as_retriever().retrieve("Which vegetable does Cookie like?")[0].node
    assert best.metadata["path"] == "memory/2026-01-28.md"
    assert (best.metadata["start_line"], best.metadata["end_line"]) == (1, 3)
    assert best.metadata["date"] == "2026-01-28"


def test_without_a_change_nothing_is_embedded_even_after_reopening(opened):
    opened().refresh()
    second_report = opened().refresh()
    assert (second_report.skipped, second_report.embedded) == (4, 0)


def test_an_inserted_line_moves_citations_without_embedding(opened, folder):
    index = opened(context="headings")
    index.refresh()
    note = folder / "memory/2026-01-28.md"
    note.write_text("\n\n" + note.read_text())
    report = index.refresh()
    assert report.changed == ["memory/2026-01-28.md"]
    assert report.embedded == 0
    assert index.as_retriever(1).retrieve("Cookie")[0].node.metadata["start_line"] == 3


def test_an_edit_replaces_text_in_both_retrievers(opened, folder):
    index = opened()
    index.refresh()
    (folder / "faq.md").write_text("# FAQ\n\nWhy is it slow? Because zebras sleep.\n")
    report = index.refresh()
    assert (report.changed, report.embedded) == (["faq.md"], 1)
    hit_texts = texts(index, "zebras")
    assert "zebras" in hit_texts[0]
    assert not any("cache is cold" in text for text in hit_texts)


def test_a_retriever_made_before_sees_what_came_after(opened, folder):
    index = opened()
    retriever = index.as_retriever()
    with pytest.raises(StorageError, match="there is no index in"):
        retriever.retrieve("zebras")
    index.refresh()
    assert "Zebras" not in "".join(hit.node.text for hit in retriever.retrieve("zebras"))
    (folder / "new.md").write_text("# Zebras\n\nZebras sleep standing.\n")
    index.refresh()
    assert "Zebras" in retriever.retrieve("zebras")[0].node.text


def test_deleted_files_leave_the_index(opened, folder):
    index = opened()
    index.refresh()
    (folder / "faq.md").unlink()
    (folder / "memory/2026-04-09.md").unlink()
    assert index.refresh().deleted == ["faq.md", "memory/2026-04-09.md"]
    assert not any("cache is cold" in text for text in texts(index, "Why is it slow?"))


def test_a_rename_embeds_what_shows_the_path(opened, folder):
    index = opened(context="headings")
    index.refresh()
    (folder / "faq.md").rename(folder / "questions.md")
    report = index.refresh()
    assert (report.added, report.deleted, report.embedded) == (["questions.md"], ["faq.md"], 1)


def test_given_documents_are_added_and_updated_and_delete_nothing(opened):
    index = opened()
    index.refresh()
    first = index.refresh(
        [
            Document(text="Zebras sleep.", id_="zebras"),
            Document(text="x", metadata={"path": "x.md"}),
        ]
    )
    assert first.added == ["zebras", "x.md"] or sorted(first.added) == ["x.md", "zebras"]
    assert first.deleted == []
    assert index.refresh([Document(text="Zebras sleep.", id_="zebras")]).skipped == 1
    assert index.refresh([Document(text="Zebras wake.", id_="zebras")]).changed == ["zebras"]
    assert index.refresh().deleted == []
    assert texts(index, "zebras")[0] == "Zebras wake."


def test_a_document_without_lasting_identity_is_refused_with_a_hint(opened):
    report = opened().refresh([Document(text="who am I?"), Document(id_="a\0b", text="# One")])
    reason = "it has no stable id, but a random UUID or characters that databases reject."
    hint = "Set id_=, or metadata['path']."
    assert [str(failure) for failure in report.failed] == [
        f"document {number}: {reason} {hint}" for number in (0, 1)
    ]


def test_metadata_that_no_vector_store_takes_is_flattened(opened):
    index = opened()
    given = {"path": "x.md", "tags": ["a", "b"], "nested": {"a": 1}, "none": None}
    index.refresh([Document(text="Zebras sleep.", metadata=given)])
    metadata = index.as_retriever(1).retrieve("zebras")[0].node.metadata
    assert (metadata["tags"], metadata["nested"]) == ("a, b", '{"a": 1}')
    assert "none" not in metadata


def test_delete_takes_one_document_out(opened):
    index = opened()
    index.refresh()
    assert index.delete("faq.md") == 1
    assert index.delete("faq.md") == 0
    assert not any("cache is cold" in text for text in texts(index, "Why is it slow?"))
    assert index.refresh().added == ["faq.md"]


def test_other_parser_settings_are_named_and_applied(opened):
    opened(node_parser=HeadingAwareMarkdownNodeParser(chunk_size=200, min_chunk_size=25)).refresh()
    smaller = HeadingAwareMarkdownNodeParser(chunk_size=100, chunk_overlap=10, min_chunk_size=25)
    index = opened(node_parser=smaller)
    assert "parser.chunk_size: 200 → 100" in index.status().differences
    report = index.refresh()
    assert len(report.outdated) == 4
    assert report.embedded == 0, "the chunks are the same"


def test_an_index_of_an_earlier_parser_is_made_again_and_only_what_changed_is_embedded(
    opened, monkeypatch
):
    monkeypatch.setattr(HeadingAwareMarkdownNodeParser, "revision", 1)
    opened().refresh()
    monkeypatch.setattr(HeadingAwareMarkdownNodeParser, "revision", 2)
    index = opened()
    assert index.status().differences == ["parser.revision: 1 → 2"]
    report = index.refresh()
    assert len(report.outdated) == 4
    assert report.embedded == 0


def test_an_index_that_embedded_ids_embeds_their_chunks_again_and_no_others(
    opened, folder, monkeypatch
):
    (folder / "0042.txt").write_text("Zebras sleep at noon.\n")
    with monkeypatch.context() as before:
        before.setattr(free.HeadingContextGenerator, "version", "another")
        before.setattr(free, "is_id", lambda _: False)
        opened(context="headings").refresh()
    index = opened(context="headings")
    assert [difference.partition(":")[0] for difference in index.status().differences] == [
        "context.generator"
    ]
    report = index.refresh()
    assert (len(report.outdated), report.embedded) == (5, 1)
    [best, *_] = index.as_retriever().retrieve("0042")
    assert best.node.get_content(MetadataMode.EMBED).strip() == "Zebras sleep at noon."
    assert opened(context="headings").refresh().embedded == 0


WRONG = {
    "no folder": ({"where": "/nowhere/at/all"}, SettingError, "must be a folder that exists"),
    "an unknown context": ({"context": "magic"}, SettingError, "magic"),
    "no index yet": (
        {"create": False},
        StorageError,
        "there is no index in .*llama-index-contextual index",
    ),
}


@pytest.mark.parametrize(("settings", "error", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_setting_is_named(opened, settings, error, message):
    with pytest.raises(error, match=message):
        opened(**settings)


def test_documents_and_index_cannot_share_a_folder(opened, folder):
    with pytest.raises(SettingError, match="`storage` must not be the folder of the documents"):
        opened(storage=folder)
    assert not (folder / ".gitignore").exists()


def test_the_keyword_index_is_kept_and_taken_up_by_the_next_process(opened, monkeypatch):
    first = opened()
    first.refresh()
    first.as_retriever().retrieve("Cookie")
    first.close()
    second = opened()
    monkeypatch.setattr(node_index, "lexical_text", None)  # deriving it anew would fail
    assert "carrots" in second.as_retriever(1).retrieve("Cookie")[0].node.text


def test_contexts_that_were_paid_for_survive_edits_elsewhere_and_renames(opened, folder):
    class Counting(MockLLM):
        asked: int = 0

        def complete(self, prompt, formatted=False, **_):
            self.asked += 1
            return CompletionResponse(
                text=f"This passage is number {self.asked} of a handbook on animals and releases."
            )

    llm = Counting()
    settings = {"context": "llm", "llm": llm, "batch_size": 1}
    index = opened(**settings)
    report = index.refresh()
    asked = llm.asked
    assert (
        asked
        == report.chunks
        == sum(n for s, n in report.context_sources.items() if s.startswith("llm:"))
    )
    (folder / "faq.md").rename(folder / "questions.md")
    renamed = index.refresh()
    assert (renamed.added, renamed.deleted) == (["questions.md"], ["faq.md"])
    assert (llm.asked, renamed.embedded) == (asked, 1), (
        "the path beside the LLM's sentence is new; the sentence is kept"
    )
    (folder / "guide.md").write_text(
        folder.joinpath("guide.md").read_text() + "\n## New\n\n" + "New words here. " * 90
    )
    edited = index.refresh()
    assert llm.asked - asked == edited.embedded > 0, "only what is new was asked for"
    texts = [
        hit.node.metadata["context"] for hit in index.as_retriever().retrieve("Why is it slow?")
    ]
    assert all("passage is number" in text for text in texts)
    asked = llm.asked
    assert (index.refresh().embedded, llm.asked) == (0, asked)


ASKED = {
    "a query": lambda index: index.as_retriever().retrieve("x"),
    "a retriever for an explanation": lambda index: index.as_retriever().explain("x"),
    "its status": lambda index: index.status(),
    "verify": lambda index: index.status(check=True),
}


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
def test_an_index_that_does_not_exist_cannot_be_read_and_is_not_made_by_it(opened, ask):
    index = opened()
    with pytest.raises(
        StorageError, match=r"there is no index in .*Run: llama-index-contextual index"
    ):
        ask(index)
    assert not index.storage.exists()
    assert not index.exists


def test_deleting_from_an_index_that_does_not_exist_makes_none(opened):
    index = opened()
    assert index.delete("guide.md") == 0
    assert not index.storage.exists()


async def test_a_retriever_made_before_the_first_refresh_answers_after_it(opened):
    retriever = opened().as_retriever(1)
    with pytest.raises(StorageError, match="there is no index in"):
        await retriever.aretrieve("Cookie")
    opened().refresh()  # as another process would
    assert "carrots" in (await retriever.aretrieve("Cookie"))[0].node.text


@pytest.mark.parametrize(
    "options", [{}, {"filename_as_id": True}], ids=["random ids", "names as ids"]
)
def test_what_a_reader_of_llamaindex_gave_of_the_folder_is_not_indexed_twice(
    opened, folder, options
):
    index = opened()
    given = index.refresh(SimpleDirectoryReader(folder, recursive=True, **options).load_data())
    assert sorted(index.documents()) == [
        "faq.md",
        "guide.md",
        "memory/2026-01-28.md",
        "memory/2026-04-09.md",
    ]
    report = index.refresh()
    assert (report.chunks, len(index.documents())) == (given.chunks, 4)
    assert {document.kind for document in index.documents().values()} == {"file"}
    (folder / "faq.md").unlink()
    assert index.refresh().deleted == ["faq.md"]
    assert index.refresh().added == [], "what a file took the place of does not come back"

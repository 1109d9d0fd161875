"""An index remembers its settings.

They apply in a process that gives none, except for Python objects.
"""

import pytest
from llama_index.core import Document
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.readers.base import BaseReader

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.folder.walk import FileRules
from llama_index_contextual.app.index import BackgroundRefresh
from llama_index_contextual.app.index.database import Snapshot
from llama_index_contextual.context.base import ContextGenerator
from llama_index_contextual.node_parser.parser import HeadingAwareMarkdownNodeParser
from llama_index_contextual.utils.errors import (
    ConfirmationError,
    SettingError,
    StorageError,
)


class UpperCase(BaseReader):
    """A reader that returns a file in upper case; tests import it by its path."""

    def load_data(self, file):
        return [Document(text=file.read_text().upper())]


SETTINGS = {
    "file rules": {"files": FileRules(include=("*.py", "faq.md"), exclude=("drafts/",))},
    "a kind of context": {"context": "pattern"},
    "no context": {"context": "off"},
    "a context that answers see": {"config": {"show_context_to_llm": True}},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_the_settings_of_an_index_apply_unless_others_are_given(opened, folder, settings):
    (folder / "code.py").write_text("def main():\n    return 1\n")
    (folder / "a.cfg").write_text("quiet words")
    with opened(**settings) as made:
        chunks = made.refresh().chunks
        before = made.settings.fingerprint
    with opened() as reopened:
        assert reopened.settings.fingerprint == before
        assert reopened.status().differences == []
        report = reopened.refresh()
        assert (report.chunks, report.embedded, report.deleted, report.outdated) == (
            chunks,
            0,
            [],
            [],
        )


class Own(ContextGenerator):
    """An object that the command line does not have."""

    name = "own"
    version = "1"

    def generate(self, nodes, document):
        return ["Of my own." for _ in nodes]


OBJECTS = {
    "node_parser": lambda: SentenceSplitter(chunk_size=64, chunk_overlap=3),
    "tokenizer": lambda: HeadingAwareMarkdownNodeParser(tokenizer=lambda text: text.split()),
    "readers": lambda: {".cfg": UpperCase()},
    "context": Own,
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_an_index_made_with_an_object_is_read_without_it_and_made_again_without_it(
    opened, folder, kind
):
    name, thing = "node_parser" if kind == "tokenizer" else kind, OBJECTS[kind]()
    (folder / "a.cfg").write_text("quiet words")
    with opened(**{name: thing}) as made:
        made.refresh()
        assert not made.refresh().work
        chunks = made.status().chunks
    with opened() as other:
        assert "carrots" in other.as_retriever(1).retrieve("Cookie carrots")[0].node.text
        status = other.status()
        assert (status.chunks, bool(status.differences)) == (chunks, True)
        report = other.refresh()
        assert report.deleted == (["a.cfg"] if kind == "readers" else [])
        assert len(report.outdated) == 4
        assert other.status().differences == []


def test_what_a_model_wrote_is_not_replaced_without_a_confirmation(opened, folder, fake_model):
    with opened(context="llm", llm=fake_model.llm) as index:
        chunks = index.refresh().chunks
    with (
        opened() as other,
        pytest.raises(
            ConfirmationError, match=rf"{chunks} of {chunks} chunks.*Use the former.*--yes"
        ),
    ):
        other.refresh()
    with opened() as other, BackgroundRefresh(other, "wait") as keeper:
        assert "by a language model" in keeper.look().error
    with opened(context="llm", llm=fake_model.llm) as index:
        assert not index.refresh().work


def test_a_refresh_without_the_earlier_readers_deletes_their_documents(opened, folder):
    (folder / "a.cfg").write_text("quiet words")
    with opened(readers={".cfg": UpperCase()}) as index:
        assert "a.cfg" in index.refresh().added
    with opened(readers={}) as index:
        assert index.refresh().deleted == ["a.cfg"]
    with opened() as index:
        assert index.refresh().skipped == 4, "nothing is asked for any more"


def test_a_refresh_that_would_delete_most_documents_has_to_be_confirmed(opened, folder):
    with opened() as index:
        index.refresh()
    with opened(files=FileRules(include=("*.py",))) as other:
        with pytest.raises(
            ConfirmationError,
            match=r"would delete 4 of 4 documents.*Check that.*confirm=True.*--yes",
        ):
            other.refresh()
        assert other.status().documents == 4
        assert len(other.refresh(confirm=True).deleted) == 4


@pytest.mark.parametrize(("number", "is_refused"), [(2, False), (3, True)])
def test_half_of_the_documents_may_be_deleted_without_a_confirmation(
    opened, folder, number, is_refused
):
    with opened() as index:
        index.refresh()
        for file in sorted(folder.rglob("*.md"))[:number]:
            file.unlink()
        if is_refused:
            with pytest.raises(ConfirmationError, match="would delete 3 of 4 documents"):
                index.refresh()
        else:
            assert len(index.refresh().deleted) == number


@pytest.mark.parametrize(("paid", "is_refused"), [(1, False), (2, True)])
def test_a_fifth_of_the_contexts_may_be_paid_for_without_a_confirmation(
    opened, monkeypatch, paid, is_refused
):
    with opened() as index:
        index.refresh()
    sources = {"headings": 5 - paid, "llm:model": paid}
    monkeypatch.setattr(Snapshot, "context_sources", lambda _: sources)
    with opened(context="off") as other:
        if is_refused:
            with pytest.raises(ConfirmationError, match="contexts of 2 of 5 chunks"):
                other.refresh()
        else:
            assert len(other.refresh().outdated) == 4


def test_renames_are_no_deletions(opened, folder):
    with opened() as index:
        index.refresh()
        (folder / "memory").rename(folder / "notes")
        (folder / "faq.md").rename(folder / "asked.md")
        assert len(index.refresh().added) == 3


def test_paying_again_has_to_be_confirmed(opened, fake_model):
    settings = {"context": "llm", "llm": fake_model.llm}
    with opened(**settings) as index:
        chunks = index.refresh().chunks
    fake_model.requests.clear()
    with opened(**settings, prompt="{document} {chunks}") as other:
        with pytest.raises(
            ConfirmationError, match=rf"contexts of {chunks} of {chunks} chunks by a language model"
        ):
            other.refresh()
        assert fake_model.requests == []
        other.refresh(confirm=True)
        assert fake_model.requests != []


def test_a_storage_knows_its_folder(opened, folder, tmp_path, embedding):
    storage, other = tmp_path / "store", tmp_path / "other"
    other.mkdir()
    (other / "page.md").write_text("# Page\n")
    with opened(storage=storage) as index:
        index.refresh()
    with pytest.raises(StorageError, match=r"belongs to .*docs, not to .*other\. Name"):
        opened(other, storage=storage)
    with opened(None, storage=storage) as reopened:
        assert reopened.folder == folder
        assert reopened.refresh().skipped == 4
    folder.rename(tmp_path / "moved")
    with opened(tmp_path / "moved", storage=storage) as moved:
        assert moved.refresh().skipped == 4
    with pytest.raises(SettingError, match="neither `folder` nor `storage` is set"):
        ContextualIndex.open(None, embed_model=embedding)
    with pytest.raises(SettingError, match="does not say which folder it belongs to"):
        ContextualIndex.open(None, storage=tmp_path / "nothing", embed_model=embedding)


def test_a_setting_of_a_table_names_the_configuration(folder):
    with pytest.raises(
        SettingError, match=r"not take chunk_size.*config=\{'chunks.chunk_size': 300\}"
    ):
        ContextualIndex.open(folder, chunk_size=300)

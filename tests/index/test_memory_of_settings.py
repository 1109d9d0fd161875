"""An index remembers what made it: a process that says nothing uses that, and one that cannot does not write."""

import warnings

import pytest
from llama_index.core import Document
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.prompts import PromptTemplate
from llama_index.core.readers.base import BaseReader
from state_table import change_state, state_in

from llama_index_contextual.config import trust
from llama_index_contextual.context import ChunkContext, ContextGenerator
from llama_index_contextual.documents.files import FileRules
from llama_index_contextual.errors import (
    ConfirmationError,
    ContextualWarning,
    FingerprintError,
    SettingError,
    StorageError,
)
from llama_index_contextual.index import BackgroundRefresh, ContextualIndex
from llama_index_contextual.index.recipe import digest_of_choices
from llama_index_contextual.index.resolve import stored_state
from llama_index_contextual.node_parser import HeadingAwareMarkdownNodeParser


class UpperCase(BaseReader):
    """Reads a file as shouting; tests import it by its path."""

    def load_data(self, file):
        return [Document(text=file.read_text().upper())]


SETTINGS = {
    "file rules": {"files": FileRules(include=("*.py", "faq.md"), exclude=("drafts/",), max_bytes=5000)},
    "our parser": {"node_parser": HeadingAwareMarkdownNodeParser(chunk_size=90, chunk_overlap=7)},
    "LlamaIndex's parser": {"node_parser": SentenceSplitter(chunk_size=64, chunk_overlap=3)},
    "a kind of context": {"context": "pattern"},
    "no context": {"context": "off"},
    "a context that answers see": {"show_context_to_llm": True},
    "keys that are not embedded": {"leave_out_keys": ["author"], "keep_keys": ["title"]},
    "a reader": {"readers": {".cfg": UpperCase()}},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_what_made_an_index_is_used_by_who_does_not_say_otherwise(opened, folder, settings):
    (folder / "code.py").write_text("def main():\n    return 1\n")
    (folder / "a.cfg").write_text("quiet words")
    with opened(**settings) as made:
        chunks = made.refresh().chunks
        before = made.settings.fingerprint
    with opened() as again:
        assert again.settings.fingerprint == before
        assert again.status().differences == []
        report = again.refresh()
        assert (report.chunks, report.embedded, report.deleted, report.outdated) == (chunks, 0, [], [])


def test_the_settings_of_a_language_model_are_remembered_and_its_secrets_are_not(opened, folder, fake_model):
    prompt = PromptTemplate("Of {document} say where {chunks} stands. {instructions}")
    spec = fake_model.llm.replace("://", "://me:secret@") if "://" in fake_model.llm else fake_model.llm
    settings = {"context": "llm", "llm": spec, "batch_size": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ContextualWarning)
        with opened(**settings) as made:
            made.refresh()
    assert not [
        file for file in (folder / ".contextual").rglob("*") if file.is_file() and b"secret" in file.read_bytes()
    ]
    with opened() as again:
        options = again.settings.remembered.choices["context_options"]
        assert options["batch_size"] == 2
        assert options["llm"] == fake_model.llm
        assert again.settings.pipeline.contexts.context == "llm"
    assert prompt


class Own(ContextGenerator):
    """Cannot be made again by its name."""

    name = "own"
    version = "1"

    def generate(self, nodes, document):
        return [ChunkContext("Of my own.", self.name, version=self.version) for _ in nodes]


class Shouting(SentenceSplitter):
    """Has a state that no field shows."""

    def __init__(self, shout):
        super().__init__(chunk_size=64, chunk_overlap=0, paragraph_separator=shout)


def local_reader():
    class Local(UpperCase):
        pass

    return Local()


UNWRITABLE = {
    "node_parser": lambda: HeadingAwareMarkdownNodeParser(tokenizer=lambda text: text.split()),
    "readers": lambda: {".cfg": local_reader()},
    "context": Own,
}


@pytest.mark.parametrize("name", UNWRITABLE)
def test_what_cannot_be_written_down_makes_others_read_and_refuse_to_write(opened, folder, run, name):
    (folder / "a.cfg").write_text("quiet words")
    with opened(**{name: UNWRITABLE[name]()}) as made:
        made.refresh()
        chunks = made.refresh().chunks  # whoever has it may go on
    with opened() as other:
        assert "carrots" in other.as_retriever(1).retrieve("Cookie carrots")[0].node.text
        assert other.status().chunks == chunks
        before = state_in(folder / ".contextual")
        (folder / "new.md").write_text("# New\n")
        assert not [said for said in other.verify().files if "deleted" in said], "what no reader reads now is there"
        with pytest.raises(
            FingerprintError, match=rf"cannot be written down \({name}.*Cure: ContextualIndex.open\(…, {name}="
        ):
            other.refresh()
        tried = run("index", folder, "--dry-run")
        assert (tried.returncode, tried.stdout) == (1, ""), "it says what the refresh would say"
        assert "cannot be written down" in tried.stderr
        with BackgroundRefresh(other, "wait") as keeper:
            assert "cannot be written down" in keeper.look().error
        assert state_in(folder / ".contextual") == before
    with opened(**{name: UNWRITABLE[name]()}) as made:
        assert made.refresh().added == ["new.md"]


def test_a_trusted_index_that_names_something_else_than_a_parser_runs_nothing(opened, folder, tmp_path):
    with opened(node_parser=SentenceSplitter(chunk_size=64, chunk_overlap=3)) as index:
        index.refresh()
        choices = state_in(index.storage)["choices"]
    choices["parser"] = {"class": "pathlib:Path.touch", "settings": {"self": str(tmp_path / "touched")}}
    choices["readers"] = {".cfg": {"class": "subprocess:Popen", "settings": {"args": ["touch", "touched"]}}}
    change_state(folder / ".contextual", choices=choices)
    trust.trust(folder, [digest_of_choices(stored_state(folder, None))])
    with opened() as index:
        with pytest.raises(FingerprintError, match=r"node_parser and readers"):
            index.refresh()
        assert "carrots" in index.as_retriever(1).retrieve("Cookie carrots")[0].node.text
    assert not (tmp_path / "touched").exists()


def test_a_refresh_that_would_delete_most_documents_has_to_be_confirmed(opened, folder):
    with opened() as index:
        index.refresh()
    with opened(files=FileRules(include=("*.py",))) as other:
        with pytest.raises(ConfirmationError, match=r"would delete 4 of 4 documents.*Cure: .*confirm=True.*--yes"):
            other.refresh()
        assert other.status().documents == 4
        assert len(other.refresh(confirm=True).deleted) == 4


def test_renames_are_no_deletions(opened, folder):
    with opened() as index:
        index.refresh()
        (folder / "memory").rename(folder / "notes")
        (folder / "faq.md").rename(folder / "asked.md")
        assert len(index.refresh().moved) == 3


def test_paying_again_has_to_be_confirmed(opened, fake_model):
    settings = {"context": "llm", "llm": fake_model.llm}
    with opened(**settings) as index:
        chunks = index.refresh().chunks
    fake_model.requests.clear()
    with opened(**settings, max_output_tokens=33) as other:
        with pytest.raises(ConfirmationError, match=rf"language model again for the contexts of {chunks} of {chunks}"):
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
    with pytest.raises(StorageError, match=r"is of the folder .*docs, not of .*other\. Cure"):
        opened(other, storage=storage)
    with opened(None, storage=storage) as found:
        assert found.folder == folder
        assert found.refresh().skipped == 4
    folder.rename(tmp_path / "moved")
    with opened(tmp_path / "moved", storage=storage) as moved:
        assert moved.refresh().skipped == 4
    with pytest.raises(SettingError, match="no folder is named"):
        ContextualIndex.open(None, embed_model=embedding)
    with pytest.raises(SettingError, match="does not say of which folder"):
        ContextualIndex.open(None, storage=tmp_path / "nothing", embed_model=embedding)

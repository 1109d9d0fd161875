"""An index in PostgreSQL where something is in the way: rights, a server that goes away, strangers, passwords."""

import sys

import pytest
from hashed_words import HashedWords
from llama_index.core.schema import QueryBundle

from llama_index_contextual.app.index import ContextualIndex, vectors
from llama_index_contextual.app.index.database import Database
from llama_index_contextual.errors import (
    ConfirmationError,
    ContextualWarning,
    FingerprintError,
    MissingExtraError,
    SettingError,
    StorageError,
)

pytestmark = pytest.mark.server


def seen(hits):
    return [(hit.node.node_id, hit.node.text, hit.node.metadata, round(hit.score, 6)) for hit in hits]


def test_who_may_only_read_asks(folder, address, tmp_path, model, asked):
    schema = address.rpartition("#")[2]
    with ContextualIndex.open(folder, embed_model=model, database=address) as index:
        index.refresh()
        wanted = seen(index.as_retriever().retrieve("carrots"))
    asked(f"CREATE ROLE reader_{schema} LOGIN PASSWORD 'secret'")
    asked(f'GRANT USAGE ON SCHEMA "{schema}" TO reader_{schema}')
    asked(f'GRANT SELECT ON ALL TABLES IN SCHEMA "{schema}" TO reader_{schema}')
    reading = address.replace("postgres:@", f"reader_{schema}:secret@")
    with ContextualIndex.open(
        folder, storage=tmp_path / "b", embed_model=model, database=reading, create=False
    ) as index:
        assert seen(index.as_retriever().retrieve("carrots")) == wanted
        assert index.verify().ok
        assert not (tmp_path / "b").exists(), "a question writes nothing"
        (folder / "new.md").write_text("# New\n\nA page.\n", "utf-8")
        with pytest.raises(StorageError, match=r"permission denied.*Cure") as error:
            index.refresh()
        assert "secret" not in str(error.value)


def test_a_server_that_goes_away_and_comes_back(folder, address, server, model, monkeypatch):
    monkeypatch.setattr(vectors, "BATCH_TEXTS", 2)
    cure = "cannot be used now.*What was indexed before is unharmed. Cure: see that the server runs"
    with ContextualIndex.open(folder, embed_model=model, database=address) as index:
        asked = []
        vector = HashedWords._get_text_embedding

        def counted(self, text):
            asked.append(text)
            if len(asked) == 2:
                server.stop()
            return vector(self, text)

        monkeypatch.setattr(HashedWords, "_get_text_embedding", counted)
        try:
            with pytest.raises(StorageError, match=f"(?s){cure}"):
                index.refresh()
            with pytest.raises(StorageError, match=f"(?s){cure}"):
                index.as_retriever().retrieve("carrots")
            with pytest.raises(StorageError, match=f"(?s){cure}"):
                ContextualIndex.open(folder, embed_model=model, database=address)
        finally:
            server.start()
        report = index.refresh()
        assert report.chunks == len(index.nodes())
        assert index.verify().ok
        assert index.as_retriever().retrieve("carrots")


@pytest.fixture
def cut(asked):
    """Callable: ends all connections, then does something."""

    def end(then=lambda: None):
        asked("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND usesysid = 10")
        return then()

    return end


def test_a_connection_that_dies_costs_one_question_at_most(folder, address, model, cut):
    with ContextualIndex.open(folder, embed_model=model, database=address) as index:
        index.refresh()
        retriever, database = index.as_retriever(), index.settings.database
        wanted = seen(retriever.retrieve("carrots"))
        cut()
        assert seen(retriever.retrieve("carrots")) == wanted, "a pooled connection is looked at before it is used"
        with index._storage.reader.reading() as view, pytest.raises(StorageError, match=r"(?s)cannot be used.*Cure"):
            cut(view.snapshot.count)
        assert seen(retriever.retrieve("carrots")) == wanted
        with pytest.raises(StorageError, match=r"(?s)cannot be used.*Cure"), database.writing() as transaction:
            cut(transaction.count if transaction.delete_documents(["faq.md"]) else None)
        assert "faq.md" in index.documents()
        assert index.verify().ok


def test_no_index_there_names_the_command(folder, address, model, asked):
    schema = address.rpartition("#")[2]
    cure = (
        rf"there is no index in postgresql://.*#{schema}. Cure: llama-index-contextual index .* --database '?postgresql"
    )
    with pytest.raises(StorageError, match=cure):
        ContextualIndex.open(folder, embed_model=model, database=address, create=False)
    with ContextualIndex.open(folder, embed_model=model, database=address) as index:
        with pytest.raises(StorageError, match=cure):
            index.as_retriever().retrieve("carrots")
        index.refresh()
        retriever = index.as_retriever()
        assert retriever.retrieve("carrots")
        asked(f'DROP SCHEMA "{schema}" CASCADE')
        with pytest.raises(StorageError, match=cure):
            retriever.retrieve("carrots")
        assert index.refresh().embedded > 0, "it is made again"
        assert retriever.retrieve("carrots")


def test_a_schema_of_something_else_is_left_alone(folder, address, model, asked):
    schema = address.rpartition("#")[2]
    asked(f'CREATE SCHEMA "{schema}"; CREATE TABLE "{schema}".documents (id int)')
    index = ContextualIndex.open(folder, embed_model=model, database=address)
    with index, pytest.raises(StorageError, match=r"holds tables that are none of an index\. Cure: another #NAME"):
        index.refresh()
    assert asked(f'SELECT count(*) FROM "{schema}".documents') == [(0,)]  # noqa: S608


@pytest.mark.parametrize("name", ["", "a-b", "1", "pg_x", "x" * 64, 'a"; DROP', "é"])
def test_a_name_that_is_none_of_a_schema_is_refused(name):
    with pytest.raises(SettingError, match=r"NAME has up to 63 letters.*Cure"):
        Database(f"postgresql://me:secret@127.0.0.1/x#{name}", "")


@pytest.mark.parametrize(
    "address",
    ["mysql://me:secret@127.0.0.1/x", "secret", "postgresql+psycopg://me:secret@h/x", "postgresql://h:secret/x"],
)
def test_an_address_that_is_none_is_refused_and_shows_no_password(address):
    with pytest.raises(SettingError, match="Cure: postgresql://") as error:
        Database(address, "")
    assert "secret" not in str(error.value) or address == "secret"


@pytest.mark.parametrize("password", ["secret", "secret/1", "sec@secret", "secret?x", "secret%23"])
def test_a_password_is_in_no_message(folder, password, model):
    address = f"postgresql://me:{password}@127.0.0.1:1/x?sslpassword=secret2"
    with pytest.raises(StorageError, match=r"postgresql://me@127\.0\.0\.1:1/x#contextual cannot be used") as error:
        ContextualIndex.open(folder, embed_model=model, database=address)
    assert "secret" not in str(error.value)


def test_the_driver_that_is_missing_is_named(folder, model, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg2", None)
    with pytest.raises(MissingExtraError, match=r"llama-index-contextual\[postgres\]"):
        ContextualIndex.open(folder, embed_model=model, database="postgresql://127.0.0.1:1/x")


def test_a_configuration_names_it(folder, address, model, trusted):
    (folder / "contextual.toml").write_text(f'database = "{address}"\n', "utf-8")
    trusted(folder)
    with ContextualIndex.open(folder, embed_model=model) as index:
        index.refresh()
        assert index.status().database.endswith(address.rpartition("#")[2])
        for path in folder.rglob("*.md"):
            path.unlink()
        with pytest.raises(ConfirmationError):
            index.refresh()
        assert index.as_retriever().retrieve(QueryBundle("carrots"))


@pytest.mark.filterwarnings("always::llama_index_contextual.errors.ContextualWarning")
def test_two_folders_of_one_machine_do_not_share_an_index_and_trust_reads_the_one_that_the_user_named(
    folder, tmp_path, address, run, monkeypatch
):
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_DATABASE", address)
    assert run("index", folder, "--embed-model", "none").returncode == 0
    other = tmp_path / "other"
    other.mkdir()
    (other / "page.md").write_text("# Page\n\nIt waits.\n", "utf-8")
    refused = run("index", other, "--embed-model", "none")
    assert (refused.returncode, f"is of the folder {folder}, not of {other}" in refused.stderr) == (1, True)
    assert "ends in #NAME" in refused.stderr
    with ContextualIndex.open(folder) as index, index.settings.database.writing() as transaction:
        choices = {**index.settings.state().choices, "embed_model": "ollama:x@http://127.0.0.1:1"}
        transaction.set_state(choices=choices)
    assert "counts only from you" in run("search", "anything", "-f", folder).stderr
    assert 'its index: embed_model = "ollama:x@http://127.0.0.1:1"' in run("trust", folder).stdout


def test_what_somebody_else_wrote_there_names_no_model(folder, address, tmp_path, fake_model, model, monkeypatch):
    settings = {"embed_model": model, "database": address}
    with ContextualIndex.open(folder, context="llm", llm=fake_model.llm, **settings) as index:
        index.refresh()
    asked = len(fake_model.requests)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another user"))
    with pytest.warns(ContextualWarning, match="counts only from you"):
        other = ContextualIndex.open(folder, storage=tmp_path / "b", **settings)
    with other:
        assert other.as_retriever().retrieve("carrots")
        with pytest.raises(FingerprintError, match="it is not known to be yours"):
            other.refresh()
    assert len(fake_model.requests) == asked

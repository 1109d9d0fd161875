"""Whatever happens to a file of the storage: a plain error with a cure, and a refresh that makes it whole again."""

import random
import shutil
import sqlite3
import warnings

import pytest
from llama_index.core import MockEmbedding
from llama_index_contextual.index.vector_cache import VectorCache

from llama_index_contextual.config import load_configuration
from llama_index_contextual.errors import ContextualWarning, StorageError
from llama_index_contextual.index import ContextualIndex


class Letters(MockEmbedding):
    def _get_text_embeddings(self, texts):
        return [[float(len(text)), *(float(text.count(letter)) for letter in "aeiou"), 1.0] for text in texts]

    def _get_query_embedding(self, query):
        return self._get_text_embeddings([query])[0]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder with a whole index, to be copied."""
    folder = tmp_path_factory.mktemp("whole") / "docs"
    folder.mkdir()
    for number in range(30):
        text = "\n\n".join(f"## Part {part}\n\n" + f"word{number} word{part} " * 40 for part in range(3))
        (folder / f"{number}.md").write_text(f"# Page {number}\n\n{text}\n")
    with ContextualIndex.open(folder, embed_model=Letters(7, model_name="letters")) as index:
        index.refresh()
    return folder


def opened(folder, **settings):
    return ContextualIndex.open(folder, embed_model=Letters(7, model_name="letters"), **settings)


def files_of(storage):
    return sorted(
        file for file in storage.rglob("*") if file.is_file() and file.stat().st_size and file.suffix != ".lock"
    )


def flip(file, rng):
    content = bytearray(file.read_bytes())
    for _ in range(rng.choice((1, 8, 200))):
        content[rng.randrange(len(content))] = rng.randrange(256)
    file.write_bytes(content)


def cut(file, rng):
    file.write_bytes(file.read_bytes()[: rng.randrange(file.stat().st_size)])


def remove(file, _rng):
    file.unlink()


def fill(file, rng):
    file.write_bytes(rng.randbytes(5000))


def attempt(work):
    """Do something that may fail, if the error is plain and names a cure."""
    try:
        return work()
    except StorageError as error:
        assert "Cure: " in str(error)  # noqa: PT017  whether it fails is chance
        return None


@pytest.mark.long
@pytest.mark.parametrize("seed", [*range(12), 29, 56, 120, 238])  # a panic of Chroma's; a vector lost, and nothing else
def test_a_damaged_storage_gives_plain_errors_and_is_made_whole(whole, tmp_path, seed):
    rng = random.Random(seed)  # noqa: S311  reproducible, not secret
    folder = tmp_path / "docs"
    shutil.copytree(whole, folder)
    file = rng.choice(files_of(folder / ".contextual"))
    rng.choice((flip, flip, cut, remove, fill))(file, rng)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ContextualWarning)
        with opened(folder) as index:
            attempt(lambda: index.as_retriever(3).retrieve("word7 word2"))
            attempt(index.status)
            attempt(index.verify)
            index.refresh()
        with opened(folder) as index:
            index.refresh()
            cure = index.verify()
        with opened(folder, reindex="auto" if cure.ok else "all") as index:  # as verify says
            index.refresh()
            verification = index.verify()
            assert verification.ok, f"{file.name}: {verification}"
            assert verification.documents == 30
            assert len(index.as_retriever(3).retrieve("word7 word2")) == 3


def test_a_cache_of_another_schema_is_set_aside(whole, tmp_path):
    folder = tmp_path / "docs"
    shutil.copytree(whole, folder)
    cache = folder / ".contextual/cache.sqlite3"
    cache.unlink()
    with sqlite3.connect(cache) as database:
        database.execute("CREATE TABLE vectors (something TEXT, else_ TEXT)")
        database.execute("CREATE TABLE kv (key TEXT)")
    database.close()
    (folder / "new.md").write_text("# New\n\nSomething new.\n")
    with opened(folder) as index:
        with pytest.warns(ContextualWarning, match="is of another version"):
            assert index.refresh().added == ["new.md"]
        assert index.verify().ok
    assert list(cache.parent.glob("cache.sqlite3.damaged*"))


def test_what_can_be_read_of_a_damaged_cache_is_taken_over(whole, tmp_path):
    path = tmp_path / "cache.sqlite3"
    shutil.copyfile(whole / ".contextual/cache.sqlite3", tmp_path / "cache.sqlite3.damaged")
    with sqlite3.connect(path.with_name("cache.sqlite3.damaged")) as database:
        [(model, key)] = database.execute("SELECT model, hash FROM vectors LIMIT 1")
    database.close()
    cache = VectorCache(path, model)
    assert cache.get([key])
    cache.close()
    assert not path.with_name("cache.sqlite3.damaged").exists()


def test_verify_reads_vectors(whole, tmp_path):
    folder = tmp_path / "docs"
    shutil.copytree(whole, folder)
    with opened(folder) as index:
        with index._storage.reader.reading() as view:
            ids = view.store.collection.get(limit=2, include=[])["ids"]
            view.store.collection.update(ids=ids, embeddings=[[0.0] * 7, [0.0] * 7])
        assert any("2 of " in problem and "all its numbers are 0" in problem for problem in index.verify().problems)


@pytest.mark.parametrize(("left", "is_kept"), [("head", True), ("tail", False), (None, False)])
def test_settings_that_were_given_are_read_of_a_damaged_manifest_or_said_to_be_lost(
    whole, tmp_path, caplog, left, is_kept
):
    folder = tmp_path / "docs"
    shutil.copytree(whole, folder)
    with opened(folder, config=load_configuration(folder, options={"chunks.size": 60})) as index:
        chunks = index.refresh().chunks
    manifest = folder / ".contextual/manifest.json"
    content = manifest.read_bytes()
    manifest.write_bytes(content[: -len(content) // 2] if left == "head" else content[-len(content) // 2 :])
    if left is None:
        manifest.unlink()
    with opened(folder) as index:
        report = index.refresh()
        assert not report.embedded
        assert (report.chunks == chunks) is is_kept
        index.refresh()
    said = [record.getMessage() for record in caplog.records]
    assert any("its settings can still be read" in line for line in said) is is_kept
    lost = [line for line in said if f"the settings that made the index were in {manifest}, and are lost" in line]
    assert len(lost) == 1 - is_kept, "of the first refresh alone"
    assert all("contexts 'headings', files of the usual kinds. Cure: " in line for line in lost)


def test_a_keyword_index_of_an_index_that_is_lost_is_not_taken_for_that_of_the_next(whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "docs")
    (folder / ".contextual" / "manifest.json").unlink()
    shutil.rmtree(folder / ".contextual" / "chroma")
    (folder / "7.md").unlink()
    with opened(folder) as index:
        index.refresh()
        assert index.verify().ok, str(index.verify())
        assert "7.md" not in {hit.node.metadata["path"] for hit in index.as_retriever().retrieve("word7")}

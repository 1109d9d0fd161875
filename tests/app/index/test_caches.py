"""Arrays on disk count only for the index and the version that they were made by."""

import contextvars
import shutil

import pytest

from llama_index_contextual.app.index import caches
from llama_index_contextual.retrievers import arrays


def saved_kinds(index):
    """Return the kinds of arrays on disk that an index takes up."""
    kept = index.settings.caches
    with index.settings.database.reading() as snapshot:
        kept.moment_of(snapshot)
    return {kind for kind, rows in kept._saved_rows.items() if len(rows)}


def test_arrays_of_another_index_are_not_taken_up(opened, model, tmp_path):
    texts = {"tea": "Tea is green.", "coffee": "Coffee is black."}
    indexes = {}
    for name, text in texts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "note.md").write_text(f"# Note\n\n{text}\n", "utf-8")
        indexes[name] = opened(tmp_path / name, embed_model=model)
        indexes[name].refresh()
    for file in indexes["tea"].settings.layout.cache.glob("*.arrays"):
        shutil.copy(file, indexes["coffee"].settings.layout.cache)
    index = opened(tmp_path / "coffee", embed_model=model)
    assert saved_kinds(index) == set()
    assert [hit.text for hit in index.as_retriever(1).retrieve("black coffee")] == [
        "# Note\n\nCoffee is black."
    ]


@pytest.mark.parametrize(
    ("version", "taken_up"),
    [
        ("TERMS_VERSION", {"vectors", "names"}),
        ("CHUNK_INFO_VERSION", {"bm25", "vectors", "names"}),
        ("NAMES_VERSION", {"bm25", "vectors", "infos"}),
    ],
)
def test_arrays_of_another_version_are_derived_again(opened, model, monkeypatch, version, taken_up):
    opened(embed_model=model).refresh()
    assert saved_kinds(opened(embed_model=model)) == {"bm25", "infos", "vectors", "names"}
    monkeypatch.setattr(caches, version, 99_999)
    assert saved_kinds(opened(embed_model=model)) == taken_up


def test_arrays_of_another_shape_are_derived_again(opened, model):
    opened(embed_model=model).refresh()
    layout = opened(embed_model=model).settings.layout
    for file in layout.cache.glob("*.arrays"):
        content, columns = arrays.read_arrays(file)
        for name, values in columns.items():
            arrays.write_arrays(file, content, {**columns, name: values[..., None]})
            index = opened(embed_model=model)
            assert saved_kinds(index) == {"bm25", "infos", "vectors", "names"} - {file.stem}
        arrays.write_arrays(file, content, columns)


def test_a_thread_that_outlives_its_question_reads_the_newest_state(opened, folder, model):
    index = opened(embed_model=model)
    index.refresh()
    with index._reader.snapshot() as view:
        assert len(view.snapshot.rows()) == 4
        of_the_question = contextvars.copy_context()
    (folder / "new.md").write_text("# New\n\nA zebra crossed the road.\n", "utf-8")
    index.refresh()
    rows = of_the_question.run(index._reader.ask, lambda view: view.snapshot.rows())
    assert len(rows) == 5

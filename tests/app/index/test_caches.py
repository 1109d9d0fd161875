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


def test_a_value_is_read_once_for_each_row(tmp_path, monkeypatch):
    monkeypatch.setattr(caches, "_MAX_VALUES", 3)
    reads = []

    def read(rows):
        reads.append(rows.tolist())
        return [f"value {row}" for row in rows]

    kept = caches.Caches(tmp_path, "")
    assert kept.values("author", [7, 3, 7], read) == ["value 7", "value 3", "value 7"]
    assert kept.values("author", [3, 5], read) == ["value 3", "value 5"]
    kept.values("title", [3], read)
    assert reads == [[3, 7], [5], [3]]
    kept.values("author", [9], read)
    kept.values("author", [3], read)  # beyond the bound, cached values are dropped
    assert reads[3:] == [[9], [3]]


def saved_at(index):
    return (index.settings.layout.cache / "bm25.arrays").stat().st_mtime_ns


def test_arrays_are_saved_once_more_than_a_fiftieth_of_the_rows_has_changed(opened, folder):
    sections = [f"# Tea {number}\n\nIt is green.\n" for number in range(96)]
    (folder / "tea.md").write_text("\n".join(sections), "utf-8")
    index = opened(embed_model="none")
    index.refresh()
    saved = [saved_at(index)]
    for name in ("faq.md", "guide.md"):  # each change drops a row and adds another
        (folder / name).write_text("# Coffee\n\nIt is black.\n", "utf-8")
        index.refresh()
        saved.append(saved_at(index))
    assert index.status().chunks == 100
    assert saved[0] == saved[1] < saved[2]


def test_an_older_moment_does_not_take_the_place_of_a_newer_one(opened, folder, model):
    index = opened(embed_model=model)
    index.refresh()
    kept = index.settings.caches
    with index.settings.database.reading() as older:
        (folder / "new.md").write_text("# New\n\nA zebra.\n", "utf-8")
        index.refresh()
        with index.settings.database.reading() as newer:
            moment = kept.moment_of(newer)
            assert len(kept.moment_of(older).bm25.rows) == 4
            assert kept.moment_of(newer) is moment

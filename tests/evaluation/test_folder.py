from dataclasses import replace
from pathlib import Path

import pytest
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore

from llama_index_contextual.app.evaluation import Comparison, Passage, Question, evaluate, load_questions
from llama_index_contextual.app.evaluation.comparison import COLLAPSED
from llama_index_contextual.app.index import ContextualIndex
from llama_index_contextual.app.settings.local import LocalEmbedding
from llama_index_contextual.errors import ContextualWarning, SettingError

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def embedding():
    return LocalEmbedding(threads=1)


LIKE_ANY_OTHER = (  # and long enough for a chunk of its own
    "It can be changed in the file of settings, which is read again at every start, and by a variable of the "
    "environment, which wins. A value that cannot be read is refused with a line in the log, and the former one stays "
    "in force until somebody has mended it. Nothing else depends on it."
)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "docs"
    for name in ("Gateway", "Scheduler", "Archive", "Console"):
        file = folder / f"{name.lower()}.md"
        file.parent.mkdir(exist_ok=True)
        start = f"# {name}\n\n## Timeout\n\nThe default value is {10 * len(name)} seconds. {LIKE_ANY_OTHER}\n"
        file.write_text(f"{start}\n## Retries\n\nThe default value is 2. {LIKE_ANY_OTHER}\n", "utf-8")
    return folder


QUESTIONS = [
    Question(f"What is the default for retries of the {name}?", (Passage(f"{name}.md", text="## Retries"),))
    for name in ("gateway", "scheduler", "archive", "console")
]


def test_contexts_find_what_the_text_alone_does_not(folder, embedding):
    said = []
    found = evaluate(folder, QUESTIONS, embed_model=embedding, top_k=[1], say=said.append)
    names = [row.name for row in found.rows]
    assert names == ["text alone, vectors alone", "text alone", "LlamaIndex metadata", "headings", "pattern"]
    assert found.baseline == "text alone"
    recalls = {row.name: row.recalls.mean() for row in found.rows}
    assert recalls["headings"] == 1
    assert recalls["text alone"] < 1
    assert found.gained("headings")
    assert not found.lost("headings")
    assert len(said) == 5, "an estimate, and a line for each index"
    assert list(folder.parent.iterdir()) == [folder], "nothing is left"
    assert not (folder / ".contextual").exists()


def test_a_context_that_all_chunks_share_shows_as_a_collapse(folder, embedding, monkeypatch):
    phrase = "This chunk belongs to a document that is part of the documentation of the product of the company. " * 3
    settings = {"embed_model": embedding, "contexts": ["headings"], "top_k": [1], "leave_out_keys": ["*"]}
    plain = evaluate(folder, QUESTIONS, **settings).rows[-1]
    monkeypatch.setattr("llama_index_contextual.context.free.HeadingContextGenerator.describe", lambda *_: (phrase, ""))
    collapsed = evaluate(folder, QUESTIONS, **settings).rows[-1]
    assert collapsed.notes["chunks alike"] > plain.notes["chunks alike"] + 0.05
    assert collapsed.notes["spread"] < plain.notes["spread"]
    assert (plain.notes["same context, %"], collapsed.notes["same context, %"]) == (0, 100)
    assert collapsed.recalls.mean() < plain.recalls.mean()
    compared = Comparison(tuple(QUESTIONS), (1,), (plain, replace(collapsed, name="phrase")), plain.name)
    assert "phrase: 100 % of the nearest chunks have the same context" in str(compared)
    assert str(compared).count("have the same context") == 1


def test_a_storage_is_kept_and_used_again(folder, embedding, tmp_path, monkeypatch):
    kept = tmp_path / "kept"
    first = evaluate(folder, QUESTIONS, embed_model=embedding, storage=kept, contexts=["headings"])
    assert sorted(path.name for path in kept.iterdir()) == ["headings", "text-alone"]
    embedded, embed = [], LocalEmbedding._get_text_embeddings
    monkeypatch.setattr(
        LocalEmbedding, "_get_text_embeddings", lambda self, texts: embedded.extend(texts) or embed(self, texts)
    )
    again = evaluate(folder, QUESTIONS, embed_model=embedding, storage=kept, contexts=["headings"])
    assert set(embedded) == {question.text for question in QUESTIONS}
    assert _without_times(again.to_dict()) == _without_times(first.to_dict())


def _without_times(data):
    times = {"ms a question", "embedding, s"}
    return {**data, "rows": [{key: row[key] for key in set(row) - times} for row in data["rows"]]}


def test_all_rows_have_the_chunks_of_the_folder_s_own_index(folder, embedding, tmp_path):
    (folder / "contextual.toml").write_text("[chunks]\nchunk_size = 40\nchunk_overlap = 0\n", "utf-8")
    with ContextualIndex.open(folder, embed_model=embedding) as index:
        chunks = index.refresh().chunks
    (tmp_path / "words.toml").write_text("[retrieval]\nrecency = true\n", "utf-8")
    variants = {"by days": tmp_path / "words.toml"}
    compared = evaluate(folder, QUESTIONS, contexts=["off", "headings"], variants=variants, top_k=[1])
    assert chunks > 8, "more than with the parser that is the default"
    assert {row.notes["chunks"] for row in compared.rows[1:]} == {chunks}


def test_a_variant_may_change_anything_but_the_files(folder, embedding, tmp_path):
    (folder / "contextual.toml").write_text("[chunks]\nchunk_size = 120\n[retrieval]\ntop_k = 3\n", "utf-8")
    files = {
        "small": "[chunks]\nchunk_size = 40\nchunk_overlap = 0\n[files]\nexclude = ['*.md']\n",
        "by days": "[retrieval]\nrecency = true\n",
        "a file": "[retrieval]\nper_file = 1\n",
        "paths": "context = 'off'\n",
        "no vectors": "embed_model = 'none'\n",
    }
    for name, text in files.items():
        (tmp_path / f"{name}.toml").write_text(text, "utf-8")
    variants = {name: tmp_path / f"{name}.toml" for name in files}
    kept = tmp_path / "kept"
    found = evaluate(
        folder, QUESTIONS, embed_model=embedding, contexts=["headings"], variants=variants, storage=kept, top_k=[1]
    )
    rows = {row.name: row for row in found.rows}
    assert list(rows) == ["text alone, vectors alone", "text alone", "headings", *files]
    assert rows["small"].notes["chunks"] > rows["headings"].notes["chunks"] == rows["by days"].notes["chunks"] == 8
    assert rows["headings"].mrr == 1
    assert rows["no vectors"].notes["chunks"] == 8
    assert "embedding, s" not in rows["no vectors"].notes
    assert rows["paths"].notes["characters embedded"] != rows["headings"].notes["characters embedded"]
    assert sorted(path.name for path in kept.iterdir()) == ["headings", "no-vectors", "paths", "small", "text-alone"], (
        "what is asked otherwise is not indexed again"
    )
    assert not (folder / ".contextual").exists()


def test_a_reranker_is_a_row_beside_the_rest(folder, embedding):
    class Backwards(BaseNodePostprocessor):
        def _postprocess_nodes(self, nodes, query_bundle=None):
            return [NodeWithScore(node=one.node, score=float(rank)) for rank, one in enumerate(nodes)]

    found = evaluate(folder, QUESTIONS, embed_model=embedding, contexts=["headings"], rerank=[Backwards()], top_k=[1])
    *_, plain, turned = found.rows
    assert (plain.name, turned.name) == ("headings", "headings, Backwards")
    assert turned.recalls.sum() == 0
    assert plain.recalls.mean() == 1


def test_what_a_model_wrote_is_kept_with_the_folder_and_asked_for_once(folder, embedding, fake_model):
    options = {
        "embed_model": embedding,
        "contexts": ["headings", "llm"],
        "llm": fake_model.llm,
    }
    found = evaluate(folder, QUESTIONS, **options)
    assert [row.name for row in found.rows][2:] == ["headings", "llm"]
    asked = len(fake_model.requests)
    assert asked > 0
    evaluate(folder, QUESTIONS, **options)
    assert len(fake_model.requests) == asked
    with ContextualIndex.open(folder, embed_model=embedding, context="llm", llm=fake_model.llm) as index:
        assert index.refresh().context_sources == {"llm:fake+pattern": 8}
    assert len(fake_model.requests) == asked


def test_answers_that_are_nowhere_are_named(folder, embedding):
    lost = Question("What is the default of the gateway on the moon?", (Passage("gateway.md"), Passage("moon.md")))
    with pytest.warns(ContextualWarning, match=r"^1 question has an answer.*gateway on the moon\?'.*moon\.md"):
        found = evaluate(folder, [*QUESTIONS, lost], embed_model=embedding, contexts=[], top_k=[20])
    assert found.rows[-1].recalls[-1].tolist() == [0.5]
    other = Question("Who walks on the moon?", (Passage("moon.md"),))
    with pytest.warns(ContextualWarning, match=r"^2 questions have an answer.*gateway on the moon.*Who walks"):
        evaluate(folder, [*QUESTIONS, lost, other], embed_model=embedding, contexts=[], top_k=[20])


def test_an_empty_folder_or_a_wrong_context_is_an_error(folder, embedding, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(SettingError, match="holds no files to index"):
        evaluate(tmp_path / "empty", QUESTIONS, embed_model=embedding)
    with pytest.raises(SettingError, match="'magic' is not known"):
        evaluate(folder, QUESTIONS, embed_model=embedding, contexts=["magic"])


def test_a_file_that_cannot_be_read_is_named_and_the_rest_compared(folder, embedding):
    (folder / "broken.md").write_bytes(b"# \xff\xfe\x00broken\xff")
    with pytest.warns(ContextualWarning, match=r"could not be read, e\.g\. broken\.md"):
        assert evaluate(folder, QUESTIONS, embed_model=embedding, contexts=[], top_k=[5], say=print).rows


def test_the_questions_of_the_examples_have_answers_in_the_notes(embedding, recwarn):
    questions = load_questions(EXAMPLES / "questions.jsonl")
    found = evaluate(EXAMPLES / "notes", questions, embed_model=embedding, contexts=["headings"], top_k=[1, 5])
    assert not [warning for warning in recwarn if issubclass(warning.category, ContextualWarning)]
    alone, headings = (row.recalls[:, 0].mean() for row in found.rows[1:])
    assert headings > alone


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"contexts": ["headings", "magic"]}, "'magic' is not known"),
        ({"contexts": ["headings", "llm"], "llm": "magic:x"}, "magic:x"),
        ({"questions": []}, "there are no questions"),
        ({"chunk": 3}, "chunk"),
        ({"contexts": [], "rerank": ["magic:x"]}, "names no reranker"),
        ({"contexts": [], "variants": {"text alone": "a.toml"}}, "no name of its own"),
        ({"contexts": [], "variants": {"x": "no-such.toml"}}, "no-such.toml is no file"),
    ],
)
def test_a_bad_setting_is_refused_before_anything_is_embedded(folder, embedding, monkeypatch, settings, message):
    embedded = []
    monkeypatch.setattr(LocalEmbedding, "_get_text_embeddings", lambda _, texts: embedded.extend(texts))
    with pytest.raises(SettingError, match=message):
        evaluate(folder, **{"questions": QUESTIONS, "embed_model": embedding, "contexts": ["llm"], **settings})
    assert embedded == []


def test_each_different_text_is_embedded_once_and_the_run_is_estimated(folder, embedding, monkeypatch):
    embedded, embed = [], LocalEmbedding._get_text_embeddings
    monkeypatch.setattr(
        LocalEmbedding, "_get_text_embeddings", lambda self, texts: embedded.extend(texts) or embed(self, texts)
    )
    said = []
    evaluate(folder, QUESTIONS, embed_model=embedding, top_k=[1], say=said.append)
    assert len(embedded) == len(set(embedded)), "pattern writes what headings writes, and each question is asked often"
    assert said[0].startswith("8 chunks in 4 indexes: less than a minute of embedding at most")


@pytest.mark.long
def test_headings_of_real_pages_are_no_collapse_and_a_phrase_on_all_of_them_is(data, embedding, tmp_path, monkeypatch):
    folder = tmp_path / "pages"
    folder.mkdir()
    for page in sorted((data("kubernetes-docs") / "corpus").glob("*.md"))[:200:25]:
        (folder / page.name).write_bytes(page.read_bytes())

    def alike():
        with ContextualIndex.open(folder, embed_model=embedding, storage=tmp_path / str(len(shares))) as index:
            assert index.refresh().chunks > 100
            return index.likeness()

    shares = []
    shares.append(alike())
    monkeypatch.setattr(
        "llama_index_contextual.context.free.HeadingContextGenerator.describe", lambda *_: ("Part of the docs.", "")
    )
    shares.append(alike())
    headings, phrase = shares
    assert headings.shared < COLLAPSED / 100 < phrase.shared == 1, shares

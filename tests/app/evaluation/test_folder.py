from pathlib import Path
from types import SimpleNamespace

import pytest
from llama_index.core.schema import TextNode
from storage import storage_of

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.evaluation import Passage, Question, evaluate, load_questions
from llama_index_contextual.app.evaluation.folder import _check_answers, _work_in_words
from llama_index_contextual.app.settings.local import LocalEmbedding
from llama_index_contextual.context.base import ContextEstimate, Tokens
from llama_index_contextual.utils.errors import ContextualWarning, SettingError

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(scope="module")
def embedding():
    return LocalEmbedding(threads=1)


LIKE_ANY_OTHER = (  # and long enough for a chunk of its own
    "It can be changed in the file of settings, which is read again at every start, and "
    "by a variable of the "
    "environment, which wins. A value that cannot be read is refused with a line in the "
    "log, and the former one stays "
    "in force until somebody has mended it. Nothing else depends on it."
)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "docs"
    for name in ("Gateway", "Scheduler", "Archive", "Console"):
        file = folder / f"{name.lower()}.md"
        file.parent.mkdir(exist_ok=True)
        start = (
            f"# {name}\n\n## Timeout\n\nThe default value is {10 * len(name)} seconds. "
            f"{LIKE_ANY_OTHER}\n"
        )
        file.write_text(
            f"{start}\n## Retries\n\nThe default value is 2. {LIKE_ANY_OTHER}\n", "utf-8"
        )
    return folder


QUESTIONS = [
    Question(
        f"What is the default for retries of the {name}?",
        (Passage(path=f"{name}.md", text="## Retries"),),
    )
    for name in ("gateway", "scheduler", "archive", "console")
]


def test_contexts_find_what_the_text_alone_does_not(folder, embedding):
    said = []
    comparison = evaluate(folder, QUESTIONS, embed_model=embedding, top_k=[1], say=said.append)
    names = [row.name for row in comparison.rows]
    assert names[:2] == ["text alone", "LlamaIndex metadata"]
    assert {"headings", "pattern"} <= {*names}
    recalls = {row.name: row.recalls.mean() for row in comparison.rows}
    assert recalls["headings"] == 1
    assert recalls["text alone"] < 1
    headings = comparison.to_dict()["rows"][names.index("headings")]
    assert headings["gained"]
    assert not headings["lost"]
    indexed = [text for text in said if text.startswith("Indexing")]
    assert len(indexed) == len(names)
    assert len(said) == len(indexed) + 1, "an estimate, and a line for each index"
    assert list(folder.parent.iterdir()) == [folder], "nothing is left"
    assert not storage_of(folder).exists()


def test_a_storage_is_kept_and_used_again(folder, embedding, tmp_path, monkeypatch):
    kept = tmp_path / "kept"
    first = evaluate(folder, QUESTIONS, embed_model=embedding, storage=kept, contexts=["headings"])
    assert sorted(path.name for path in kept.iterdir()) == ["headings", "text alone"]
    embedded, embed = [], LocalEmbedding._get_text_embeddings
    monkeypatch.setattr(
        LocalEmbedding,
        "_get_text_embeddings",
        lambda self, texts: embedded.extend(texts) or embed(self, texts),
    )
    second = evaluate(folder, QUESTIONS, embed_model=embedding, storage=kept, contexts=["headings"])
    assert set(embedded) == {question.text for question in QUESTIONS}
    assert second.to_dict() == first.to_dict()


def test_all_rows_have_the_chunks_of_the_folder_s_own_index(folder, embedding, tmp_path):
    (folder / "contextual.toml").write_text(
        "[chunks]\nchunk_size = 40\nchunk_overlap = 0\n", "utf-8"
    )
    with ContextualIndex.open(folder, embed_model=embedding) as index:
        chunks = index.refresh().chunks
    evaluate(folder, QUESTIONS, contexts=["off", "headings"], storage=tmp_path / "kept", top_k=[1])
    assert chunks > 8, "more than with the parser that is the default"
    for name in ("text alone", "LlamaIndex metadata", "headings"):
        with ContextualIndex.open(folder, storage=tmp_path / "kept" / name, create=False) as row:
            assert len(row.nodes()) == chunks


def test_what_a_model_wrote_is_kept_with_the_folder_and_asked_for_once(
    folder, embedding, fake_model
):
    options = {
        "embed_model": embedding,
        "contexts": ["headings", "llm"],
        "llm": fake_model.llm,
    }
    comparison = evaluate(folder, QUESTIONS, **options)
    assert [row.name for row in comparison.rows][1:] == ["headings", "llm"]
    asked = len(fake_model.requests)
    assert asked > 0
    evaluate(folder, QUESTIONS, **options)
    assert len(fake_model.requests) == asked
    with ContextualIndex.open(
        folder, embed_model=embedding, context="llm", llm=fake_model.llm
    ) as index:
        assert index.refresh().context_sources == {"llm:fake+pattern": 8}
    assert len(fake_model.requests) == asked


def test_answers_that_are_nowhere_are_named(folder, embedding):
    lost = Question(
        "What is the default of the gateway on the moon?",
        (Passage(path="gateway.md"), Passage(path="moon.md")),
    )
    with pytest.warns(
        ContextualWarning, match=r"^1 answer in no chunk: .*gateway on the moon\?'.*moon\.md"
    ):
        comparison = evaluate(
            folder, [*QUESTIONS, lost], embed_model=embedding, contexts=[], top_k=[20]
        )
    assert comparison.rows[-1].recalls[-1].tolist() == [0.5]
    other = Question("Who walks on the moon?", (Passage(path="moon.md"),))
    with pytest.warns(
        ContextualWarning, match=r"^2 answers in no chunk.*gateway on the moon.*Who walks"
    ):
        evaluate(folder, [*QUESTIONS, lost, other], embed_model=embedding, contexts=[], top_k=[20])


def with_lost_answers(number):
    lost = [Question(f"Lost {index}?", (Passage(path=f"{index}.md"),)) for index in range(number)]
    return [Question("Did it rain?", (Passage(path="log.md"),)), *lost]


@pytest.mark.parametrize(
    ("number", "ending"), [(1, r"0\.md\)"), (3, r"2\.md\)"), (4, r"2\.md\) …")]
)
def test_at_most_three_lost_answers_are_named(number, ending):
    nodes = [TextNode(text="It rained.", metadata={"path": "log.md"})]
    message = rf"^{number} answers? in no chunk: 'Lost 0\?' \(.*{ending}\. Use paths relative"
    with pytest.warns(ContextualWarning, match=message):
        _check_answers(nodes, with_lost_answers(number), "notes")


def test_questions_without_any_answer_are_an_error():
    nodes = [TextNode(text="It rained.", metadata={"path": "log.md"})]
    with pytest.raises(SettingError, match="2 answers in no chunk"):
        _check_answers(nodes, with_lost_answers(2)[1:], "notes")


def test_the_cost_of_a_language_model_is_told_before_it_is_called():
    free = SimpleNamespace(settings=SimpleNamespace(paid_source=None), files=lambda: ["a", "b"])
    cost = ContextEstimate(5, calls=2, tokens=Tokens(prompt=1200))
    paid = SimpleNamespace(settings=SimpleNamespace(paid_source="llm:x"), estimate=lambda: cost)
    assert _work_in_words({"text alone": free, "llm": paid}) == (
        "2 documents in 2 indexes; 2 calls, about 1,200 tokens in"
    )


def test_an_empty_folder_or_a_wrong_context_is_an_error(folder, embedding, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(SettingError, match="contains no files to index"):
        evaluate(tmp_path / "empty", QUESTIONS, embed_model=embedding)
    with pytest.raises(SettingError, match=r"must be one of .*'magic'"):
        evaluate(folder, QUESTIONS, embed_model=embedding, contexts=["magic"])


def test_a_file_that_cannot_be_read_is_named_and_the_rest_compared(folder, embedding):
    (folder / "broken.md").write_bytes(b"# \xff\xfe\x00broken\xff")
    with pytest.warns(ContextualWarning, match=r"could not be read: broken\.md"):
        assert evaluate(
            folder, QUESTIONS, embed_model=embedding, contexts=[], top_k=[5], say=print
        ).rows


def test_the_questions_of_the_examples_have_answers_in_the_notes(embedding, recwarn):
    questions = load_questions(EXAMPLES / "questions.jsonl")
    comparison = evaluate(
        EXAMPLES / "notes", questions, embed_model=embedding, contexts=["headings"], top_k=[1, 5]
    )
    assert not [warning for warning in recwarn if issubclass(warning.category, ContextualWarning)]
    alone, headings = (row.recalls[:, 0].mean() for row in comparison.rows)
    assert headings > alone


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"contexts": ["headings", "magic"]}, "must be one of .*'magic'"),
        ({"contexts": ["headings", "llm"], "llm": "magic:x"}, "magic:x"),
        ({"questions": []}, "There are no questions"),
        ({"chunk": 3}, "chunk"),
    ],
)
def test_a_bad_setting_is_refused_before_anything_is_embedded(
    folder, embedding, monkeypatch, settings, message
):
    embedded = []
    monkeypatch.setattr(
        LocalEmbedding, "_get_text_embeddings", lambda _, texts: embedded.extend(texts)
    )
    with pytest.raises(SettingError, match=message):
        evaluate(
            folder,
            **{"questions": QUESTIONS, "embed_model": embedding, "contexts": ["llm"], **settings},
        )
    assert embedded == []


def test_each_different_text_is_embedded_once_and_the_run_is_estimated(
    folder, embedding, monkeypatch
):
    embedded, embed = [], LocalEmbedding._get_text_embeddings
    monkeypatch.setattr(
        LocalEmbedding,
        "_get_text_embeddings",
        lambda self, texts: embedded.extend(texts) or embed(self, texts),
    )
    said = []
    comparison = evaluate(folder, QUESTIONS, embed_model=embedding, top_k=[1], say=said.append)
    assert len(embedded) == len(set(embedded)), (
        "pattern writes what headings writes, and each question is asked often"
    )
    assert said[0] == f"4 documents in {len(comparison.rows)} indexes"

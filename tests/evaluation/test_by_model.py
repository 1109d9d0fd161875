"""Questions that are made from the documents."""

import sys
from importlib import import_module
from pathlib import Path

import pytest
from fake_model import Reply, always
from llama_index.core.schema import TextNode

from llama_index_contextual.app.evaluation import make_questions
from llama_index_contextual.errors import ContextError, SettingError

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(BENCHMARKS))
    before = set(sys.modules)
    questions_by_rule = import_module("made_questions").questions_by_rule
    for name in set(sys.modules) - before:  # other packages are called as files in there are, such as "datasets"
        if Path(getattr(sys.modules[name], "__file__", None) or "").parent == BENCHMARKS:
            del sys.modules[name]

SENTENCES = {
    "gateway": "The gateway closes an idle connection after sixty seconds unless the client sends a heartbeat.",
    "scheduler": "The scheduler starts a delayed job again after sixty seconds unless the client cancels the job.",
    "archive": "The archive keeps a closed connection record for sixty days unless the client deletes the record.",
}


@pytest.fixture
def folder(tmp_path):
    for name, sentence in SENTENCES.items():
        (tmp_path / f"{name}.md").write_text(f"# {name.title()}\n\n## Idle times\n\n{sentence}\n", "utf-8")
    return tmp_path


def nodes():
    return [
        TextNode(
            id_=name,
            text=f"## Idle\n\n{text}",
            metadata={"path": f"{name}.md", "header_path": f"{name.title()} > Idle"},
        )
        for name, text in SENTENCES.items()
    ]


def test_a_rule_takes_words_of_a_sentence_out_and_knows_the_answer():
    chunks = nodes()
    made = questions_by_rule(chunks, "sentences", 100)
    assert len(made) == 3
    for question in made:
        [answer] = [chunk for chunk in chunks if question.covered_by(chunk)]
        words = question.text.split()
        assert len(words) >= 3
        assert set(words) < set(SENTENCES[answer.node_id].rstrip(".").split())
        assert answer.node_id not in question.text.lower(), "a word that only one chunk has would find it alone"
    assert made == questions_by_rule(chunks[::-1], "sentences", 100), "the order of the chunks does not count"
    assert len(questions_by_rule(chunks, "sentences", 2)) == 2


def test_other_rules_ask_by_the_place():
    assert {one.text for one in questions_by_rule(nodes(), "places", 100)} == {
        "Gateway Idle",
        "Scheduler Idle",
        "Archive Idle",
    }
    assert all(one.text.split()[0].lower() in SENTENCES for one in questions_by_rule(nodes(), "both", 100))


def test_a_chunk_without_a_sentence_gives_no_question():
    assert questions_by_rule([TextNode(text="# Title\n\nToo short.")], "sentences", 100) == []


def test_a_model_is_estimated_asked_once_and_not_believed_blindly(folder, fake_model):
    asked = []

    def reply(request, _):
        if "The gateway" in request.prompt:
            return Reply("How long may a peer stay silent before it is dropped?\n")
        if "The scheduler" in request.prompt:
            return Reply("What happens after sixty seconds unless the client acts?")  # four words in a row
        return Reply("How long may a peer stay silent before it is dropped?")  # asked already

    fake_model.reply = reply
    made = make_questions(folder, llm=fake_model.llm, say=asked.append)
    assert [one.text for one in made] == ["How long may a peer stay silent before it is dropped?"]
    assert "Place: gateway.md" in "".join(request.prompt for request in fake_model.requests)
    assert asked[0].startswith("Questions by openai:fake@")
    assert "3 calls" in asked[0]
    assert make_questions(folder, llm=fake_model.llm, say=asked.append) == made
    assert "0 calls" in asked[1]
    assert len(fake_model.requests) == 3, "what was said is kept"


def test_a_model_that_is_of_no_use_is_named(folder, fake_model, monkeypatch):
    fake_model.reply = always(Reply("I cannot."))
    with pytest.raises(SettingError, match="wrote no usable question"):
        make_questions(folder, llm=fake_model.llm)
    fake_model.stop()
    (folder / "new.md").write_text("# New\n\nThis page came later and nobody has asked anything about it.\n", "utf-8")
    with pytest.raises(SettingError, match="cannot be asked for questions"):
        make_questions(folder, llm=fake_model.llm)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ContextError, match="OPENAI_API_KEY"):
        make_questions(folder, llm="openai:gpt-4.1-mini")


@pytest.mark.server
def test_a_real_model_writes_something(folder, llama_server):
    """A model of 135 M parameters writes no good questions: the call, the cache and the checks are what is tested."""
    try:
        made = make_questions(folder, llm=f"openai:{llama_server.model}@{llama_server.api_base}", most=2)
    except SettingError as error:
        assert "wrote no usable question" in str(error)  # noqa: PT017
    else:
        assert all(one.text.endswith("?") for one in made)

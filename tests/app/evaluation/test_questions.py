import json

import pytest
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode

from llama_index_contextual.app.evaluation import Passage, Question, load_questions
from llama_index_contextual.utils.errors import DocumentError, SettingError


def node(text="", document=None, **metadata):
    source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=document)} if document else {}
    return TextNode(text=text, metadata=metadata, relationships=source)


LINED = {"path": "docs/gateway.md", "start_line": 12, "end_line": 16}


@pytest.mark.parametrize(
    ("passage", "chunk", "holds"),
    [
        (Passage(path="docs/gateway.md"), node(path="docs/gateway.md"), True),
        (Passage(path="gateway.md"), node(path="docs/gateway.md"), True),
        (Passage(path="way.md"), node(path="docs/gateway.md"), False),
        (Passage(path="docs\\gateway.md"), node(file_path="/home/me/docs/gateway.md"), True),
        (Passage(path="gateway.md"), node(document="gateway.md"), True),
        (Passage(path="gateway.md"), node("gateway.md"), False),
        (Passage(text="Value\n is  60"), node("the value is 60."), True),
        (Passage(text="value is 60"), node("the value", path="value is 60"), False),
        (Passage(path="gateway.md", text="60"), node("60", path="scheduler.md"), False),
        (Passage(path="gateway.md", lines=(16, 20)), node(**LINED), True),
        (Passage(path="gateway.md", lines=(17, 20)), node(**LINED), False),
        (Passage(path="gateway.md", lines=(1, 12)), node(**LINED), True),
        (Passage(path="gateway.md", lines=(1, 11)), node(**LINED), False),
        (Passage(path="scheduler.md", lines=(1, 99)), node(**LINED), False),
        (Passage(path="a.pdf", page=2), node(path="a.pdf", page_label="2"), True),
        (Passage(path="a.pdf", page="2"), node(path="a.pdf", page_label="12"), False),
        (Passage(path="/docs/gateway.md"), node(path="docs/gateway.md"), True),
    ],
)
def test_a_chunk_holds_a_passage_if_all_that_is_given_fits(passage, chunk, holds):
    assert passage.is_in(chunk) is holds


def test_a_message_names_a_passage_as_people_cite_it():
    assert (
        str(Passage(path="docs/a.md", lines=(3, 5), text="two words"))
        == 'docs/a.md#L3-L5 "two words"'
    )
    assert (str(Passage(path="docs/a.md")), str(Passage(text="two words"))) == (
        "docs/a.md",
        '"two words"',
    )


def test_lines_need_a_chunk_that_knows_its_own():
    with pytest.raises(SettingError, match=r"no start_line and end_line"):
        Passage(path="a.md", lines=(1, 2)).is_in(node(path="a.md"))


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"text": " "},
        {"lines": (1, 2)},
        {"text": "x", "lines": (1, 2)},
        {"text": "x", "page": "2"},
    ],
)
def test_a_passage_says_where(wrong):
    with pytest.raises(SettingError):
        Passage(**wrong)


ENTRIES = [
    {"question": "How long?", "path": "a.md", "lines": "12-16"},
    {"question": "How many?", "path": "a.md", "text": "two, or three"},
    {"question": "How long?", "path": "b.md", "lines": 7},
]
LOADED = [
    Question(
        "How long?", (Passage(path="a.md", lines=(12, 16)), Passage(path="b.md", lines=(7, 7)))
    ),
    Question("How many?", (Passage(path="a.md", text="two, or three"),)),
]


def test_a_file_of_json_lines(tmp_path):
    lines = tmp_path / "q.jsonl"
    lines.write_text("\n\n".join(map(json.dumps, ENTRIES)), "utf-8-sig")
    assert load_questions(str(lines)) == load_questions(lines) == LOADED


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("q.jsonl", "", r"q\.jsonl has no questions"),
        (
            "q.jsonl",
            '{"question": "x", "path": "a"}\n{',
            r"q\.jsonl:2: it is not JSON \(EOF while parsing.*Write UTF-8",
        ),
        ("q.jsonl", "[1]", r"q\.jsonl:1: it has no question"),
        ("q.jsonl", '{"path": "a"}', r"q\.jsonl:1: it has no question"),
        ("q.jsonl", '{"question": "x"}', r"q\.jsonl:1: .*a path, or a text"),
        ("q.jsonl", '{"question": "x", "path": "a", "lines": "top"}', "`lines` must be .*'top'"),
        ("q.jsonl", '{"question": "x", "path": "a", "lines": true}', "`lines` must be .*True"),
        (
            "q.jsonl",
            '{"question": "x", "path": "a", "line": 3}',
            "the line does not take line. It takes lines, page, path, question, text",
        ),
        ("q.jsonl", '{"question": ["x"], "path": "a"}', r"q\.jsonl:1: it has no question"),
        ("q.jsonl", '{"question": 5, "path": "a"}', r"q\.jsonl:1: it has no question"),
        (
            "q.jsonl",
            json.dumps({"question": "x" * 10_001, "path": "a"}),
            r"its question has 10,001 characters, more than 10,000",
        ),
        (
            "q.jsonl",
            '{"question": "x", "path": "a", "lines": "-5"}',
            "`lines` must be lines such as 12 or '12-16' .got '-5'",
        ),
        (
            "q.jsonl",
            '{"question": "x", "path": "a", "lines": "9-1"}',
            "must name the first line before the last one .got '9-1'",
        ),
        ("q.jsonl", "[" * 100_000, r"q\.jsonl:1: "),
        ("q.csv", "question,path\nx,a\n", r"q\.csv:1: it is not JSON \(expected value"),
    ],
)
def test_a_wrong_file_is_named_with_the_line(tmp_path, name, text, message):
    (tmp_path / name).write_text(text, "utf-8")
    with pytest.raises(DocumentError, match=message):
        load_questions(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "message"), [("q.jsonl", "'utf-8' codec"), ("none.jsonl", "it cannot be read")]
)
def test_a_file_that_is_absent_or_in_another_encoding_is_named(tmp_path, name, message):
    (tmp_path / "q.jsonl").write_bytes('{"question": "Wie groß?"}'.encode("latin-1"))
    with pytest.raises(DocumentError, match=rf"{name}: {message}.*[^.]\. Write UTF-8"):
        load_questions(tmp_path / name)

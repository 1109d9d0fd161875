"""Source files: names, definitions, tests, and one chunk of a file before the others; headings that open a chunk."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pytest
from llama_index.core.schema import TextNode

from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrievers.bm25_index import TermScores
from llama_index_contextual.retrievers.code_features import code_record, code_signals, repeats
from llama_index_contextual.retrievers.features import PoolReads, heading_shares, record_of
from llama_index_contextual.retrievers.fusion import ContextualFusionRetriever
from llama_index_contextual.retrievers.learned import shipped_weights


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("class Gate:\n    def open_door(self):\n        door = 1", ("Gate", "open_door")),
        (
            "export default async function sendMail(to) {\nconst retries = 3;",
            ("sendMail", "retries"),
        ),
        ("func (c *Command) Execute() error {", ("Execute",)),
        ("pub(crate) struct Queue<T> {\nimpl Queue {", ("Queue", "Queue")),
        ("public static <T> List<T> copyOf(List<T> other) {", ("copyOf",)),
        ("    protected void onLoad(int size)", ("onLoad",)),
        ("res.send = function send(body) {", ("send",)),
        (
            "void Gate::open(int key) {\n  async close(key) {\n  suspend fun <T> load(x: T) {",
            ("open", "close", "load"),
        ),
        (
            "defmodule Plug.Conn do\n  def self.parse(x)\nfunction M.run(a)",
            ("Conn", "parse", "run"),
        ),
        (
            "data class Point(val x: Int)\nobject Main\nparse :: Text -> Int",
            ("Point", "Main", "parse"),
        ),
        ("an object that waits\nit('waits', () => {\n} else if (x) {\nreturn new Gate() {", ()),
        ("x = call(public, private)\nif (ready) {", ()),
    ],
)
def test_the_names_that_a_chunk_defines(text, names):
    assert code_record("a.java", text).names == names


def test_definitions_of_a_long_line_take_no_time():
    started = time.thread_time()
    for text in (
        "public " * 40_000,
        "(" * 100_000,
        "pub(" * 50_000,
        " ".join(["static"] * 40) + "\n" * 10_000,
        "f(" * 50_000,
        "f(\n" * 50_000,
        "f((a)\n" * 20_000,
        "f()\n:\n" * 5_000,
        "impl<" * 20_000,
        "'''" * 20_000,
    ):
        code_record("a.c", text)
    assert time.thread_time() - started < 1


def test_which_files_are_code_and_which_are_tests():
    assert code_record("src/a/Main.java", "")
    assert not code_record("notes/java.md", "")
    for path in (
        "tests/gate.py",
        "test/java/GateTest.java",
        "pkg/gate_test.go",
        "web/gate.spec.ts",
        "test_gate.py",
        "_examples/rest/main.go",
        "src/__tests__/gate.ts",
    ):
        assert code_record(path, "").is_test
    for path in ("src/gate.py", "src/contest.py", "src/latest/attest.go", "Testimony.java"):
        assert not code_record(path, "").is_test


FILES = [
    ("src/retry_queue.py", "class RetryQueue:\n"),
    ("src/retry_queue.py", "x = 1\n"),
    ("tests/test_retry.py", "def test_retry_queue():\n"),
    ("note.md", ""),
]
CODE = [code_record(*one) for one in FILES]


def reads_of(codes, terms=None):
    return SimpleNamespace(terms=terms, records=[SimpleNamespace(code=code) for code in codes])


def test_the_signals_of_a_source_file():
    def found(question, **idfs):
        terms = TermScores(
            tuple((word,) for word in idfs),
            (1,) * len(idfs),
            tuple(idfs.values()),
            *np.zeros((2, 4, 2)),
        )
        return code_signals(
            question, reads_of(CODE, terms), np.array([0.9, 0.6, 0.3, 1.0]), [0, 2, 1, 3]
        )

    signals = found("how does the RetryQueue wait", retri=2.0, queue=2.0)
    assert signals["file name"].tolist() == [1.0, 1.0, 0.5, 0.0]
    common = found("how does the RetryQueue wait", retri=2.0, queue=1.0)
    assert common["file name"][0] == pytest.approx(
        0.875
    )  # a word of many chunks says less about a file
    assert signals["exact"].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert signals["defines"][:2].tolist() == pytest.approx([1.0, 1.0])
    assert signals["file vector"].tolist() == pytest.approx([0.5, 0.5, 0.1, 0.0])
    assert (
        signals["file share"][0] == 1.0 > signals["file share"][2] > signals["file share"][3] == 0.0
    )
    assert signals["test"].tolist() == [0.0, 0.0, 1.0, 0.0]
    assert not found("which tests cover the RetryQueue", retri=2.0, queue=2.0)["test"].any()


def test_further_chunks_of_a_file_lose_more_for_words_than_for_a_question():
    words, question = (
        repeats(one, reads_of(CODE), [0, 3, 1, 2]) for one in ("retry queue", "How does it retry?")
    )
    assert np.flatnonzero(words).tolist() == np.flatnonzero(question).tolist() == [1]
    assert words[1] > 10 * question[1]


def test_the_file_that_defines_a_name_comes_before_those_that_use_it():
    def node(name, path, text):
        return TextNode(id_=name, text=f"{path}\n{text}", metadata={"path": path})

    nodes = [
        node("definition", "src/queue.py", "class RetryQueue:\n    def push(self, job): ..."),
        node("use", "src/app.py", "RetryQueue RetryQueue RetryQueue queue queue retry"),
        node("test", "tests/test_queue.py", "RetryQueue RetryQueue: a queue that can retry"),
        node("more", "src/queue.py", "RetryQueue retry queue retry queue"),
    ]
    words = ContextualFusionRetriever([ContextualBM25Retriever(nodes)], mode="learned")
    for question in ("retry queue", "retry_queue", "RetryQueue()"):
        assert "exact" in {credit.arm for hit in words.explain(question) for credit in hit.credits}
    explanation = words.explain("RetryQueue")
    assert explanation.hits[0].source == "src/queue.py"
    assert [hit.node_id for hit in explanation][-1] in {"definition", "more"}, (
        "one chunk of a file comes first"
    )
    assert {"exact", "file name"} <= {credit.arm for credit in explanation.hits[0].credits}


@pytest.mark.parametrize("question", ["Plans", "Plans()"])
def test_the_type_of_a_name_comes_before_a_variable_and_what_is_implemented_of_it(question):
    texts = {
        "variable": "let plans = Plans::new(); assert(plans); use_of(plans, Plans); Plans, plans",
        "trait": "impl Plans for Week { fn plans(&self) {} } // Plans plans Plans",
        "type": "pub trait Plans {\n    fn first(&self) -> Day;\n}",
    }
    nodes = [
        TextNode(id_=one, text=text, metadata={"path": "src/day.rs"}) for one, text in texts.items()
    ]
    nodes += [
        TextNode(id_=f"other{n}", text="a day", metadata={"path": f"src/{n}.rs"}) for n in range(9)
    ]
    hits = ContextualFusionRetriever([ContextualBM25Retriever(nodes)], mode="learned").retrieve(
        question
    )
    assert hits[0].node_id == "type"


@pytest.mark.parametrize("question", ["RangeStep", "range_step", "range step"])
def test_of_a_file_that_is_named_the_chunk_that_defines_the_name_comes_first(question):
    texts = {
        "use": "RangeStep RangeStep RangeStep: the range step",
        "definition": "struct RangeStep {\n    end: i32,\n}",
    }
    nodes = [
        TextNode(id_=one, text=text, metadata={"path": "src/range_step.rs"})
        for one, text in texts.items()
    ]
    nodes += [
        TextNode(id_=f"other{n}", text="a step", metadata={"path": f"src/{n}.rs"}) for n in range(9)
    ]
    hits = ContextualFusionRetriever([ContextualBM25Retriever(nodes)], mode="learned").retrieve(
        question
    )
    assert hits[0].node_id == "definition"


@pytest.mark.parametrize(
    ("question", "first", "last"),
    [("how many retries?", "top", "other"), ("how many retries by the worker?", "asked", "other")],
)
def test_a_chunk_below_the_title_or_the_heading_asked_for_is_lifted_above_other_headings(
    question, first, last
):
    text = "A job of the worker is tried three times, retry limits say so, whichever it is."
    paths = {"other": "Retries > Storage", "asked": "Retries > Worker", "top": "Retries"}
    nodes = [
        TextNode(
            id_=name,
            text=text,
            metadata={"path": f"{name}.md", "header_path": path, "date": f"2026-01-0{day}"},
        )
        for day, (name, path) in enumerate(paths.items(), 1)
    ]
    for node in nodes:
        node.excluded_embed_metadata_keys = list(node.metadata)
    hits = ContextualFusionRetriever([ContextualBM25Retriever(nodes)], mode="learned").explain(
        question
    )
    credits_of = {hit.node_id: {one.arm: one.credit for one in hit.credits} for hit in hits}
    order = [*credits_of]
    assert first in order[: order.index(last)]
    assert order[-1] == last
    assert "heading" in credits_of["top"]
    assert "heading" not in credits_of["other"], "its page's name is no merit of its"
    assert credits_of[first]["heading"] == pytest.approx(credits_of["top"]["heading"])


def test_a_heading_counts_by_what_the_text_below_it_holds_of_the_question_beside_its_context():
    page = {"path": "a.md", "context": "Document: a.md > Retries"}
    records = [
        record_of({**page, "header_path": path}, "text") for path in ("Retries", "Retries > Limits")
    ]
    records = [
        *records,
        record_of({**page, "header_path": "Retries > Storage"}, "text"),
        None,
        record_of({"path": "a.py"}, "x"),
    ]
    groups, idfs = (("retri",), ("limit",)), (3.0, 1.0)

    def shares(*counts):
        terms = TermScores(groups, (1, 1), idfs, np.ones((5, 2)), np.array(counts, float))
        return heading_shares(
            PoolReads("words", [*"abcde"], terms, np.zeros(5), records, {}, {*"abcde"})
        ).tolist()

    assert shares((2, 1), (2, 1), (2, 1), (2, 1), (2, 1)) == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert shares((1, 1), (1, 0), (1, 1), (1, 1), (1, 1)) == [0.25, 0.0, 0.0, 0.0, 0.0], (
        "the context is no text"
    )
    assert not any(shares(*[(0, 0)] * 5)), (
        "where nothing is found, nothing speaks for the top of a page"
    )


def test_the_numbers_of_source_files_are_few():
    assert set(shipped_weights("code")) == {
        "file name",
        "defines",
        "exact",
        "file vector",
        "file share",
        "test",
    }
    assert {name for name, weight in shipped_weights("code").items() if weight < 0} == {"test"}


def test_twins_count_once():
    text = "The gateway waits thirty seconds before it closes a connection that is idle and says so in its log."
    nodes = [
        TextNode(id_="a", text=text),
        TextNode(id_="b", text=text.upper()),
        TextNode(id_="c", text=f"{text} Indeed."),
        TextNode(id_="d", text="A gateway restarts at night; connections are closed then."),
    ]
    words = [ContextualBM25Retriever(nodes)]
    learned = ContextualFusionRetriever(words, mode="learned", similarity_top_k=2)
    first, second = [
        hit.node.node_id for hit in learned.retrieve("which gateway connection is idle?")
    ]
    assert (first in {"a", "b", "c"}, second) == (True, "d")
    every = ContextualFusionRetriever(words, mode="learned", similarity_top_k=4).retrieve(
        "gateway connection idle"
    )
    assert {hit.node.node_id for hit in every} == {"a", "b", "c", "d"}
    assert [hit.score for hit in every] == sorted((hit.score for hit in every), reverse=True)

"""Documents that are slow or huge, on purpose or by accident.

Chunks stay small, and so does their metadata.
"""

import itertools
import random
import time
from unittest import mock

import pytest
import regex
from llama_index.core import Document

from llama_index_contextual import ContextualNodePostprocessor, HeadingAwareMarkdownNodeParser
from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.node_parser import front_matter
from llama_index_contextual.node_parser import packing as splitting
from llama_index_contextual.node_parser.front_matter import read_front_matter
from llama_index_contextual.node_parser.packing import ChunkSettings, split_markdown
from llama_index_contextual.node_parser.sections import outline_of
from llama_index_contextual.utils.errors import ContextualWarning
from llama_index_contextual.utils.tokens import CHARS_PER_TOKEN

UNBROKEN = {
    "Thai": "การทดสอบภาษาไทยที่ไม่มีช่องว่างระหว่างคำ" * 800,
    "Khmer": "ភាសាខ្មែរមិនមានចន្លោះរវាងពាក្យ" * 800,
    "Lao": "ພາສາລາວບໍ່ມີຊ່ອງຫວ່າງລະຫວ່າງຄໍາ" * 800,
    "Burmese": "မြန်မာစာတွင်စကားလုံးများကြားတွင်နေရာမရှိပါ" * 800,
    "a line of letters": "abcdefghijklmnop" * 62_500,
    "families": "\U0001f468\u200d\U0001f469\u200d\U0001f467" * 4_000,
}


def nodes(text, **settings):
    return HeadingAwareMarkdownNodeParser(**settings)(
        [Document(text=text, metadata={"path": "a.md"})]
    )


@pytest.fixture(params=["minilm", "cl100k"])
def settings(request):
    if request.param == "minilm":
        pytest.importorskip("tokenizers")
    return ChunkSettings(
        chunk_size=200, chunk_overlap=20, min_chunk_size=20, tokenizer=request.param
    )


@pytest.mark.parametrize("text", UNBROKEN.values(), ids=UNBROKEN)
@pytest.mark.long
def test_a_run_without_spaces_is_split_between_characters(text, settings):
    spans = split_markdown(text, settings=settings)
    assert max(span.end - span.start for span in spans) <= settings.chunk_size * CHARS_PER_TOKEN
    assert "".join(text[span.start + span.overlap : span.end] for span in spans) == text
    letters = {0, *(match.end() for match in regex.finditer(r"\X", text))}
    assert all(span.start in letters for span in spans)


@pytest.mark.parametrize("space", [" ", "\t", "\u3000", "\xa0"])
def test_a_run_of_spaces_is_not_a_chunk(space, settings):
    text = f"before{space * 32_000}after{space * 20}the end"
    spans = split_markdown(text, settings=settings)
    assert [text[span.start : span.end].split() for span in spans] == [
        ["before"],
        ["after", "the", "end"],
    ]


def test_titles_headings_and_tags_are_bounded_because_every_chunk_repeats_them():
    long = "word " * 5_000
    tags = ", ".join(f"tag-{number}" for number in range(500))
    text = (
        f"---\ntitle: {long}\ntags: [{tags}]\ndescription: {long}\n---\n# {long}\n\n## {long}\n\n"
        + "A line. " * 5_000
    )
    chunks = nodes(text)
    for node in chunks:
        for key in ("title", "tags", "description", "header_path"):
            assert len(node.metadata[key]) <= 300
    assert chunks[-1].metadata["title"].endswith("…")
    assert tags.startswith(chunks[-1].metadata["tags"] + ",")  # no tag is cut
    deep = "".join(f"{'#' * level} {'x' * 90}{level}\n\n" for level in range(1, 7)) + "Text."
    [node] = nodes(deep)
    assert node.metadata["header_path"].startswith("… > ")
    assert node.metadata["header_path"].endswith("x6")


def test_a_long_title_is_cut_and_reported():
    document = Document(text="Text.", metadata={"title": "t" * 1000, "tags": "a, b"})
    with pytest.warns(
        ContextualWarning, match="'title' has 1,000 characters, of which 300 are kept"
    ):
        [node] = ContextualNodePostprocessor()(HeadingAwareMarkdownNodeParser()([document]))
    assert (len(node.metadata["title"]), node.metadata["tags"]) == (300, "a, b")
    assert len(node.metadata["context"]) == 300


GROWING = {
    "image brackets in a heading": lambda n: "# " + "![a](" * n + "\n\ntext\n",
    "link brackets in a heading": lambda n: "# " + "[a](" * n + "\n\ntext\n",
    "footnote brackets in a heading": lambda n: "# " + "[^a][" * n + "\n\ntext\n",
    "nested front matter": lambda n: "---\na: " + "[" * n + "\n---\n",
    "long front matter": lambda n: (
        "---\n" + "".join(f"key{i}: value\n" for i in range(n // 8)) + "---\ntext"
    ),
    "lists in lists on one line": lambda n: "- " * (n // 2) + "x",
    "letters on one line": lambda n: "".join(random.Random(n).choices("abcdefgh", k=n)),  # noqa: S311
    "many days": lambda n: "".join(f"## 2026-11-{i % 28 + 1:02}\n\n" for i in range(n // 8)),
    "marks of one letter": lambda n: "a" + "\u0301" * n,
    "many rules": lambda n: "a\n\n---\n\n" * (n // 8),
    "rules alone": lambda n: "***\n\n" * (3 * n),  # short texts hide quadratic time
}


@pytest.mark.parametrize("make", GROWING.values(), ids=GROWING)
@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The front matter")
def test_a_text_four_times_as_long_takes_less_than_nine_times_as_long(make):
    def seconds(size):
        document, best = [Document(text=make(size))], float("inf")
        for _ in range(3):
            began = time.thread_time()
            HeadingAwareMarkdownNodeParser()(document)
            best = min(best, time.thread_time() - began)
        return best

    seconds(100)
    for _ in range(3):  # other work on the machine slows single runs
        if seconds(40_000) < 9 * max(seconds(10_000), 0.01):
            return
    pytest.fail("it grows faster than the text")


def test_front_matter_beyond_its_limit_stays_text():
    lines = "".join(f"key{number}: some value\n" for number in range(10_000))
    with pytest.warns(
        ContextualWarning,
        match=r"a.md cannot be read as YAML and is kept as text: it has \d{3},\d{3} ch",
    ):
        chunks = nodes(f"---\n{lines}---\n\nText.")
    assert "key9999" in chunks[-1].text
    assert read_front_matter(f"---\n{lines[:90_000]}\n---\n").values


@pytest.mark.parametrize("loader", ["CBaseLoader", "BaseLoader"])
def test_long_front_matter_is_read_the_same_with_and_without_libyaml(loader, monkeypatch):
    monkeypatch.setattr(front_matter, "_YAML_LOADER", getattr(front_matter.yaml, loader))
    filler = "".join(f"key{number}: value\n" for number in range(200))
    front = read_front_matter(
        f"---\n{filler}a: &x one\nb: *x\nc: [1, two, {{d: e}}]\nf: {{g: h}}\ni: ~\n---\n"
    )
    assert [front.text(key) for key in "abcfi"] == ["one", "one", "1, two", "", ""]
    with pytest.warns(ContextualWarning, match="more than 50 levels"):
        assert not read_front_matter("---\na: " + "[" * 60 + "]" * 60 + "\n---\n").end


@pytest.mark.parametrize("fence", ["```", "~~~"])
@pytest.mark.parametrize("below", ["", "\n", "\n\nText below it.\n", "\n\n\n\n# Next\n\nText.\n"])
def test_a_fence_of_exactly_the_budget_stays_whole(fence, below):
    for lines in range(3, 40):
        code = f"{fence}py\n" + "value = compute()\n" * lines + fence
        [whole] = split_markdown(code, settings=ChunkSettings(chunk_size=10_000))
        settings = ChunkSettings(chunk_size=whole.tokens, chunk_overlap=0, min_chunk_size=0)
        spans = split_markdown(f"Text above it.\n\n{code}{below}", settings=settings)
        assert code in [
            f"Text above it.\n\n{code}{below}"[span.start : span.end] for span in spans
        ], lines


@pytest.mark.parametrize("levels", ["#", "##", "# ## ### #### ##### ######"])
def test_a_run_of_bare_headings_is_within_the_budget(levels):
    kinds = itertools.cycle(levels.split())
    text = "".join(
        f"{next(kinds)} A heading without any text, number {number}\n\n" for number in range(300)
    )
    for overlap in (0, 20):
        spans = split_markdown(
            text, settings=ChunkSettings(chunk_size=100, chunk_overlap=overlap, min_chunk_size=12)
        )
        assert max(span.tokens for span in spans) <= 100


@pytest.mark.parametrize("line", ["- " * 150, "* " * 150, "- " * 150 + "x", "> " * 150 + "x"])
def test_a_line_of_150_nested_blocks_keeps_its_kind(line):
    text = f"Above.\n\n{line}\n\nBelow.\n"
    plain = text.replace(line, line[:20] + line[-2:])
    kinds = [[mark.kind for mark in outline_of(markdown).marks] for markdown in (text, plain)]
    assert kinds[0] == kinds[1]


def test_a_run_of_rules_is_not_searched_for_sentences(monkeypatch):
    """Each rule stays with the previous one, so together they exceed the budget.

    None of them has a place to split.
    """
    sentence_starts = mock.Mock(return_value=[])
    monkeypatch.setattr(splitting, "sentence_starts", sentence_starts)
    text = "Above.\n\n" + "---\n" * 3000
    spans = split_markdown(
        text, settings=ChunkSettings(chunk_size=200, chunk_overlap=20, min_chunk_size=20)
    )
    assert (spans[0].start, spans[-1].end) == (0, len(text.rstrip()))
    assert max(span.tokens for span in spans) <= 400  # nothing exceeds twice the size
    sentence_starts.assert_not_called()


def test_a_document_with_too_many_chunks_is_reported_with_its_path(tmp_path, monkeypatch):
    monkeypatch.setattr(HeadingAwareMarkdownNodeParser, "most_chunks", 100)
    (tmp_path / "days.md").write_text("# 2026-01-01\na\n" * 101)
    (tmp_path / "fine.md").write_text("# 2026-01-01\na\n" * 100)
    with ContextualIndex.open(tmp_path, embed_model="none") as index:
        report = index.refresh()
        [problem] = report.failed
        assert str(problem).startswith("days.md: ")
        assert "101 chunks, more than 100. Split it" in str(problem)
        assert index.documents()["fine.md"].nodes == 100
        assert not index.status(check=True).problems


def test_aliases_in_front_matter_are_not_expanded_to_a_billion_items():
    lists = [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 9)]
    text = "\n".join(
        ["---", "a0: &a0 [x, x]", *lists, "title: T", "---", "", "# H", "", "Some words.", ""]
    )
    with pytest.warns(ContextualWarning, match="aliases of lists"):
        nodes = HeadingAwareMarkdownNodeParser().get_nodes_from_documents([Document(text=text)])
    assert len(nodes[0].metadata) < 30


def test_a_dotted_key_in_front_matter_does_not_take_a_gigabyte():
    with pytest.warns(
        ContextualWarning, match="cannot be read as TOML and is kept as text: a line has more than"
    ):
        assert not read_front_matter(f"+++\n{'a.' * 40_000}b = 1\n+++\n").values

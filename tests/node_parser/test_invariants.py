"""Invariants for every document: texts are slices, nothing is lost, lines and budgets are exact."""

import itertools
import random
import re
from bisect import bisect_right

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from test_specifications import examples

from llama_index_contextual.node_parser.front_matter import read_front_matter
from llama_index_contextual.node_parser.node_metadata import line_ends
from llama_index_contextual.node_parser.packing import ChunkSettings, split_markdown
from llama_index_contextual.utils.tokens import tiktoken_cl100k

WORDS = st.one_of(
    st.sampled_from(
        ["alpha", "beta.", "Gamma?", "delta", "é", "漢字。", "😀", "العربية", "`code`", "**bold**"]
    ),
    st.sampled_from(
        ["[link](x)", "[[wiki|page]]", "#tag", "^block-id", "$x^2$", "|", "-", "1.", ">", "*", "\\"]
    ),
)
SENTENCES = st.lists(WORDS, min_size=1, max_size=30).map(" ".join)
BLOCKS = st.one_of(
    SENTENCES,
    st.builds(lambda level, title: f"{'#' * level} {title}", st.integers(1, 6), SENTENCES),
    SENTENCES.map(lambda title: f"{title}\n==="),
    st.lists(SENTENCES, min_size=1, max_size=6).map(
        lambda lines: "```py\n" + "\n".join(lines) + "\n```"
    ),
    st.lists(SENTENCES, min_size=1, max_size=5).map(
        lambda items: "\n".join(f"- {item}" for item in items)
    ),
    st.lists(SENTENCES, min_size=1, max_size=4).map(
        lambda items: "\n".join(f"1. {item}\n\n   more" for item in items)
    ),
    st.lists(SENTENCES, min_size=1, max_size=4).map(
        lambda lines: "> [!note]\n" + "\n".join(f"> {x}" for x in lines)
    ),
    st.integers(1, 40).map(lambda rows: "| a | b |\n|---|---|\n" + "| 1 | 2 |\n" * rows),
    st.sampled_from(
        [
            "---",
            "***",
            "<!-- c\n\n# no -->",
            "<details>\n<summary>x</summary>\n\nin\n\n</details>",
            "[a]: /b",
        ]
    ),
    st.sampled_from(
        [
            "    indented",
            "\t- tab",
            "~~~\nopen",
            "$$\nx\n$$",
            "[^1]: note",
            "%% comment %%",
            "{/* mdx */}",
        ]
    ),
    st.text(max_size=20).filter(lambda text: not re.search("[\ud800-\udfff]", text)),
)
DOCUMENTS = st.tuples(
    st.sampled_from(["", "\ufeff", "---\ntitle: x\n---\n", "+++\ntitle = 'x'\n+++\n", "\n\n"]),
    st.lists(BLOCKS, max_size=12),
    st.sampled_from(["\n\n", "\n", "\r\n\r\n", "\r\r", "\n \n"]),
).map(lambda parts: parts[0] + parts[2].join(parts[1]))
SETTINGS = st.builds(
    lambda size, overlap, least, tokenizer: ChunkSettings(
        chunk_size=size,
        chunk_overlap=size * overlap // 10,
        min_chunk_size=size * least // 10,
        tokenizer=tokenizer,
    ),
    st.integers(3, 120),
    st.integers(0, 5),
    st.integers(0, 5),
    st.sampled_from(["cl100k", str.split]),
)


def count(text):
    return len(tiktoken_cl100k().encode_ordinary(text))


def lines_before(text, offset):
    """Count lines like an editor: CRLF, CR and LF each end one."""
    return len(
        re.findall(r"\r\n|\r|\n", text[: offset + (text[offset - 1 : offset + 1] == "\r\n")])
    )


def check(text, given_settings):
    spans = split_markdown(text, settings=given_settings)
    covered, ends = bytearray(len(text)), line_ends(text)
    for span in spans:
        chunk = text[span.start : span.end]
        assert chunk.strip()
        assert chunk == chunk.rstrip()
        covered[span.start : span.end] = b"x" * len(chunk)
        assert bisect_right(ends, span.start) == lines_before(text, span.start)
        assert bisect_right(ends, span.end - 1) == lines_before(text, span.end - 1)
        if given_settings.tokenizer == "cl100k":
            assert span.tokens == count(chunk)
    starts = [span.start + span.overlap for span in spans]
    assert starts == sorted(set(starts))
    assert all(span.start + span.overlap <= span.end for span in spans)
    body = read_front_matter(text).end
    missed = [
        offset
        for offset in range(body, len(text))
        if not covered[offset] and not text[offset].isspace() and text[offset] != "\ufeff"
    ]
    assert not missed, text[missed[0] - 20 : missed[0] + 20]
    return spans


@pytest.mark.filterwarnings(
    "ignore:The front matter"
)  # two generated rules at the top look like one
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@pytest.mark.long
@given(DOCUMENTS, SETTINGS)
def test_generated_documents(text, given_settings):
    spans = check(text, given_settings)
    assert spans == split_markdown(text, settings=given_settings)
    if given_settings.chunk_overlap == 0:
        assert all(before.end <= after.start for before, after in itertools.pairwise(spans))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(DOCUMENTS, SETTINGS)
@example(
    "beta. 😀 alpha alpha 漢字。", ChunkSettings(chunk_size=4, chunk_overlap=0, min_chunk_size=0)
)  # " 😀" is one
def test_the_chunks_of_a_plain_text_cover_it_within_the_hard_limit(text, given_settings):
    plain = ChunkSettings(
        chunk_size=given_settings.chunk_size,
        chunk_overlap=0,
        min_chunk_size=0,
        tokenizer="cl100k",
    )
    spans = split_markdown(text, settings=plain, markdown=False)
    for span in spans:
        assert span.tokens <= max(plain.hard_limit, 4)  # one character may be four tokens
    chunks = "".join(text[span.start : span.end] for span in spans)
    assert "".join(chunks.split()) == "".join(text.removeprefix("\ufeff").split())


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=2, max_size=6, unique=True),
    st.integers(0, 5),
    st.integers(1, 400),
)
def test_a_new_section_changes_no_other_chunk(numbers, position, length):
    sections = [
        f"## Section {n}\n\n" + f"Sentence {n} stands here. " * 30 + "\n\n" for n in numbers
    ]
    before = "".join(sections)
    position = min(position, len(sections))
    new = "## Brand new\n\n" + "Something else that nobody said. " * max(20, length) + "\n\n"
    after = "".join([*sections[:position], new, *sections[position:]])
    old_chunks = [before[s.start : s.end] for s in split_markdown(before)]
    new_chunks = [after[s.start : s.end] for s in split_markdown(after)]
    assert [
        chunk for chunk in new_chunks if "Something else" not in chunk and "Brand new" not in chunk
    ] == old_chunks


@pytest.mark.long
def test_real_pages_and_their_mutations(data):
    pages = sorted((data("kubernetes-docs") / "corpus").glob("*.md"))[::40]
    pages += sorted((data("markdown") / "fastapi").rglob("*.md"))[::25]
    dice = random.Random(20260409)  # noqa: S311  not for secrets
    for page in pages:
        text = page.read_bytes().decode("utf-8")
        check(text, ChunkSettings())
        for _ in range(3):
            offset = dice.randrange(len(text) or 1)
            mutated = (
                text[:offset]
                + dice.choice(["```", "\n\n", "<!--", "|", "#", "\r", "\t", "- ", "\0", "> "])
                + text[offset + 3 :]
            )
            if read_front_matter(text).end <= offset:  # another test covers broken front matter
                check(mutated, ChunkSettings(chunk_size=120, chunk_overlap=30))


def test_every_page_in_spanish(data):
    """The pages have inverted marks, accents, admonitions and headings with ``{ #id }``.

    Their fences stay whole.
    """
    parser = MarkdownIt("commonmark").disable(["inline"])
    pages = sorted((data("markdown") / "fastapi" / "es").rglob("*.md"))
    assert len(pages) > 50
    fences = 0
    for page in pages:
        text = page.read_bytes().decode("utf-8")
        spans = check(text, ChunkSettings())
        assert not any(
            "{" in title and "#" in title for span in spans for _, title, _ in span.path
        ), page.name
        lines = text.splitlines(keepends=True)
        for token in parser.parse(text):
            if (
                token.type == "fence"
                and count("".join(lines[slice(*token.map)])) <= ChunkSettings().chunk_size
            ):
                fences += 1
                fence = "".join(lines[slice(*token.map)]).strip()
                assert any(fence in text[span.start : span.end] for span in spans), page.name
    assert fences > 100


@pytest.mark.parametrize("folder", ["commonmark", "gfm"])
def test_every_example_of_the_specifications(data, folder):
    for sample in examples(data("markdown") / folder):
        check(
            sample,
            ChunkSettings(chunk_size=10, chunk_overlap=2, min_chunk_size=2, tokenizer="cl100k"),
        )
